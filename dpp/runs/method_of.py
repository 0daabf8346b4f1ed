"""The method that builds and trains an experiment: one of the paper's table, or an extension."""

from dpp.methods.table import METHODS
from dpp.search import network as search
from dpp.training.experiments import Experiment
from dpp.training.trainer import Method


def method_of(experiment: Experiment) -> Method:
    if experiment.model == "deformable" and experiment.deformation == "search":
        return search.METHOD
    return METHODS[experiment.model]
