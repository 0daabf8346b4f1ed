"""Checkpoints: weights as safetensors, resume states as plain tensors; nothing is unpickled."""

import io
import json
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from dpp.system.errors import UserError
from dpp.system.files import read_file, remove_abandoned, sha256_of_bytes, write_file

KEPT = 2  # states in a folder: if the newest is damaged, the one before it is used
STATE_NAME = re.compile(r"state-(\d{8,})-([0-9a-f]{16})\.pt")


def write_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> str:
    """Writes tensors as safetensors.

    Returns:
        The SHA-256 of the file, for `read_tensors`.
    """
    content = safetensors.torch.save({k: compact(v) for k, v in tensors.items()}, metadata)
    # The library writes metadata in a random order. Its header is JSON after 8 bytes of length.
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    content = len(header).to_bytes(8, "little") + header + content[end:]
    write_file(path, content)
    return sha256_of_bytes(content)


def read_tensors(path: Path, digest: str | None = None) -> dict[str, Tensor]:
    """Reads tensors that `write_tensors` wrote, onto the CPU.

    Args:
        digest: what `write_tensors` returned; a file with another one is refused.
    """
    content = read_file(path)
    if digest is not None and (found := sha256_of_bytes(content)) != digest:
        raise UserError(f"{path} is damaged or replaced: its SHA-256 is {found}, not {digest}")
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged, or is not a safetensors file: {error}") from error


def save_state(folder: Path, step: int, state: dict) -> Path:
    """Writes a resume state, and removes those that it replaces.

    The last of the older states stays. States of the same or of later steps, which exist if a run
    went back to an older state, are removed: this one is now the newest.

    Args:
        state: dictionaries, lists and tuples of tensors, numbers, strings and None.

    Returns:
        `state-<step>-<hash>.pt`; the hash is that of its content.
    """
    buffer = io.BytesIO()
    torch.save(plain(state, "state"), buffer)
    content = buffer.getvalue()
    path = folder / f"state-{step:08d}-{sha256_of_bytes(content)[:16]}.pt"
    write_file(path, content)
    older = [other for other in find_states(folder) if step_of(other) < step]
    for other in find_states(folder):
        if other != path and other not in older[: KEPT - 1]:
            with suppress(OSError):  # a leftover file does no harm
                other.unlink()
    remove_abandoned(folder)
    return path


def read_state(path: Path) -> dict:
    """Reads a state that `save_state` wrote, onto the CPU; refuses one that was changed since."""
    name = STATE_NAME.fullmatch(path.name)
    if not name:
        raise UserError(f"{path} is not a state: the name must be state-<step>-<hash>.pt")
    content = read_file(path)
    if sha256_of_bytes(content)[:16] != name[2]:
        raise UserError(f"{path} is damaged: its content does not match the hash in its name")
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:  # of many kinds: the content can be anything
        raise UserError(
            f"{path} was not written by this program: it cannot be read without running code that "
            f"it may contain ({type(error).__name__})"
        ) from error
    if not isinstance(state, dict):
        raise UserError(f"{path} was not written by this program: it does not contain a dictionary")
    return state


def latest_state(folder: Path, check: Callable[[dict], None] | None = None) -> dict | None:
    """Reads the newest undamaged state of a folder; warns of each damaged one.

    Args:
        check: raises `UserError` for a state that does not fit, which is then skipped too.

    Returns:
        The state, or None if the folder has none.
    """
    problems = []
    for path in find_states(folder):
        try:
            state = read_state(path)
            if check:
                check(state)
        except UserError as error:
            text = str(error)
            problems.append(text if str(path) in text else f"{path}: {text}")
            continue
        for problem in problems:
            warnings.warn(f"{problem}; using {path.name} instead", stacklevel=2)
        return state
    if problems:
        raise UserError(
            f"none of the states in {folder} can be used: {'; '.join(problems)}. Remove them to "
            "start from the beginning"
        )
    return None


def find_states(folder: Path) -> list[Path]:
    """The states in a folder, newest first."""
    states = [path for path in folder.glob("state-*.pt") if STATE_NAME.fullmatch(path.name)]
    return sorted(states, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    return int(STATE_NAME.fullmatch(path.name)[1])


def plain(value, where: str):
    """A copy of a state that can be read without pickle, and that is the same for equal states.

    torch.save writes the whole storage of a view, and writes a string in full or as a reference to
    an earlier one depending on which Python object it is.
    """
    if isinstance(value, Tensor):
        return compact(value)
    if isinstance(value, dict):
        return {plain(k, where): plain(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, list | tuple):
        items = [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if type(value) is str:
        return sys.intern(value)
    if value is None or type(value) in (bool, int, float):
        return value
    raise TypeError(f"{where} is a {type(value).__name__}, which cannot be read without pickle")


def compact(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU, with memory of its own."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
