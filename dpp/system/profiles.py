"""How much work a run does: `smoke`, `mini`, `photo` or `paper`."""

from dpp.system.errors import UserError

PROFILES = {
    "smoke": "every code path in seconds, for continuous integration; its numbers mean nothing",
    "mini": "the default: drawn images, slim networks, two CPU cores, nothing downloaded",
    "photo": "CUB-200-2011 and Stanford Dogs, full backbones frozen up to their last block, no GPU",
    "paper": "CUB-200-2011 and Stanford Dogs, full backbones, the paper's schedule, GPUs",
}


def check_profile(name: str) -> str:
    """Returns `name` if it is a profile; otherwise says which ones there are."""
    if name not in PROFILES:
        raise UserError(f"there is no profile {name!r}: choose one of {', '.join(PROFILES)}")
    return name
