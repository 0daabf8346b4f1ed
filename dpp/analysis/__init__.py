"""Explanations of one image, and the source images of prototypes (sections 3.4 and 3.5).

    network = Network.of(runs.open_run(folder))
    reasoning = reason(network, network.picture("bird.jpg"))

A part at latent place (row, column), whole or fractional, is drawn as a rectangle of the original
image, as large as a cell (gamma pixels of the network's input), around the centre of that place's
receptive field. The paper draws it at gamma times the place; the receptive field's centre is half a
cell further down and right in a VGG, and about half a cell further up and left in a ResNet, whose
padded strides displace it (`dpp.backbones.backbone.Backbone.cell_centres`).

The results are types of `dpp.explanations`; nothing here draws. The same code serves all networks
with prototypes: each can `inspect` images and `find_parts` of prototypes on them.
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
