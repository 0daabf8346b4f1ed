"""Where the authors' released code departs from their paper, each departure as a switch.

The paper is the default. `--variant released` turns all switches on;
`--variant released:zero_outside,clipped_cosine` turns on the named ones, so that the effect of each
can be measured.
"""

from dataclasses import dataclass, field, fields

from dpp.system.errors import UserError


def _switch(help: str) -> bool:
    return field(default=False, metadata={"help": help})


@dataclass(frozen=True)
class ReleasedSwitches:
    """The departures from the paper that are on; none by default."""

    two_channels: bool = _switch("two extra channels of 1e-4 instead of one of 1e-5")
    loose_length: bool = _switch(
        "1e-4 added under the root of a length, and again to a prototype's length"
    )
    zero_outside: bool = _switch("zeros outside the map, so that samples there are shorter than r")
    large_features: bool = _switch("the offset branch sees features 64 times as long")
    damped_cosine: bool = _switch("the cosine divided by 1.01")
    clipped_cosine: bool = _switch("ReLU on the cosine, after the margin")
    offset_kernels: bool = _switch("kernels of K + 2 and K in the offset branch, for 2x2 alone")
    stacked_branch: bool = _switch(
        "both of BBN's last blocks in series in the iNaturalist ResNet-50"
    )
    loss_weights: bool = _switch("separation 0.08 and cluster 0.8 instead of 0.01 and 0.1")
    margin_in_separation: bool = _switch("cluster and separation see the scores with the margin")
    mixed_orthogonality: bool = _switch(
        "orthogonality between parts of mixed classes, not squared, joint stage only"
    )
    mean_cross_entropy: bool = _switch("cross entropy averaged over the batch, not summed")
    offset_schedule: bool = _switch("offsets at 1e-4 instead of 5e-4, rates x 0.2 instead of x 0.1")


NAMES = tuple(entry.name for entry in fields(ReleasedSwitches))
PAPER = ReleasedSwitches()
EVERY = ReleasedSwitches(**dict.fromkeys(NAMES, True))


def parse(variant: str) -> ReleasedSwitches:
    """The switches of `paper`, `released` or `released:NAME,NAME`."""
    if variant == "paper":
        return PAPER
    if variant == "released":
        return EVERY
    kind, _, listed = variant.partition(":")
    names = [name.strip() for name in listed.split(",")] if listed else []
    unknown = sorted(set(names) - set(NAMES))
    if kind != "released" or not names or unknown:
        wrong = ", ".join(unknown) or variant
        raise UserError(
            f"there is no variant {wrong!r}: choose paper, released, or released:NAME,NAME "
            f"of {', '.join(NAMES)}"
        )
    return ReleasedSwitches(**dict.fromkeys(names, True))
