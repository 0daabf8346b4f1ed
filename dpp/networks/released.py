"""Where the authors' released code departs from their paper, each departure as a switch.

The paper is the default. `released` turns all switches on; `released:zero_outside,clipped_cosine`
turns on the ones that are named, so that the cost of each can be measured.
"""

from dpp.system.errors import UserError

SWITCHES = {
    "two_channels": "two extra channels of 1e-4 instead of one of 1e-5",
    "loose_length": "1e-4 added under the root of a length, and again to a prototype's length",
    "zero_outside": "plain zeros outside the map, so that samples there are shorter than r",
    "large_features": "the offset branch sees features 64 times as long",
    "damped_cosine": "the cosine divided by 1.01",
    "clipped_cosine": "ReLU on the cosine, after the margin",
    "offset_kernels": "kernels of K + 2 and K in the offset branch, for the 2x2 prototypes it has",
    "stacked_branch": "both of BBN's last blocks in series in the iNaturalist ResNet-50",
    "loss_weights": "separation 0.08 and cluster 0.8 instead of 0.01 and 0.1",
    "margin_in_separation": "cluster and separation see the scores with the margin",
    "mixed_orthogonality": "orthogonality between parts of mixed classes, not squared, joint stage",
    "mean_cross_entropy": "cross entropy averaged over the batch, not summed",
    "offset_schedule": "offsets at 1e-4 instead of 5e-4, rates x 0.2 instead of x 0.1",
}
EVERY = frozenset(SWITCHES)


def parse(variant: str) -> frozenset[str]:
    """The switches that are on: of `paper`, `released` or `released:name,name`."""
    kind, colon, names = variant.partition(":")
    if variant == "paper":
        return frozenset()
    if variant == "released":
        return EVERY
    switches = frozenset(name.strip() for name in names.split(",")) if names else frozenset()
    if kind != "released" or not colon or not switches or switches - EVERY:
        wrong = ", ".join(sorted(switches - EVERY)) or variant
        raise UserError(
            f"there is no variant {wrong!r}: choose paper, released, or released:NAME,NAME "
            f"of {', '.join(SWITCHES)}"
        )
    return switches
