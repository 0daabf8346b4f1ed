"""What a network sees in one image, and where its prototypes come from (sections 3.4 and 3.5).

    network = Network.of(runs.open_run(folder))
    reasoning = reason(network, network.picture("bird.jpg"))

A part at latent place (row, column), whole or fractional, is the rectangle of the original image
with the sides of a cell (gamma, in an image of the network's own size) around what that place looks
at. The paper draws it at gamma times the place; what a cell looks at is half a cell further down
and right in a VGG, and about half a cell further up and left in a ResNet, whose padded strides
displace it (`dpp.networks.backbones.Backbone.cell_centres`). Boxes are drawn where cells look.

The results are in `dpp.explanations`; nothing here draws. One code path serves all
networks that have prototypes: each can `inspect` images and `find_parts` of prototypes on them.
"""

from dpp.analysis.network import Network, check_origin, read_origins
from dpp.analysis.reasoning import (
    EXPLAINED,
    explain,
    find_matches,
    find_origin,
    follow_tree,
    local_analysis,
    make_parts,
    reason,
)

__all__ = [
    "EXPLAINED",
    "Network",
    "check_origin",
    "explain",
    "find_matches",
    "find_origin",
    "follow_tree",
    "local_analysis",
    "make_parts",
    "read_origins",
    "reason",
]
