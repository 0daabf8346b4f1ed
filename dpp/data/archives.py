"""Unpacks an untrusted tar file."""

import tarfile
import zlib
from lzma import LZMAError
from pathlib import Path, PureWindowsPath

from tqdm.auto import tqdm

from dpp.data.disk_space import check_space
from dpp.system.errors import UserError, one_line

DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error, LZMAError)


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks into a folder, after every member has been checked.

    Refuses, before anything is written: names that lead out of the folder, links, devices, and an
    archive that is damaged or does not fit on the disk.
    """
    if not archive.is_file():
        raise UserError(f"there is no archive {archive}")
    count = 0
    size = 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                check_member(archive, member)
                count, size = count + 1, size + member.size
    except DAMAGE as error:
        raise UserError(f"archive {archive} is damaged or ends early: {one_line(error)}") from error
    if not count:
        raise UserError(f"archive {archive} is empty")
    check_space(folder, size, f"unpacking {archive.name}")
    # Python 3.11.4 and later check once more and drop owners and odd permissions.
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with (
            tarfile.open(archive) as tar,
            tqdm(total=count, desc=f"unpacking {archive.name}", unit="file", disable=None) as bar,
        ):
            for member in tar:
                tar.extract(member, folder, **options)
                bar.update()
    except DAMAGE as error:
        raise UserError(f"archive {archive} could not be unpacked: {one_line(error)}") from error


def check_member(archive: Path, member: tarfile.TarInfo) -> None:
    """Refuses anything but plain files and folders inside the archive's folder."""
    path = PureWindowsPath(member.name)  # takes / and \ as separators and knows of drives
    if path.root or path.drive or ".." in path.parts:
        raise UserError(f"archive {archive} is refused: {member.name!r} leads out of its folder")
    if not (member.isfile() or member.isdir()):
        kind = "a link" if member.issym() or member.islnk() else "neither file nor folder"
        raise UserError(f"archive {archive} is refused: {member.name!r} is {kind}")
