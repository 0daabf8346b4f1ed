"""Colours and files of all figures."""

from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib import rcParams
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

PICTURE_DPI = 80
rcParams["text.parse_math"] = False  # a class may be named $$: no text here is a formula


# Okabe and Ito's colours, which colour-blind people can tell apart, and a grey for the ninth part.
PART_COLOURS = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#CC79A7",
    "#0072B2",
    "#D55E00",
    "#F0E442",
    "#000000",
    "#999999",
)


def save(figure: Figure, path: Path, dpi: int = 100, colours: int | None = None) -> None:
    """Writes a PNG or PDF without the date and versions that would change its bytes each time.

    Args:
        figure: what to write.
        path: its ending says how.
        dpi: dots per inch.
        colours: how many a PNG keeps; all of them by default.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if colours and path.suffix == ".png":
        path.write_bytes(as_png(figure, dpi, colours))
        return
    undated = {"Software": None} if path.suffix == ".png" else {"CreationDate": None}
    figure.savefig(path, dpi=dpi, metadata=undated)


def as_png(figure: Figure, dpi: int = 100, colours: int = 256) -> bytes:
    """A PNG of few colours, a third as large: for notebooks with many pictures.

    Args:
        figure: what to draw.
        dpi: dots per inch.
        colours: how many, up to 256; those of parts, black and white are always among them.
    """
    drawn, kept = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, metadata={"Software": None})
    fixed = [round(255 * share) for name in (*PART_COLOURS, "white") for share in to_rgb(name)]
    palette = Image.new("P", (1, 1))
    with Image.open(drawn) as image:
        picture = image.convert("RGB")
    own = picture.quantize(colours - len(fixed) // 3, dither=Image.Dither.NONE).getpalette()
    palette.putpalette(fixed + own)
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(
        kept, format="png", optimize=True
    )
    return kept.getvalue()


def fewer_colours(picture: np.ndarray, colours: int, largest: int) -> np.ndarray:
    """A picture no larger than `largest` pixels a side, in so many colours."""
    image = Image.fromarray(picture)
    image.thumbnail((largest, largest))
    return np.asarray(image.quantize(colours, dither=Image.Dither.NONE).convert("RGB"))
