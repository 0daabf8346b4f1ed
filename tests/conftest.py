"""Fixtures that several test files use."""

import sys

import pytest
import torch

from dpp import __main__ as command_line


@pytest.fixture
def dpp(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty folder; returns its exit code and what it said."""
    monkeypatch.chdir(tmp_path)

    def call(*words) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dpp", *map(str, words)])
        code = command_line.main()
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def one_thread():
    """For problems so small that threads would mostly wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of one epoch on a few drawn birds."""
    from test_runs import tiny

    from dpp import runs

    short = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0, "project_after": (1,)}
    root = tmp_path_factory.mktemp("runs")
    return runs.run(tiny(**short), root=root, device="cpu", progress=False)


@pytest.fixture(scope="module")
def chromium():
    """One browser for the tests of a module."""
    from chromium import CHROMIUM, FLAGS, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()
