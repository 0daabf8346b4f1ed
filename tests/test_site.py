"""The site: notebooks as pages, formulas, links; and the built site in Chromium."""

import nbformat
import pytest
from chromium import IN_CHROMIUM, PATIENCE

from dpp.paper import tables
from dpp.site import build, chapters, links, pages
from dpp.system.errors import UserError
from dpp.system.paths import NOTEBOOKS, ROOT

v4 = nbformat.v4
PIXEL = (  # a picture of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


def notebook(tmp_path, *outputs):
    cells = [
        v4.new_markdown_cell("# Title\n\n## A `bird` & more"),
        v4.new_code_cell("x = 1\n\ny = 2", outputs=list(outputs)),
    ]
    path = tmp_path / "01_example.ipynb"
    nbformat.write(v4.new_notebook(cells=cells), path)
    return path


def page_of(tmp_path, *outputs) -> str:
    page = tmp_path / "pages" / "01_example.md"
    chapters.write(notebook(tmp_path, *outputs), page)
    return page.read_text()


def test_chapter_has_texts_folded_code_and_outputs(tmp_path):
    table = "<table id='T_table'>\n\n<tr></tr></table>"
    page = page_of(
        tmp_path,
        v4.new_output("display_data", {"image/png": PIXEL, "text/plain": "<Figure>"}),
        v4.new_output("display_data", {"text/html": table, "text/plain": "x"}),
        v4.new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m\n"),
    )
    assert page.startswith("# Title\n\n## A `bird` & more\n\n??? code")
    assert "    x = 1\n\n    y = 2\n" in page
    assert "![Figure: A bird &amp; more](01_example/1.png)" in page
    assert (tmp_path / "pages" / "01_example" / "1.png").read_bytes()[1:4] == b"PNG"
    assert "<table id='T_1'>\n<tr></tr></table>" in page  # no empty line, a name of its own
    assert "```text\nred\n```" in page and "<Figure>" not in page


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (v4.new_output("error", ename="ValueError", evalue="", traceback=[]), "a cell that failed"),
        (v4.new_output("display_data", {"video/mp4": ""}), "cannot show: video/mp4"),
    ],
)
def test_chapter_that_cannot_be_shown_is_refused(tmp_path, output, message):
    with pytest.raises(UserError, match=message):
        page_of(tmp_path, output)


def test_formulas_become_mathml():
    text = '<p><span class="arithmatex">\\(a &lt; \\hat z\\)</span> and '
    text += '<div class="arithmatex">\\[\\sqrt{\\rho}\\]</div></p>'
    page = build.mathematics(text)
    assert "arithmatex" not in page and page.count("<math") == 2
    assert 'display="block"' in page and "<msqrt>" in page and "&#x0003C;" in page


def test_pages_hold_every_notebook_document_and_table(tmp_path):
    navigation = pages.write(tmp_path)
    listed = str(navigation)
    for path in (*NOTEBOOKS.glob("[0-9]*.ipynb"), *(ROOT / "docs").glob("*.md")):
        place = "index.md" if path.stem == "index" else f"{path.parent.name}/{path.stem}.md"
        assert place in listed and (tmp_path / place).is_file()
    results = (tmp_path / "results.md").read_text()
    assert all(f"## {title}" in results for title in tables.TITLES.values())
    assert results.count("<table") == len(tables.TITLES)
    assert "68.3" in results and "not run" in results
    text = (tmp_path / "docs" / "measures.md").read_text()
    assert "(../notebooks/14_evaluate.md)" in text and ".ipynb" not in text
    assert "api/networks.md#dpp.networks.model" not in text
    assert (tmp_path / "results" / "mini" / "figures" / "bird_in_two_poses.png").is_file()


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.html").write_text('<p id="here">')
    (tmp_path / "index.html").write_text(
        '<a href="sub/other.html#here">a</a><a href="sub/other.html#there">b</a>'
        '<a href="gone.html">c</a><img src="x.png"><a href="https://example.org">d</a>'
        '<script src="https://example.org/x.js"></script><link rel="canonical" href="nowhere">'
    )
    assert links.problems(tmp_path) == [
        "index.html: 1 pictures without a text",
        "index.html loads https://example.org/x.js",
        "index.html: sub/other.html#there has no such place",
        "index.html: gone.html is not there",
        "index.html: x.png is not there",
    ]


def test_folder_that_is_no_site_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="choose an empty folder"):
        build.build(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


# In Chromium


def in_chromium(test):
    for mark in IN_CHROMIUM:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site, from the repository."""
    folder = tmp_path_factory.mktemp("site") / "site"
    assert "all links lead somewhere" in build.build(folder)
    return folder


@in_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_page_loads_without_errors_and_fits(site, chromium, width, scheme):
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else 0)
    page.on("pageerror", lambda error: said.append(str(error)))
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":
            continue
        page.goto(path.as_uri(), timeout=PATIENCE)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert (said, wide <= width) == ([], True), path
    context.close()


@in_chromium
def test_search_works_without_a_server(site, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "docs" / "paper.html").as_uri())
    page.wait_for_load_state("networkidle")  # the search has read its index
    page.click(".md-search__input")
    page.keyboard.type("orthogonality")
    page.wait_for_selector(".md-search-result__meta >> text=matching documents", timeout=PATIENCE)
    page.click(".md-search-result__item a")
    page.wait_for_selector("article >> text=/orthogonality/i", timeout=PATIENCE)
    page.close()


@in_chromium
def test_tables_sort_by_click_and_by_key(site, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "results.html").as_uri())
    heading = page.locator("table.sortable").first.locator("th").nth(1)
    cells = page.locator("table.sortable").first.locator("tbody td:nth-child(2)")

    def values() -> list[float]:
        return [float(text.rstrip("*")) for text in cells.all_inner_texts()]

    before = values()
    heading.click()
    assert values() == sorted(before, reverse=True) != before
    heading.focus()
    page.keyboard.press("Enter")
    assert values() == sorted(before) and heading.get_attribute("aria-sort") == "ascending"
    page.close()


CONTRAST = """() => {
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)|transparent/.test(c)) return c;
    } return "rgb(255, 255, 255)"; };
  const ratio = (e) => { const a = light(getComputedStyle(e).color), b = light(behind(e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
  return Object.fromEntries(["article p", "article a", "h1", ".md-tabs__link", ".md-nav__link",
    "details.code > summary", ".md-search__input"].map((s) => [s, document.querySelector(s)])
    .filter(([, e]) => e).map(([s, e]) => [s, ratio(e)]));
}"""


@in_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out(site, chromium, scheme):
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto((site / "notebooks" / "00_start_here.html").as_uri())
    measured = page.evaluate(CONTRAST)
    assert len(measured) >= 5 and min(measured.values()) >= 4.5, measured
    context.close()
