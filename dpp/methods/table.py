"""The methods by name: how each kind of network is built and trained from an experiment."""

from dpp.methods import deformable, plain_cnn, protopnet, prototree, tesnet

METHODS = {
    "deformable": deformable.METHOD,
    "cnn": plain_cnn.METHOD,
    "protopnet": protopnet.METHOD,
    "tesnet": tesnet.METHOD,
    "prototree": prototree.METHOD,
}
