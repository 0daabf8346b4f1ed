"""A finished run as one folder or zip file that others can verify and use."""

import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpp.data.disk_space import check_space
from dpp.runs import Run, familiarity, open_run, run_files
from dpp.sharing.card import make_card
from dpp.system import files, paths
from dpp.system.errors import UserError, one_line

CARD, INDEX = "README.md", "package.json"
EXTRAS = (familiarity.FILE, "evaluation.json")  # packed where a run has them
KNOWN = {*run_files.COVERED, run_files.MANIFEST, *EXTRAS, CARD, INDEX}
SAFE_NAME = re.compile(r"[\w.+-]{1,200}", re.ASCII)
MOST_BYTES = 8 * 1024**3  # of a package: the largest network here has a quarter of that
LICENCE = "mit"


def pack(run: Run, out: Path | None = None, licence: str = LICENCE) -> Path:
    """Packs a finished run, with a card and the hash of every file.

    Args:
        run: finished; it is verified first.
        out: a folder, or a file that ends in .zip; by default the run's name with .zip, here.
        licence: of the weights, as model hubs name it.

    Returns:
        The folder or file.

    Raises:
        UserError: the run is damaged, or something is there already.
    """
    run.verify()
    out = Path(out).expanduser() if out else Path(f"{run.folder.name}.zip")
    if out.exists():
        raise UserError(f"{out} exists already: remove it, or choose another with --out")
    names = [name for name in sorted(KNOWN) if (run.folder / name).is_file()]
    content = {name: files.read_file(run.folder / name) for name in names}
    content[CARD] = make_card(run, licence, names).encode()
    check_space(out.parent, sum(map(len, content.values())), f"the package {out.name}")
    hashes = {name: files.sha256_of_bytes(value) for name, value in content.items()}
    index = {"format": 1, "run": run.folder.name, "files": hashes}
    content[INDEX] = (json.dumps(index, indent=2) + "\n").encode()
    if out.suffix == ".zip":
        with files.file_written_beside(out) as unfinished:
            with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, value in content.items():
                    archive.writestr(zipfile.ZipInfo(name), value)  # without the time of day
    else:
        with files.folder_built_beside(out) as unfinished:
            for name, value in content.items():
                files.write_file(unfinished / name, value)
    return out


def unpack(package: Path, root: Path | None = None) -> Run:
    """Verifies a package and puts its run where `dpp` finds it.

    Every hash is checked before anything is written. Nothing in a package is executed: networks are
    described by JSON, weights are safetensors.

    Args:
        package: a folder or zip file from `pack`.
        root: where runs live, instead of `runs/` or `DPP_RUNS`.

    Raises:
        UserError: it is no package, or damaged, or another run has its name.
    """
    package, root = Path(package).expanduser(), Path(root or paths.runs_root())
    with opened(package) as (names, read):
        index = _index(package, names, read)
        folder = root / index["run"]
        hashes = index["files"]
        content = {name: read(name) for name in hashes}
        wrong = [name for name in hashes if files.sha256_of_bytes(content[name]) != hashes[name]]
        if wrong:
            raise UserError(
                f"{package} is damaged: {wrong[0]} does not match its hash in {INDEX}: get it again"
            )
        if folder.exists():
            return _existing(folder, package, content)
        check_space(root, sum(map(len, content.values())), f"unpacking {package.name}")
        with files.folder_built_beside(folder) as unfinished:
            for name, value in content.items():
                files.write_file(unfinished / name, value)
            open_run(unfinished).verify()
    return open_run(folder)


def _existing(folder: Path, package: Path, content: dict[str, bytes]) -> Run:
    """The run of a folder that is there already, if it is the package's."""
    there = folder / run_files.MANIFEST
    if there.is_file() and files.read_file(there) == content[run_files.MANIFEST]:
        run = open_run(folder)
        run.verify()
        return run
    raise UserError(
        f"{folder} exists and holds another run than {package}: remove it, or choose another "
        "folder with --root"
    )


def _index(package: Path, names: list[str], read: Callable[[str], bytes]) -> dict:
    """The list of a package's files, checked; it names all of them and nothing else."""
    if INDEX not in names:
        raise UserError(f"{package} is not a package of dpp: it has no {INDEX}")
    try:
        index = json.loads(read(INDEX))
        run, hashes, number = index["run"], index["files"], index["format"]
        valid = run_files.each(run_files.is_text, dict)(hashes) and SAFE_NAME.fullmatch(run)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{package} is damaged: its {INDEX} cannot be read: {one_line(error)}"
        ) from error
    if number != 1:
        raise UserError(
            f"{package} was made by a newer version of dpp (format {number}): update dpp"
        )
    if not valid or set(hashes) | {INDEX} != set(names) or not set(names) <= KNOWN:
        strange = sorted((set(hashes) | {INDEX}) ^ set(names) | set(names) - KNOWN)
        what = f": {strange[0]!r} is missing or does not belong there" if strange else ""
        raise UserError(f"{package} is refused: its {INDEX} does not describe a run{what}")
    if lacking := {run_files.MANIFEST, "experiment.json", "weights.safetensors"} - set(hashes):
        raise UserError(f"{package} is incomplete: it has no {sorted(lacking)[0]}")
    return index


@contextmanager
def opened(package: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """The names of the files in a package, and a function that reads one of them."""
    if package.is_dir():
        names = [path.name for path in package.iterdir() if not path.name.startswith(".")]
        if sum((package / name).stat().st_size for name in names) > MOST_BYTES:
            raise UserError(f"{package} is refused: it is larger than {MOST_BYTES / 1e9:.0f} GB")
        yield names, lambda name: files.read_file(package / name)
        return
    if not package.is_file():
        raise UserError(f"there is no package {package}")
    try:
        with zipfile.ZipFile(package) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                raise UserError(
                    f"{package} is refused: it unpacks to more than {MOST_BYTES:,} bytes"
                )
            yield archive.namelist(), archive.read
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise UserError(f"{package} is not a whole zip file: {one_line(error)}") from error
