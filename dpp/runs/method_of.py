"""The method that builds and trains an experiment: one of the paper's table, or an extension."""

from dpp.extensions import distinct_projection, many_classes, scaled_add_on, searching_parts
from dpp.methods.table import METHODS
from dpp.training.experiments import Experiment
from dpp.training.trainer import Method


def method_of(experiment: Experiment) -> Method:
    searches = experiment.model == "deformable" and experiment.deformation == "search"
    method = searching_parts.METHOD if searches else METHODS[experiment.model]
    if experiment.last_layer == "sparse":
        method = many_classes.METHOD
    if experiment.projection == "distinct":
        stages = distinct_projection.with_distinct_projection(method.stages)
        method = method._replace(stages=stages)
    if experiment.prototype_start == "scaled":
        method = scaled_add_on.with_scaled_start(method, experiment.model)
    return method
