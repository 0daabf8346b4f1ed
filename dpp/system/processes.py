"""Several processes that train one network: who is who, and what they tell one another.

`torchrun` starts them and `dpp.runs.several_processes` brings them together. With one process, the
functions here do nothing but call what they are given.
"""

import os
import socket
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, distributed

from dpp.system.errors import ReportedError, UserError

Result = TypeVar("Result")


def launched() -> bool:
    """Whether this is one of several processes that torchrun, or a scheduler, has started."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def count() -> int:
    """How many processes work together: 1 until they have joined."""
    joined = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if joined else 1


def rank() -> int:
    """The number of this process, from 0."""
    return distributed.get_rank() if count() > 1 else 0


def local_rank() -> int:
    """The number of this process among those on its machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0")) if count() > 1 else 0


def is_first() -> bool:
    """Whether this is the process that writes files and messages."""
    return rank() == 0


def gather(value: Result) -> list[Result]:
    """The values that all processes give, in their order."""
    values = [value] * count()
    if count() > 1:
        distributed.all_gather_object(values, value)
    return values


def from_first(function: Callable[[], Result]) -> Result:
    """What a function returns that the first process alone calls; its `UserError` is everybody's.

    The others wait for it.
    """
    if count() == 1:
        return function()
    answer, error = [None, None], None
    if is_first():
        try:
            answer[0] = function()
        except UserError as caught:
            error, answer[1] = caught, str(caught)
    distributed.broadcast_object_list(answer)
    if error:
        raise error
    if answer[1] is not None:
        raise ReportedError(answer[1])
    return answer[0]


def in_turn(function: Callable[[], Result]) -> Result:
    """Calls a function in the first process of each machine, then in the others.

    What the first keeps on the machine's disk, the others find there. A `UserError` of one process
    is everybody's.
    """
    if count() == 1:
        return function()
    result, problem = None, ""
    for turn in (True, False):
        if (local_rank() == 0) == turn:
            try:
                result = function()
            except UserError as error:
                problem = str(error)
        raise_together(problem)
    return result


def raise_together(problem: str) -> None:
    """Raises a `UserError` in all processes if one has a problem; the first process reports it."""
    problems = gather((problem, socket.gethostname()))
    for number, (text, host) in enumerate(problems):
        if text:
            where = f" (process {number} of {count()}, on {host})" if number else ""
            raise (UserError if is_first() else ReportedError)(text + where)


def largest(number: int) -> int:
    """The largest of the numbers that all processes give."""
    if count() == 1:
        return number
    value = torch.tensor(number)
    distributed.all_reduce(value, distributed.ReduceOp.MAX)
    return int(value)


def keep_highest(similarity: Tensor, image: Tensor, *found: Tensor) -> tuple[Tensor, ...]:
    """What was found of each of P prototypes by the process whose image is most similar.

    Of equally similar images the first counts, as where one process goes through all of them.

    Args:
        similarity: (P,), the highest that this process has seen.
        image: (P,), the number of the image.
        found: (P, ...) each, on any device.

    Returns:
        The same for all images, `similarity` and `image` first.
    """
    if count() == 1:
        return similarity, image, *found
    mine = torch.stack([similarity.double(), image.double()])
    all_pairs = [torch.empty_like(mine) for _ in range(count())]
    distributed.all_gather(all_pairs, mine)
    similarities, images = torch.stack(all_pairs).unbind(1)  # (processes, P)
    highest = similarities == similarities.amax(dim=0)
    won = images.where(highest, torch.inf).argmin(dim=0) == rank()  # (P,)
    kept = []
    for values in (similarity, image, *found):
        own = won.to(values.device).view(-1, *[1] * (values.dim() - 1))
        kept.append(torch.where(own, values, torch.zeros_like(values)).contiguous())
        distributed.all_reduce(kept[-1])  # all but one add zeros
    return tuple(kept)
