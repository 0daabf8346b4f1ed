"""All families of measures, by name."""

from collections.abc import Callable

from dpp.evaluation.scores import Score

FAMILIES: dict[str, Callable[..., list[Score]]] = {}
