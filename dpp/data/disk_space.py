"""Checks the free space on the disk before something is written."""

import shutil
from pathlib import Path

from dpp.system.errors import UserError

MARGIN = 64 * 1024**2  # bytes to leave free


class NoSpaceError(UserError):
    """Something did not fit on the disk; what was downloaded is still good."""


def check_space(folder: Path, needed: int, what: str, advice: str = "") -> None:
    """Raises `NoSpaceError` if something does not fit on the disk.

    Args:
        folder: where it goes; it need not exist yet.
        needed: bytes.
        what: named in the message.
        advice: what else can be done, after "free some space".
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if needed + MARGIN > free:
        raise NoSpaceError(
            f"{what} needs {needed / 1e9:.1f} GB and {existing} has {free / 1e9:.1f} GB free: free "
            f"some space, set DPP_DATA to another disk{', ' + advice if advice else ''}"
        )
