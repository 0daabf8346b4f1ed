"""The prototype browser's views: figures, a text, and the same as data; no widgets.

    screen = show(session, "Move the centre")

Networks, images and prototypes are drawn by the functions that the notebooks use.
"""

import io
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from dpp import analysis
from dpp.analysis import EXPLAINED
from dpp.browser import workbench
from dpp.browser.drawings import Area, best, placement, prototype_card, render, score_change
from dpp.browser.session import Session
from dpp.browser.texts import centre_text, changes_text, describe_changes, run_text, verdict_text
from dpp.explanations import ClassScore
from dpp.figures import explanation_figures, paper_figures
from dpp.figures.marked_pictures import mark, shorten_name
from dpp.report import run_report
from dpp.system import files

COLOURS = 64  # of a small picture


@dataclass(frozen=True)
class Drawn:
    """A figure as PNG bytes, its text alternative, and the areas that react to a click."""

    png: bytes
    words: str
    areas: tuple[Area, ...] = ()


@dataclass(frozen=True)
class Screen:
    """One view's content.

    Args:
        first: the view's figure; None if it needs projected prototypes and there are none.
        second: a figure that is drawn on request.
        text: HTML.
        data: the same as the figures and the text, for JSON.
        sheet: the class score that the Image view explains.
        view: its name.
    """

    first: Drawn | None
    second: Drawn | None
    text: str
    data: dict
    sheet: ClassScore | None = None
    view: str = ""

    def picture(self) -> bytes:
        """Its figures in one PNG, one below the other."""
        drawn = [one.png for one in (self.first, self.second) if one]
        if len(drawn) == 1:
            return drawn[0]
        pages = [Image.open(io.BytesIO(png)).convert("RGB") for png in drawn]
        width = max((page.width for page in pages), default=1)
        sheet = Image.new("RGB", (width, sum(page.height for page in pages) or 1), "white")
        down = 0
        for page in pages:
            sheet.paste(page, (0, down))
            down += page.height
        content = io.BytesIO()
        sheet.save(content, "png")
        return content.getvalue()

    def small_picture(self) -> bytes:
        """The same in few colours, small enough to be saved in a notebook."""
        content = io.BytesIO()
        picture = Image.open(io.BytesIO(self.picture())).convert("RGB")
        picture.quantize(COLOURS).save(content, "png", optimize=True)
        return content.getvalue()


def show(session: Session, view: str) -> Screen:
    """The content of a view, one of `VIEWS`, for what the session has chosen."""
    screen = VIEWS[view](session)
    subject, image = session.subject, session.image
    about = {
        "view": view,
        "run": subject.network.name,
        "image": image[0] if isinstance(image, tuple) else image.id,
        "class": subject.names[session.label],
        "prototype": session.prototype,
    }
    return replace(screen, view=view, data=about | screen.data)


def export(session: Session, screen: Screen, folder: Path) -> tuple[Path, Path]:
    """Writes a screen as NAME.png and NAME.json, and returns their paths."""
    image = Path(screen.data["image"]).stem
    words = [screen.view.lower(), session.run, f"prototype {session.prototype}", f"image {image}"]
    name = "-".join("".join(c if c.isalnum() else "_" for c in word) for word in words)
    drawing, data = (Path(folder) / f"{name}.{kind}" for kind in ("png", "json"))
    files.write_file(drawing, screen.picture())
    files.write_json(data, screen.data)
    return drawing, data


def draw(figure: Figure, words: str) -> Drawn:
    png, areas = render(figure)
    return Drawn(png, words, areas)


def show_prototype(session: Session) -> Screen:
    """A prototype on its source image, its connections, and its nearest images."""
    network, names, number = session.subject.network, session.subject.names, session.prototype
    connections = session.subject.connections(number)
    seen = analysis.find_origin(network, number) if number in network.origins else None
    pixels = network.picture(network.records[seen.image]).pixels if seen else None
    title = f"Prototype {number} of {shorten_name(names[session.label])}"
    source = f"from image {seen.image}" if seen else "not projected: it has no source image"
    text = f"<b>{escape(title)}</b>, {escape(source)}."
    data = {"source": asdict(seen) if seen else None, "connections": connections.tolist()}
    card = prototype_card(seen, pixels, connections, session.label, names)
    first, second = draw(card, f"{title}, {source}: parts, patches and connections"), None
    if nearest := session.neighbours:
        every = (*nearest.train, *nearest.test)
        own = sum(one.label == nearest.label for one in every)
        text += f" {own} of its {len(every)} nearest images are of its own class."
        data["neighbours"] = asdict(nearest)
        pictures = {one.image: network.picture(network.records[one.image]).pixels for one in every}
        source = mark(pixels, seen) if seen else mark(pictures[every[0].image], every[0])
        near = explanation_figures.global_analysis(nearest, source, pictures, names)
        second = draw(near, f"The training and test images nearest to prototype {number}")
    return Screen(first, second, text, data)


def show_image(session: Session) -> Screen:
    """The prediction for an image, a class's score sheet, and one of its prototypes."""
    network, picture, names = session.subject.network, session.picture(), session.subject.names
    sheet, scores = session.sheet(), session.scores()
    matches = {match.prototype: match for match in sheet.matches}
    if session.prototype not in matches:  # the prototype that is shown has a row in the sheet
        session.choose_prototype(sheet.matches[0].prototype)
    first, second = None, None
    if source := session.source():
        match, title = matches[session.prototype], f"prototype {session.prototype}"
        pair = mark(picture.pixels, match), source, match.similarity
        words = f"The parts of {title} on the image and on its source"
        first = draw(paper_figures.comparison({title: pair}), words)
    if session.whole:
        reasoning = analysis.reason(network, picture, best(scores, EXPLAINED))
        words = "Why the image has its predicted class, and why not the next one"
        second = draw(run_report.draw(network, reasoning, picture.pixels), words)
    data = {
        "predicted": names[int(scores.argmax())],
        "scores": scores.tolist(),
        "sheet": asdict(sheet) | {"total": sheet.total},
        "warning": session.warning(),
    }
    text = verdict_text(picture, scores, names, data["warning"])
    return Screen(first, second, text, data, sheet)


def show_centre(session: Session) -> Screen:
    """A prototype with its centre at a cell of the image."""
    applied = session.placed()
    title = "prototype {} at row {}, column {}".format(session.prototype, *applied.match.centre)
    words = f"{title}: its parts on the image, the similarity map, each part's contribution"
    first = draw(placement(applied, session.picture().pixels, title), words)
    data = {"match": asdict(applied.match), "similarities": applied.similarities.tolist()}
    return Screen(first, None, centre_text(applied), data)


def show_changes(session: Session) -> Screen:
    """The class scores without and with the changes that are tried out."""
    network, picture, names = session.subject.network, session.picture(), session.subject.names
    changed = workbench.change(network, session.changes)
    before, after = (workbench.class_scores(one, picture) for one in (network, changed))
    first = draw(
        score_change(before, after, names), "The class scores without and with the changes"
    )
    listed = describe_changes(session.changes, names)
    was, now = (names[int(scores.argmax())] for scores in (before, after))
    data = {"changes": listed, "before": before.tolist(), "after": after.tolist()}
    return Screen(first, None, changes_text(listed, was, now), data)


def show_comparison(session: Session) -> Screen:
    """Two runs on one image: each one's prediction and best prototype."""
    pairs, texts, data = {}, [], {}
    for name in dict.fromkeys((session.run, session.other)):
        subject, picture, sheet = session.open(name), session.picture(name), session.sheet(name)
        scores = workbench.class_scores(subject.network, picture)
        match = sheet.matches[0]
        if source := session.source(name, match.prototype):
            pairs[name] = mark(picture.pixels, match), source, match.similarity
        warning, shown = session.warning(name), best(scores, EXPLAINED)
        texts.append(run_text(name, picture, scores, subject.names, shown, warning))
        data[name] = {"scores": scores.tolist(), "sheet": asdict(sheet), "warning": warning}
    words = f"The best prototype of {session.run} and of {session.other} on the image"
    first = draw(paper_figures.comparison(pairs), words) if pairs else None
    return Screen(first, None, f"<table><tr>{''.join(texts)}</tr></table>", {"runs": data})


VIEWS = {
    "Prototype": show_prototype,
    "Image": show_image,
    "Move the centre": show_centre,
    "What if": show_changes,
    "Compare runs": show_comparison,
}
