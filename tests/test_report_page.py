"""The report in a real browser: on a phone and on a desk, light and dark, and printed.

Screenshots go to `screenshots/`, which git ignores: look at them.
"""

from contextlib import contextmanager

import pytest
from chromium import IN_CHROMIUM, SCREENSHOTS
from test_runs import tiny
from tiny_data import write_folder

from dpp import runs
from dpp.report import run_report

pytestmark = [*IN_CHROMIUM, pytest.mark.usefixtures("one_thread")]
LONG = "american_goldfinch_photographed_in_the_garden_behind_the_house_<i>at_noon</i>"
FILE = "IMG_20230412_153012_" + "an_unbroken_name_of_a_photograph_" * 4
SHORT = {"epochs": 1, "warm_epochs": 1, "second_warm_epochs": 0, "project_after": (1,)}
# Elements that reach out of the window; what an SVG cuts off does not, nor does what is not shown.
OUTSIDE = """
[...document.querySelectorAll("body *:not(svg *)")]
  .filter(one => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 0.5)
  .map(one => one.tagName + "." + one.getAttribute("class"))
"""
# Text that is wider than what it is in.
CUT_OFF = """
[...document.querySelectorAll("main *, header *")]
  .filter(one => !one.closest("svg") && one.scrollWidth > one.clientWidth + 1
    && getComputedStyle(one).display != "inline" && one.checkVisibility())
  .map(one => one.tagName + "." + one.getAttribute("class"))
"""
# Pictures that are shown without any content.
EMPTY = """
[...document.querySelectorAll("svg.shot")].filter(one => {
  const box = one.getBoundingClientRect(), shown = document.querySelector(
    one.querySelector("use").getAttribute("href"));
  return box.width < 20 || box.height < 10 || !shown || shown.tagName != "image";
}).length
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("photographs") / "zoo", classes=3, images=8)
    for number, picture in enumerate((folder / "kind_1").iterdir()):
        picture.rename(picture.with_name(f"{FILE}{number}.png"))
    (folder / "kind_1").rename(folder / LONG.replace("/", " "))
    experiment = tiny(data=str(folder), per_class=3, **SHORT)
    root = tmp_path_factory.mktemp("runs")
    run = runs.run(experiment, root=root, device="cpu", progress=False)
    return run_report.write_report(run, root / "card.html", examples=2)


@contextmanager
def opened(chromium, report, width: int, scheme: str):
    with chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        wanted, complaints = [], []
        page.on("request", lambda request: wanted.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(report.as_uri())
        yield page
        assert [url for url in wanted if not url.startswith(("data:", report.as_uri()))] == []
        assert complaints == []


def background(page) -> list[int]:
    text = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(value) for value in text.removeprefix("rgb(").removesuffix(")").split(", ")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_page_fits_its_window(chromium, report, width, scheme):
    with opened(chromium, report, width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate(CUT_OFF) == []
        assert page.evaluate(EMPTY) == 0
        assert (min(background(page)) > 200) == (scheme == "light")
        across = page.evaluate(
            "getComputedStyle(document.querySelector('.cards')).gridTemplateColumns"
        )
        assert len(across.split()) == (1 if width == 390 else 4)
        SCREENSHOTS.mkdir(exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"report_{width}_{scheme}.png", full_page=True)


def test_page_prints_in_light_colours_and_keeps_cards_whole(chromium, report):
    with opened(chromium, report, 1280, "dark") as page:
        assert max(background(page)) < 100
        page.emulate_media(media="print", color_scheme="dark")
        assert min(background(page)) == 255
        assert not page.locator("nav").is_visible()
        for kind in (".card", ".match", ".tiles > div", ".chart"):
            style = f"getComputedStyle(document.querySelector('{kind}')).breakInside"
            assert page.evaluate(style) == "avoid", kind
        printed = page.pdf(format="A4", prefer_css_page_size=True, print_background=True)
        assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") > 1


def test_wide_element_is_noticed(chromium, report):
    with opened(chromium, report, 390, "light") as page:
        page.evaluate("document.querySelector('h1').style.width = '600px'")
        assert page.evaluate("document.documentElement.scrollWidth") > 390
        assert "H1.null" in page.evaluate(OUTSIDE)
