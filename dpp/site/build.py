"""Pages into a site: MkDocs with the Material theme, links checked, warnings are errors.

MkDocs rather than Jupyter Book: it is a Python package that needs no Node and fetches nothing while
it builds, its search works from a folder without a server, and what a theme loads can be kept to
the site's own files. Notebooks become pages by `dpp.site.chapters`, so that they look, are searched
and print as the other pages do.
"""

import logging
import re
import shutil
import tempfile
from html import unescape
from pathlib import Path

from dpp.site import links, pages
from dpp.site.demo import write_demo
from dpp.system import files
from dpp.system.errors import UserError
from dpp.system.paths import PACKAGE

CONFIGURATION = PACKAGE / "site" / "mkdocs.yml"
MATHEMATICS = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</(?:span|div)>', re.DOTALL
)
LARGEST = 25_000_000  # bytes of the whole site


def build(folder: Path) -> str:
    """Builds the site from the repository alone.

    Args:
        folder: is replaced, if it is a site or empty.

    Returns:
        What was built, in a line.

    Raises:
        UserError: MkDocs or the check of links has found something, or the folder holds other
            things; what was there is intact then.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and any(folder.iterdir()) and not (folder / "sitemap.xml").is_file():
        raise UserError(f"{folder} holds something other than a site: choose an empty folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as room:
        navigation = pages.write(Path(room))
        with files.folder_built_beside(folder.with_name(f"{folder.name}.new")) as unfinished:
            _run_mkdocs(Path(room), unfinished, navigation)
            write_demo(unfinished / "demo", home="../index.html")
            if wrong := links.problems(unfinished):
                raise UserError(f"{len(wrong)} links are broken: {'; '.join(wrong[:5])}")
            size = sum(path.stat().st_size for path in unfinished.rglob("*") if path.is_file())
            if size > LARGEST:
                raise UserError(f"the site has {size:,} bytes, more than {LARGEST:,}")
            count = sum(1 for _ in unfinished.rglob("*.html"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_name(f"{folder.name}.new").rename(folder)
    return f"{folder / 'index.html'}: {count} pages, {size / 1e6:.1f} MB, all links lead somewhere"


def _run_mkdocs(room: Path, out: Path, navigation: list) -> None:
    from mkdocs.commands.build import build as run
    from mkdocs.config import load_config
    from mkdocs.exceptions import MkDocsException

    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    try:
        configuration = load_config(
            str(CONFIGURATION), docs_dir=str(room), site_dir=str(out), nav=navigation, strict=True
        )
        run(configuration)
    except MkDocsException as error:
        raise UserError(f"the site was not built: {error or 'see the warnings above'}") from error


def mathematics(page: str) -> str:
    """A page whose formulas are MathML, which browsers draw by themselves.

    Args:
        page: HTML in which `pymdownx.arithmatex` has marked formulas.
    """
    from latex2mathml.converter import convert

    def formula(match: re.Match) -> str:
        kind, bracket, text = match.groups()
        shown = "block" if bracket == "[" else "inline"
        return f'<{kind} class="formula">{convert(unescape(text), display=shown)}</{kind}>'

    return MATHEMATICS.sub(formula, page)
