"""What the margin and the orthogonality loss change, in pairs of runs that are else equal."""

import pandas as pd

from dpp.analysis.latent_space import VARIED


def paired_effects(table: pd.DataFrame, change: str, value: str) -> pd.DataFrame:
    """The effect of switching one setting on, with the seed and the other setting equal.

    Args:
        table: of `latent_space.stage_one_table`.
        change: the column of the setting; its smallest value is off, its largest on.
        value: the column that it may have an effect on.

    Returns:
        A row for each `epoch` in which there are pairs: the mean effect, `change`; how many pairs
        have the same sign as that mean, `same sign`; and how many `pairs` there are.
    """
    others = [name for name in VARIED if name != change]
    off, on = table[change].min(), table[change].max()
    rows = {}
    for epoch, at in table.groupby("epoch") if off != on else ():
        wide = at.pivot(index=others, columns=change, values=value)
        effects = (wide[on] - wide[off]).dropna()
        same = int((effects * effects.mean() > 0).sum())
        rows[epoch] = {"change": effects.mean(), "same sign": same, "pairs": len(effects)}
    columns = ["change", "same sign", "pairs"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("epoch")


def describe(effects: pd.DataFrame, what: str, value: str, unit: str = "") -> list[str]:
    """A sentence for each epoch of `paired_effects`, such as for a list of findings."""
    return [
        f"{what} changes {value} by {row.change:+.2f}{f' {unit}' if unit else ''} before the "
        f"projection after epoch {epoch}, in the same direction in {row['same sign']:.0f} of "
        f"{row.pairs:.0f} pairs."
        for epoch, row in effects.iterrows()
    ]
