"""The site's pages as Markdown, gathered from the repository: where each comes from, and its place.

The folder is laid out as the repository is, so that links between documents, notebooks and pictures
need no change but for the endings of notebooks.
"""

import ast
import re
import shutil
from pathlib import Path

from dpp.paper import layout, tables
from dpp.paper.regenerate import ONLY, RegeneratedTable
from dpp.site import chapters
from dpp.system.paths import NOTEBOOKS, PACKAGE, RESULTS, ROOT

DOCS = ROOT / "docs"
ASSETS = PACKAGE / "site" / "assets"
HOW_TO = (
    *("own_images", "training", "mini_profile", "photo_profile", "paper_profile"),
    *("several_devices", "cluster"),
    *("explanations", "measures", "steering", "sharing"),
)
LOOK_UP = ("equations", "operator", "live_demo")
LINK = re.compile(r"(\]\()((?:\.\./)*)([^)#:\s]+)((?:#[^)]*)?\))")
PICTURE = re.compile(r"\]\(([^)\s]+\.png)\)")


def write(folder: Path) -> list:
    """Writes all pages and what they show.

    Args:
        folder: empty.

    Returns:
        The navigation, as MkDocs takes it.
    """
    shutil.copytree(ASSETS, folder / "assets")
    (folder / "demo").mkdir()
    (folder / "demo" / "index.html").touch()  # a place for links; the demo takes it
    for name in ("paper", "differences", *HOW_TO, *LOOK_UP):
        _copy(DOCS / f"{name}.md", folder, folder / "docs" / f"{name}.md")
    _copy(DOCS / "index.md", folder, folder / "index.md")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        _copy(ROOT / name, folder, folder / name)
    notebooks = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
    for notebook in notebooks:
        page = folder / "notebooks" / f"{notebook.stem}.md"
        chapters.write(notebook, page)
        _adapt(page, notebook.parent, folder)
    (folder / "results.md").write_text(results_page())
    rooms = _write_reference(folder / "api")
    return [
        {
            "Start": [
                "index.md",
                {"The paper explained": "docs/paper.md"},
                {"Live demo": "demo/index.html"},
            ]
        },
        {"Notebooks": [f"notebooks/{notebook.stem}.md" for notebook in notebooks]},
        {"Results": ["results.md", {"Differences from the paper": "docs/differences.md"}]},
        {"How to": [f"docs/{name}.md" for name in HOW_TO]},
        {
            "Reference": [
                *(f"docs/{name}.md" for name in LOOK_UP),
                {"API": rooms},
                "CONTRIBUTING.md",
                "CHANGELOG.md",
            ]
        },
    ]


def _copy(source: Path, folder: Path, page: Path) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, page)
    _adapt(page, source.parent, folder)


def _adapt(page: Path, origin: Path, folder: Path) -> None:
    """Makes the links of a page those of the site, and copies the pictures that it shows.

    Args:
        page: a copy of a document.
        origin: the folder that the document's links start from.
        folder: of all pages.
    """
    text = page.read_text()
    for name in PICTURE.findall(text):
        picture = (origin / name).resolve()
        if picture.is_file():
            copy = folder / picture.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, copy)

    def adapted(match: re.Match) -> str:
        opening, above, path, end = match.groups()
        target = (origin / above / path).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            return match[0]  # a picture of the page itself, or wrong: MkDocs will say so
        place = target.relative_to(ROOT)
        up = "../" * len(page.parent.relative_to(folder).parts)
        if place.parts[0] == "dpp" and target.suffix == ".py":
            room = place.parts[1].removesuffix(".py")
            return f"{opening}{up}api/{room}.md#{'.'.join(place.with_suffix('').parts)})"
        if target.suffix in (".md", ".ipynb", ".png"):
            ending = ".md" if target.suffix == ".ipynb" else target.suffix
            return f"{opening}{up}{place.with_suffix(ending)}{end}"
        return f"{opening}{up}results.md)"

    page.write_text(LINK.sub(adapted, text))


def results_page() -> str:
    """The paper's tables with the paper's, photo's and mini's numbers, sortable."""
    pieces = [
        "---\nhide: [toc]\n---\n\n# Results",
        "Accuracies in percent: what the **paper** prints; **photo**, its photographs and full "
        "backbones with ImageNet weights on a CPU, all blocks but the last frozen; **mini**, drawn "
        "images and slim networks, of which only the order of rows can be compared. A click on a "
        "heading sorts. [How photo is made](docs/photo_profile.md), "
        "[known differences from the paper](docs/differences.md).",
    ]
    for name, title in tables.TITLES.items():
        frames = RegeneratedTable(name).frames
        pieces += [f"## {title}", _sortable(name, layout.arrange(*frames))]
        pieces.append(f"{layout.caption(*frames)} From [{ONLY[name]}](notebooks/{ONLY[name]}.md).")
    count = sum(1 for _ in (RESULTS / "photo" / "runs.csv").open()) - 1
    pieces.append(
        f"Each number is computed from `runs.csv` in `results/photo` ({count} runs) and "
        "`results/mini` of the repository, which name experiment, versions and commit of each run."
    )
    return "\n\n".join(pieces) + "\n"


def _sortable(name: str, page) -> str:
    headings = layout.HEADINGS[name]
    if len(page.index.get_level_values("group").unique()) == 1:
        headings = headings[-len(layout.row_names(name, "", page.index[0][2])) :]
    cells = [f"<th>{heading}</th>" for heading in headings]
    cells += [f"<th>{column}<br><small>{source}</small></th>" for column, source in page.columns]
    lines = ['<div class="wide" tabindex="0"><table class="sortable">']
    lines += ["<thead><tr>", *cells, "</tr></thead>", "<tbody>"]
    for (_, group, row), entries in page.iterrows():
        names = layout.row_names(name, group, row)[-len(headings) :]
        texts = [f"<td>{one}</td>" for one in names]
        for entry in entries:
            text = f"<b>{entry.text}</b>" if entry.bold else entry.text
            texts.append(f'<td class="{"muted" if entry.muted else "number"}">{text}</td>')
        lines.append(f"<tr>{''.join(texts)}</tr>")
    return "\n".join([*lines, "</tbody>", "</table></div>"])


def _write_reference(folder: Path) -> list:
    """A page for each room, with an entry for each of its modules that has a docstring."""
    folder.mkdir()
    entries = []
    for path in sorted(PACKAGE.iterdir()):
        modules = sorted(path.rglob("*.py")) if path.is_dir() else [path] * (path.suffix == ".py")
        modules = [module for module in modules if _documented(module)]
        if not modules or path.stem.startswith("_"):
            continue
        names = [_dotted(module) for module in modules]
        about = f"# dpp.{path.stem}\n\n" + "\n\n".join(f"::: {name}" for name in names) + "\n"
        (folder / f"{path.stem}.md").write_text(about)
        entries.append({f"dpp.{path.stem}": f"api/{path.stem}.md"})
    return entries


def _documented(module: Path) -> bool:
    return module.stem != "__main__" and bool(ast.get_docstring(ast.parse(module.read_text())))


def _dotted(module: Path) -> str:
    parts = module.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
