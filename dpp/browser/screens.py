"""The prototype browser's views: what the page draws, a text, and the same as data; no widgets.

    screen = show(session, "Image")

The page draws from `Screen.pairs` and the texts. `first` and `second` are the same as figures, for
files and for viewers without a kernel: they are drawn by matplotlib when someone asks for them.
"""

import io
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath

from matplotlib.figure import Figure
from PIL import Image

from dpp import analysis
from dpp.analysis import EXPLAINED
from dpp.browser import texts, workbench
from dpp.browser.drawings import best, placement, prototype_card, render, score_change
from dpp.browser.pair_figure import patch_pairs
from dpp.browser.scenes import Source, heat_scene, pair_scene
from dpp.browser.session import Session
from dpp.data.pictures import Picture
from dpp.explanations import ClassScore, Match, Sighting
from dpp.figures import explanation_figures, paper_figures
from dpp.figures.marked_pictures import mark, number_text, shorten_image, shorten_name
from dpp.report import run_report
from dpp.system import files

COLOURS = 192  # of a small picture


@dataclass(frozen=True)
class Drawn:
    """A figure that is drawn when its PNG bytes are asked for, and its text alternative."""

    make: Callable[[], Figure]
    words: str

    @cached_property
    def png(self) -> bytes:
        return render(self.make())


@dataclass(frozen=True)
class Pair:
    """A prototype on two pictures, for the page.

    Args:
        scene: see `scenes.pair_scene`.
        here: the image.
        there: the prototype's source image.
        heat: see `scenes.heat_scene`; empty if the centre cannot be moved.
    """

    scene: dict
    here: Picture | None
    there: Picture | None
    heat: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Screen:
    """One view's content.

    Args:
        first: the view as a figure; None if it needs projected prototypes and there are none.
        second: another figure, below it in files.
        text: HTML.
        data: the same as the figures and the text, for JSON.
        sheet: the class score that the Image view explains.
        pairs: prototypes on two pictures, for the page.
        view: its name.
    """

    first: Drawn | None
    second: Drawn | None
    text: str
    data: dict
    sheet: ClassScore | None = None
    pairs: tuple[Pair, ...] = ()
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


def export(session: Session, screen: Screen, folder: Path, kind: str) -> Path:
    """Writes a screen as a file and returns its path; the kind is "png" or "json"."""
    path = export_path(session, screen, folder, screen.view.lower()).with_suffix(f".{kind}")
    if kind == "png":
        files.write_file(path, screen.picture())
    else:
        files.write_json(path, screen.data)
    return path


def export_reasoning(session: Session, screen: Screen, folder: Path) -> Path:
    """Writes the reasoning for the predicted class and the next one as a PNG file."""
    network, picture = session.subject.network, session.picture()
    reasoning = analysis.reason(network, picture, best(session.scores(), EXPLAINED))
    path = export_path(session, screen, folder, "reasoning").with_suffix(".png")
    files.write_file(path, render(run_report.draw(network, reasoning, picture.pixels)))
    return path


def export_path(session: Session, screen: Screen, folder: Path, what: str) -> Path:
    image = PurePath(screen.data["image"]).stem
    words = [what, session.run, f"prototype {session.prototype}", f"image {image}"]
    return Path(folder) / "-".join("".join(c if c.isalnum() else "_" for c in w) for w in words)


def make_pair(
    session: Session, run: str, match: Match | Sighting, source: Source | None, caption: str
) -> Pair:
    """A prototype on the session's image and on its source."""
    picture, names = session.picture(run), session.open(run).names
    there = f"prototype {match.prototype} of {shorten_name(names[match.label])}"
    if source:
        there += f", image {shorten_image(source[0].image, 20)}"
    titles = f"this image, {shorten_image(picture.name)}", there
    scene = pair_scene(picture, match, source, titles=titles, caption=caption)
    return Pair(scene, picture, source[1] if source else None)


def show_image(session: Session) -> Screen:
    """The prediction for an image, a class's score sheet, and one of its prototypes."""
    picture, names = session.picture(), session.subject.names
    sheet, scores = session.sheet(), session.scores()
    matches = {match.prototype: match for match in sheet.matches}
    fresh = session.explained is None and session.centre is None
    if fresh or session.prototype not in matches:  # what is shown has a row in the sheet
        session.choose_prototype(sheet.matches[0].prototype)
    source, match = session.source(), matches[session.prototype]
    caption, second = f"Similarity {number_text(match.similarity, 3)}", None
    applied = session.placed() if session.movable else None
    if applied:
        moved = replace(applied.match, connection=match.connection, points=match.points)
        match, caption = moved, texts.place_text(applied)
    pair = make_pair(session, session.run, match, source, caption)
    data = {
        "predicted": names[int(scores.argmax())],
        "scores": scores.tolist(),
        "sheet": asdict(sheet) | {"total": sheet.total},
        "warning": session.warning(),
        "match": asdict(match),
    }
    if applied:
        scene = pair.scene | {"cell": list(match.centre)}
        pair = replace(pair, scene=scene, heat=heat_scene(applied, picture))
        data["similarities"] = applied.similarities.tolist()
    words = f"The parts of prototype {session.prototype} on the image and on its source"
    first = Drawn(lambda: patch_pairs(picture, match, source, sheet), words)
    if session.centre:
        title = "prototype {} at row {}, column {}".format(session.prototype, *match.centre)
        second = Drawn(
            lambda: placement(applied, picture.pixels, title), f"The similarity map of the {title}"
        )
    text = texts.verdict_text(picture, scores, names, data["warning"])
    return Screen(first, second, text, data, sheet, (pair,))


def show_prototype(session: Session) -> Screen:
    """A prototype on its source image, its connections, and its nearest images."""
    names, number = session.subject.names, session.prototype
    connections, source = session.subject.connections(number), session.source()
    seen, picture = source or (None, None)
    groups = session.subject.duplicates_of(session.label)
    (equal,) = (group for group in groups if number in group)
    text = texts.prototype_text(number, names[session.label], seen and seen.image, equal)
    data = {
        "source": asdict(seen) if seen else None,
        "connections": connections.tolist(),
        "duplicates": groups,
    }
    pixels = picture.pixels if picture else None
    words = f"Prototype {number} of {shorten_name(names[session.label])}: parts and connections"
    first = Drawn(lambda: prototype_card(seen, pixels, connections, session.label, names), words)
    second = None
    if nearest := session.neighbours:
        every = (*nearest.train, *nearest.test)
        own = sum(one.label == nearest.label for one in every)
        text += f"; {own} of its {len(every)} nearest images are of its own class"
        data["neighbours"] = asdict(nearest)
        words = f"The training and test images nearest to prototype {number}"
        second = Drawn(lambda: draw_neighbours(session, nearest, source), words)
    pairs = ()
    if seen:
        titles = f"source image {shorten_image(seen.image)}", ""
        scene = pair_scene(picture, seen, None, titles=titles, caption="")
        pairs = (Pair(scene | {"alone": True}, picture, None),)
    return Screen(first, second, f"{text}.", data, pairs=pairs)


def draw_neighbours(session: Session, nearest, source: Source | None) -> Figure:
    network, every = session.subject.network, (*nearest.train, *nearest.test)
    pictures = {one.image: network.picture(network.records[one.image]).pixels for one in every}
    first = (every[0], pictures[every[0].image])
    seen, pixels = (source[0], source[1].pixels) if source else first
    names = session.subject.names
    return explanation_figures.global_analysis(nearest, mark(pixels, seen), pictures, names)


def show_changes(session: Session) -> Screen:
    """The class scores without and with the changes that are tried out."""
    network, picture, names = session.subject.network, session.picture(), session.subject.names
    before = session.scores()
    after = workbench.class_scores(workbench.change(network, session.changes), picture)
    words = "The class scores without and with the changes"
    first = Drawn(lambda: score_change(before, after, names), words)
    listed = texts.describe_changes(session.changes, names)
    was, now = (names[int(scores.argmax())] for scores in (before, after))
    shown = sorted({*best(before, 5), *best(after, 5)}, key=lambda label: -before[label])
    bars = [(names[one], {"before": before[one], "after": after[one]}) for one in shown]
    text = texts.changes_text(listed, was, now) + texts.chart(bars)
    data = {"changes": listed, "before": before.tolist(), "after": after.tolist()}
    return Screen(first, None, text, data)


def show_comparison(session: Session) -> Screen:
    """Two runs on one image: each one's prediction and best prototype."""
    drawn, cells, pairs, data = {}, [], [], {}
    for name in dict.fromkeys((session.run, session.other)):
        subject, picture, sheet = session.open(name), session.picture(name), session.sheet(name)
        scores, match = session.scores(name), sheet.matches[0]
        words = f"prototype {match.prototype} of {shorten_name(sheet.name)}"
        source = session.source(name, match.prototype)
        if source:
            marked = mark(picture.pixels, match), mark(source[1].pixels, source[0])
            drawn[f"{name}, {words}"] = *marked, match.similarity
        caption = f"{name}, {words}: similarity {number_text(match.similarity, 3)}"
        pairs.append(make_pair(session, name, match, source, caption))
        warning = session.warning(name)
        cells.append(texts.run_text(name, words, picture, scores, subject.names, warning))
        data[name] = {"scores": scores.tolist(), "sheet": asdict(sheet), "warning": warning}
        data[name]["prototype"] = match.prototype
    words = f"The best prototype of {session.run} and of {session.other} on the image"
    first = Drawn(lambda: paper_figures.comparison(drawn), words) if drawn else None
    text = f'<table width="100%"><tr>{"".join(cells)}</tr></table>'
    return Screen(first, None, text, {"runs": data}, pairs=tuple(pairs))


def show_marks(session: Session) -> Screen:
    """The prototypes that are marked to be kept or forgotten, and what refitting did."""
    marks, done = session.run_marks.by_prototype, session.refits.get(session.run)
    labels, names = session.subject.network.labels, session.subject.names
    text = texts.marks_text(marks, labels, names, done)
    listed = [{"prototype": number} | mark._asdict() for number, mark in sorted(marks.items())]
    data = {"marks": listed, "refit": asdict(done) if done else None}
    return replace(show_prototype(session), text=text, data=data, second=None, pairs=())


VIEWS = {
    "Image": show_image,
    "Prototype": show_prototype,
    "What if": show_changes,
    "Compare runs": show_comparison,
    "Keep or forget": show_marks,
}
