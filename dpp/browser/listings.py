"""What can be chosen in a prototype browser, as items with thumbnails (`elements.Thumbs`)."""

from pathlib import PurePath

from dpp.browser.controls import EVERY
from dpp.browser.session import Session
from dpp.figures.marked_pictures import number_text, shorten_image, shorten_name


def class_options(session: Session) -> list[tuple[str, int]]:
    """Classes whose test images can be listed, and all of them together."""
    names = [(shorten_name(name), label) for label, name in enumerate(session.subject.names)]
    return [*names, ("all classes", EVERY)]


def classes(session: Session, search: str) -> list[dict]:
    """The classes whose names contain all words of a text."""
    names, run = session.subject.names, session.run
    return [
        {"key": label, "title": shorten_name(names[label], 40), "picture": ["class", run, label]}
        for label in session.subject.find_classes(search)
    ]


def class_title(session: Session) -> dict:
    """The chosen class."""
    label, many = session.label, len(session.subject.prototypes_of(session.label))
    return {
        "title": shorten_name(session.subject.names[label], 40),
        "note": f"prototype {session.prototype}, one of {many}",
        "picture": ["class", session.run, label],
    }


def images(session: Session, label: int | None, mistakes: bool) -> list[dict]:
    """Test images of a class, or of all; with their predicted classes where these are known."""
    names, items = session.subject.names, []
    for record in session.subject.test.records:
        if label is not None and record.label != label:
            continue
        predicted = session.predicted(record)
        wrong = predicted is not None and predicted != record.label
        if mistakes and not wrong:
            continue
        title = PurePath(record.id).name
        item = {"key": record.id, "title": title, "picture": ["image", session.run, record.id]}
        if predicted is not None:
            item["note"] = f"predicted {shorten_name(names[predicted])}"
            item["words"] = f"{title}: {item['note']}, {'incorrect' if wrong else 'correct'}"
        items.append(item)
    return items


def image_title(session: Session) -> dict:
    """The chosen image."""
    picture = ["image", session.run, session.image_key]
    if isinstance(session.image, tuple):
        width, height = session.picture().size
        note = f"your own picture, {width} × {height}"
        return {"title": session.image[0], "note": note, "picture": picture}
    names, label = session.subject.names, session.image.label
    name = shorten_name(names[label]) if 0 <= label < len(names) else "unknown class"
    return {
        "title": f"image {shorten_image(session.image.id, 34)}",
        "note": f"image of {name}",
        "picture": picture,
    }


def gallery(session: Session, groups: list[list[int]]) -> list[dict]:
    """A class's prototypes, equal ones as one item."""
    items, marks = [], session.run_marks.by_prototype
    for group in groups:
        item = {
            "key": group[0],
            "title": ", ".join(map(str, group)),
            "picture": ["prototype", session.run, group[0]],
            "words": f"Prototype {group[0]}",
        }
        if len(group) > 1:
            item["badge"] = f"{len(group)} equal"
            item["words"] = f"Prototypes {item['title']}: equal"
        if group[0] in marks:
            item["mark"] = marks[group[0]].kind
            item["note"] = marks[group[0]].reason or marks[group[0]].kind
        items.append(item)
    return items


def nearest(session: Session) -> list[dict]:
    """The images nearest to the chosen prototype; none before they are looked for."""
    found = session.neighbours
    if found is None:
        return []
    items, number = [], session.prototype
    for split in ("train", "test"):
        for place, seen in enumerate(getattr(found, split)):
            own = "own class" if seen.label == found.label else "other class"
            name = shorten_name(session.subject.names[seen.label])
            items.append(
                {
                    "key": seen.image,
                    "title": f"{number_text(seen.similarity, 3)}, {split}",
                    "note": f"{own}: {name}",
                    "picture": ["near", session.run, number, split, place],
                }
            )
    return items
