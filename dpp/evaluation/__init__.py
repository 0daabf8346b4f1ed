"""Published measures of prototype explanations, for every network with prototypes.

A family of measures is a function `measure(network, splits, *, seed, progress) -> list[Score]`;
`dpp.evaluation.table.FAMILIES` has them by name.
"""

from dpp.evaluation.scores import Score

__all__ = ["Score"]
