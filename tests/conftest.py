"""Fixtures that several test files use."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """For problems so small that threads would mostly wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
