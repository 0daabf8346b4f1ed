"""Downloads a file: resumes an interrupted transfer, and keeps the file if its hash is correct."""

import re
import time
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm.auto import tqdm

from dpp.data.catalogue import Archive
from dpp.data.disk_space import check_space
from dpp.system.errors import UserError
from dpp.system.files import hash_file

CHUNK = 1024 * 1024
ATTEMPTS = 4
PAUSE = 2.0  # seconds before the second attempt; doubled for each one after
TIMEOUT = 30.0  # seconds without a byte


class Interrupted(Exception):
    """A transfer stopped early; what was received is kept, and the next attempt resumes it."""


def fetch(archive: Archive, folder: Path) -> Path:
    """Downloads an archive into a folder, unless it is there already.

    A transfer that stops leaves `<name>.part`, which this call or the next resumes (HTTP Range). A
    file whose checksum is not the archive's is deleted.

    Returns:
        The file.
    """
    done, part = folder / archive.name, folder / f"{archive.name}.part"
    if done.exists():
        try:
            check_md5(done, archive.md5)
            return done
        except UserError:
            done.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            transfer(archive.url, part)
            break
        except (Interrupted, OSError, HTTPException) as error:
            reason = error
            refused = isinstance(error, HTTPError) and error.code < 500
            unreachable = isinstance(error, URLError) and not isinstance(error, HTTPError)
            if refused or (unreachable and not part.exists()):
                break_off(archive, part, error)
    else:
        break_off(archive, part, reason)
    try:
        check_md5(part, archive.md5)
    except UserError as error:
        part.unlink()
        raise UserError(f"{archive.url}: {error}; it was deleted, run the command again") from None
    part.rename(done)
    return done


def break_off(archive: Archive, part: Path, error: Exception) -> None:
    """Raises a `UserError` that says why the download failed and what is kept of it."""
    kept = ""
    if not any(part.parent.iterdir()):
        part.parent.rmdir()
    if part.exists() and part.stat().st_size:
        kept = f"; {part.stat().st_size:,} bytes are kept: run the same command to resume"
    raise UserError(
        f"{archive.url} could not be downloaded: {error}{kept}. Or download {archive.name} on "
        f"another machine and pass it with --archive"
    ) from error


def transfer(url: str, part: Path) -> None:
    """Appends the missing bytes to `part`. Raises `Interrupted` if the connection ends early."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        if error.code != 416:  # 416: the part is as long as the file, or longer
            raise
        if error.headers.get("Content-Range") != f"bytes */{have}":
            part.unlink()
            raise Interrupted("the part that was kept is longer than the file") from error
        return
    with answer:
        begins, total = extent(answer.status, answer.headers, have)
        check_space(part.parent, (total or 0) - begins, f"downloading {part.stem}")
        with (
            part.open("ab" if begins else "wb") as file,
            tqdm(
                total=total,
                initial=begins,
                desc=part.stem,
                unit="B",
                unit_scale=True,
                disable=None,
            ) as bar,
        ):
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
            length = file.tell()
    if total is not None and length != total:
        raise Interrupted(f"the connection ended after {length:,} of {total:,} bytes")


def extent(status: int, headers, have: int) -> tuple[int, int | None]:
    """Where the bytes of an answer begin in the file, and the file's length, if it is known."""
    if status == 206:
        sent = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", ""))
        if not sent or int(sent[1]) != have:
            raise Interrupted("the server did not send the range that was asked for")
        return have, None if sent[2] == "*" else int(sent[2])
    length = headers.get("Content-Length")  # the server sends the whole file, from its start
    return 0, int(length) if length else None


def check_md5(path: Path, wanted: str) -> None:
    """Raises a `UserError` if a file does not have the wanted checksum."""
    md5 = hash_file(path, "md5")
    if md5 != wanted:
        raise UserError(
            f"{path.name} has the md5 checksum {md5}, not {wanted}: it is damaged or not that file"
        )
