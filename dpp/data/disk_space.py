"""Looks whether something fits on the disk before it is written."""

import shutil
from pathlib import Path

from dpp.system.errors import UserError

MARGIN = 64 * 1024**2  # bytes to leave free


class NoSpaceError(UserError):
    """Something did not fit on the disk; what was downloaded is still good."""


def check_space(folder: Path, needed: int, what: str, advice: str = "") -> None:
    """Refuses, before anything is written, what does not fit.

    Args:
        folder: where it goes; the nearest folder above it that exists is asked.
        needed: bytes.
        what: in the message.
        advice: what else can be done, after "free some space".
    """
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed + MARGIN > free:
        raise NoSpaceError(
            f"{what} needs {needed / 1e9:.1f} GB and {there} has {free / 1e9:.1f} GB free: free "
            f"some space, set DPP_DATA to another disk{', ' + advice if advice else ''}"
        )
