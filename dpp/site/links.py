"""Whether the links of a built site lead somewhere, and whether pages load only its own files."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = {"img", "script", "link", "iframe", "source"}  # what a browser fetches without a click
PASSIVE = {"canonical", "edit", "alternate"}  # kinds of <link> that are not fetched


class _Page(HTMLParser):
    """The places of a page that can be linked to, its links, and what is wrong in itself."""

    def __init__(self, text: str):
        super().__init__()
        self.names, self.links, self.loaded, self.silent = set(), [], [], 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes) -> None:
        given = dict(attributes)
        self.names |= {given[key] for key in ("id", "name") if given.get(key)}
        target = given.get("href") or given.get("src")
        if target and not (tag == "link" and given.get("rel") in PASSIVE):
            (self.loaded if tag in LOADING else self.links).append(target)
        if tag == "img" and not given.get("alt"):
            self.silent += 1


def problems(folder: Path) -> list[str]:
    """What is wrong with the links and pictures of a site, a line for each.

    Links to other sites are not followed; a page that loads something from one is wrong, and so is
    a picture without a text in its place.
    """
    found = {path.resolve(): _Page(path.read_text()) for path in folder.rglob("*.html")}
    wrong = []
    for path, page in sorted(found.items()):
        name = path.relative_to(folder.resolve())
        if page.silent:
            wrong.append(f"{name}: {page.silent} pictures without a text")
        for target in page.loaded:
            if urlsplit(target).scheme in ("http", "https") or target.startswith("//"):
                wrong.append(f"{name} loads {target}")
        if name.name == "404.html":
            continue  # it is served from anywhere, and its links are absolute
        for target in page.links + page.loaded:
            if problem := _problem(target, path, found):
                wrong.append(f"{name}: {target} {problem}")
    return wrong


def _problem(target: str, path: Path, pages: dict) -> str:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return ""
    there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if there.is_dir():
        there /= "index.html"
    if not there.is_file():
        return "is not there"
    anchor = unquote(parts.fragment)
    if anchor and there in pages and not anchor.startswith("__"):  # the theme's own switches
        return "" if anchor in pages[there].names else "has no such place"
    return ""
