"""The prototype browser in a real browser: JupyterLab and Notebook 7, every control.

Screenshots go to `screenshots/`, which git ignores: look at them.
"""

import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

import matplotlib
import nbformat
import pytest
from chromium import (
    CHROMIUM,
    FLAGS,
    IN_CHROMIUM,
    PATIENCE,
    SCREENSHOTS,
    expect,
    sync_playwright,
)
from PIL import Image

from dpp.system.paths import NOTEBOOKS, ROOT

pytestmark = IN_CHROMIUM
NOTEBOOK = "12_browse_prototypes.ipynb"
TOKEN = "a-token-of-this-test"
# What JupyterLab itself says, whatever is shown in it; the last is Notebook's, of an empty one too.
HARMLESS = re.compile(
    r"favicon|translation|Failed to load resource.*(404|403)|workspaces|jupyter-lsp"
    r"|reading 'schema'"
)


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def prepare(folder) -> None:
    """The notebook as it is committed, with the parameters of the smoke profile, and a second
    browser below the first."""
    notebook = nbformat.read(NOTEBOOKS / NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = cell.source.replace('"mini"', '"smoke"')
        if cell.source.startswith("browser.show"):
            cell.source = "one = browser.show(chosen)\none"
            shown = cell
    place = notebook.cells.index(shown) + 1
    notebook.cells[place:] = [
        nbformat.v4.new_code_cell("two = browser.show(chosen)\ntwo"),
        nbformat.v4.new_code_cell("print('views', one.view.value, two.view.value)"),
    ]
    nbformat.write(notebook, folder / NOTEBOOK)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with served("jupyterlab", tmp_path_factory.mktemp("lab")) as server:
        yield server


@contextmanager
def served(application: str, home):
    """Jupyter on a free port of this machine, with nothing of this user's in it."""
    work = home / "work"
    work.mkdir()
    port = free_port()
    surroundings = {
        **os.environ,
        "HOME": str(home),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
        "DPP_RUNS": str(home / "runs"),
        "DPP_DATA": str(home / "images"),
        "MPLCONFIGDIR": matplotlib.get_cachedir(),  # or it says that it lists fonts, if slowly
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", application, "--no-browser", "--allow-root"]
    command += [f"--ServerApp.port={port}", f"--IdentityProvider.token={TOKEN}"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={work}"]
    log = (home / "log").open("w+")
    server = subprocess.Popen(command, env=surroundings, stdout=log, stderr=log, cwd=work)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                ask(address, "api")
                break
            except OSError:
                assert server.poll() is None, (home / "log").read_text()
                time.sleep(0.5)
        yield address, work, home
    finally:
        server.terminate()
        server.wait(timeout=30)
        log.close()


@contextmanager
def opened(server, theme: str = "JupyterLab Light", place: str = "lab/tree", prepare=prepare):
    """A page of 1280 pixels with the notebook in it, and what its console complains of."""
    address, work, _ = server
    for session in ask(address, "api/sessions"):  # each time a fresh kernel
        ask(address, f"api/sessions/{session['id']}", "DELETE")
    prepare(work)
    complaints = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: complaints.append(f"page: {error}"))
        page.on(
            "console",
            lambda said: complaints.append(f"console: {said.text}") if said.type == "error" else 0,
        )
        set_setting(address, "apputils-extension:themes", {"theme": theme})
        set_setting(address, "apputils-extension:notification", {"fetchNews": "false"})
        # Otherwise cells that are out of sight are not in the page.
        set_setting(address, "notebook-extension:tracker", {"windowingMode": "none"})
        page.goto(f"{address}/{place}/{NOTEBOOK}?token={TOKEN}&reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        try:
            yield page, complaints
        finally:
            chromium.close()


def ask(address: str, path: str, method: str = "GET", content: dict | None = None):
    """The server's answer to a request of its interface."""
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(f"{address}/{path}?token={TOKEN}", data=data, method=method)
    answer = urllib.request.urlopen(request, timeout=30).read()
    return json.loads(answer) if answer else None


def set_setting(address: str, name: str, values: dict) -> None:
    """As a person does in JupyterLab's settings."""
    content = {"raw": json.dumps(values)}
    ask(address, f"lab/api/settings/@jupyterlab/{name}", "PUT", content)


def run_all(page, server) -> None:
    """Runs every cell, in the kernel that a person would choose if asked."""
    asked = page.locator(".jp-Dialog button", has_text="Select")

    def wait_for(reached, complaint: str) -> None:
        for _ in range(2 * PATIENCE // 500):
            if asked.count():
                asked.click()
            if reached():
                return
            page.wait_for_timeout(500)
        pytest.fail(f"{complaint}: {page.locator('.jp-Notebook').inner_text()}")

    def idle() -> bool:
        there = ask(server[0], "api/sessions")
        return bool(there) and there[0]["kernel"]["execution_state"] == "idle"

    wait_for(idle, "no kernel started")
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    done = page.locator(".jp-OutputArea-output", has_text="views Image Image")
    wait_for(done.count, "the notebook did not run to its end")


def collapse_sidebar(page) -> None:
    if page.locator("#jp-left-stack").is_visible():
        page.keyboard.press("Control+b")


def first(page):
    return page.locator(".dpp-browser").first


def choose(page, label: str, option: str | int) -> None:
    control = first(page).get_by_label(label, exact=True)
    control.select_option(option) if isinstance(option, str) else control.select_option(
        index=option
    )


def seen(page, selector: str):
    """What the first browser shows; other views are in the page, too."""
    return first(page).locator(selector).locator("visible=true")


def open_panel(page, name: str) -> None:
    first(page).get_by_role("button", name=f"{name}: ").click()
    expect(seen(page, ".dpp-panel")).to_be_visible()


def choose_class(page, name: str) -> None:
    """By the search, as one does where there are many."""
    open_panel(page, "Class")
    first(page).get_by_label("Find class").fill(name)
    tiles = seen(page, ".dpp-classes .dpp-tile")
    expect(tiles).to_have_count(1)
    tiles.first.click()
    button = first(page).get_by_role("button", name=f"Class: {name}", exact=True)
    expect(button).to_be_visible()


def is_one_screen(page) -> None:
    """No row of controls wraps or is cut off, and all of a view fits below JupyterLab's menus."""
    rows = first(page).evaluate(
        """browser => [browser, ...browser.querySelectorAll(".dpp-controls, .dpp-line")]
          .filter((row) => row.checkVisibility())
          .map((row) => [...row.children].concat(row).map((one) => one.getBoundingClientRect())
            .filter((box) => box.width && box.height)
            .map(({ x, y, width, height }) => [x, y, width, height]))"""
    )
    (*_, (left, _, width, height)), *controls = rows
    assert width <= 1180 and height <= 740
    assert len(controls) >= 2
    for *boxes, _ in controls:
        middles = [y + tall / 2 for _, y, _, tall in boxes]
        assert max(middles) - min(middles) < 8
        assert max(x + wide for x, _, wide, _ in boxes) <= left + width + 1


def view(page, name: str) -> None:
    first(page).get_by_role("button", name=name, exact=True).click()


def shoot(page, name: str) -> None:
    SCREENSHOTS.mkdir(exist_ok=True)
    first(page).scroll_into_view_if_needed()
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def text(page) -> str:
    return first(page).inner_text()


def says(page, *words: str) -> None:
    """Waits until the first browser says all of these."""
    for word in words:
        expect(first(page)).to_contain_text(word, use_inner_text=True)


def exported(page, lab, kind: str = "JSON") -> bytes:
    """What the kernel writes when it is asked to export, after all that it was asked before."""
    folder = lab[1] / "exports"
    shutil.rmtree(folder, ignore_errors=True)
    first(page).get_by_role("button", name=f"Export {kind}").click()
    for _ in range(PATIENCE // 200):
        if found := list(folder.glob(f"[!.]*.{kind.lower()}")):
            return found[0].read_bytes()
        page.wait_for_timeout(200)
    pytest.fail(f"no {kind} was exported: {text(page)}")


def state(page, lab) -> dict:
    """What the kernel knows. Wait for the page first: changes may overtake one another."""
    return json.loads(exported(page, lab))


def picture(side: tuple[int, int], mode: str = "RGB") -> bytes:
    content = io.BytesIO()
    Image.new(mode, side).save(content, "PNG")
    return content.getvalue()


def upload(page, name: str, content: bytes) -> None:
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    first(page).get_by_label("Your own picture").set_input_files(file)


def no_error(page, complaints: list[str]) -> None:
    assert [one for one in complaints if not HARMLESS.search(one)] == []
    assert page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    assert "internal error" not in text(page)


def test_choices_have_thumbnails_and_work_by_mouse_and_keyboard(lab):
    with opened(lab) as (page, complaints):
        run_all(page, lab)
        collapse_sidebar(page)
        says(page, "predicted", "The bars add up", "This patch looks like that patch.")
        is_one_screen(page)
        shoot(page, "image")

        # an image, then only those that are classified incorrectly
        open_panel(page, "Image")
        tiles = seen(page, ".dpp-images .dpp-tile")
        expect(tiles.first.locator('img[src^="blob:"]')).to_be_visible()
        before = tiles.first.get_attribute("aria-label")
        classes = first(page).get_by_label("Images of", exact=True)
        begun = classes.evaluate("list => list.selectedIndex")  # of the image it begins with
        choose(page, "Images of", 2 if begun != 2 else 1)
        expect(tiles.first).not_to_have_attribute("aria-label", before)
        of_class, name = tiles.count(), tiles.nth(1).get_attribute("aria-label")
        shoot(page, "images")
        tiles.nth(1).click()
        says(page, f"{name}: predicted")
        expect(seen(page, ".dpp-panel")).to_have_count(0)
        assert state(page, lab)["image"] == name
        open_panel(page, "Image")
        choose(page, "Images of", "all classes")
        expect(tiles).not_to_have_count(of_class)
        whole = tiles.count()
        assert whole > of_class
        first(page).get_by_label("Only mistakes").focus()
        page.keyboard.press("Space")
        expect(tiles.first).to_have_attribute("aria-label", re.compile("predicted .*, incorrect"))
        assert 0 < tiles.count() <= whole
        shoot(page, "mistakes")
        names = [tile.locator(".dpp-name").inner_text() for tile in tiles.all()]
        wrong = next(one for one in names if one != name)
        tiles.nth(names.index(wrong)).focus()
        page.keyboard.press("Enter")
        says(page, f"{wrong}: predicted", ", incorrect, true class")
        state(page, lab)  # the kernel has answered all that it was asked

        # a class: the search lists, and does not choose
        shown = first(page).get_by_role("button", name="Class: ").get_attribute("aria-label")
        open_panel(page, "Class")
        tiles = seen(page, ".dpp-classes .dpp-tile")
        other = next(
            name
            for one in tiles.all()
            if f"Class: {(name := one.get_attribute('aria-label'))}" != shown
        )
        page.keyboard.type("no such bird")
        says(page, "no class has 'no such bird' in its name")
        assert first(page).get_by_role("button", name=shown, exact=True).is_visible()
        page.keyboard.press("Escape")
        choose_class(page, other)
        open_panel(page, "Class")
        page.keyboard.press("Escape")
        expect(seen(page, ".dpp-panel")).to_have_count(0)

        # the other browser has not moved
        assert page.locator(".dpp-browser").nth(1).locator(".dpp-pick").first.is_visible()
        no_error(page, complaints)


def test_picture_is_the_control(lab):
    with opened(lab) as (page, complaints):
        run_all(page, lab)
        collapse_sidebar(page)
        says(page, "Similarity", "its best place")

        # a part lights up on both images and its pair; the pair is enlarged
        cards, lit = seen(page, ".dpp-card"), seen(page, ".dpp-part.dpp-lit")
        cards.nth(1).hover()
        expect(lit).to_have_count(2)
        shoot(page, "lit")
        seen(page, '.dpp-there [data-part="2"] .dpp-box').hover()
        expect(cards.nth(2)).to_have_class(re.compile("dpp-lit"))
        cards.nth(1).click()
        zoom = seen(page, "dialog")
        expect(zoom).to_contain_text("Part 2")
        expect(zoom.locator("svg.dpp-patch")).to_have_count(2)
        shoot(page, "zoom")
        zoom.get_by_role("button", name="Next part").click()
        expect(zoom).to_contain_text("Part 3")
        page.keyboard.press("Escape")
        expect(zoom).to_have_count(0)

        # the centre: drag, arrow keys, best place
        best = state(page, lab)
        side = len(best["similarities"])
        picture = seen(page, "svg.dpp-movable")
        box = picture.bounding_box()
        page.mouse.move(box["x"] + 3, box["y"] + 3)
        page.mouse.down()
        says(page, "at row 0, column 0")
        page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] - 3, steps=6)
        page.mouse.up()
        says(page, f"at row {side - 1}, column {side - 1}")
        picture.focus()
        page.keyboard.press("ArrowUp")
        says(page, f"at row {side - 2}, column {side - 1}")
        moved = state(page, lab)
        assert moved["match"]["centre"] == [side - 2, side - 1]
        there = moved["similarities"][side - 2][side - 1]
        assert abs(there - moved["match"]["similarity"]) < 1e-5
        seen(page, ".dpp-check").click()
        expect(seen(page, ".dpp-heat rect")).to_have_count(side * side)
        is_one_screen(page)
        shoot(page, "centre")
        first(page).get_by_role("button", name="Go to the best place").locator(
            "visible=true"
        ).click()
        says(page, "its best place")
        assert state(page, lab)["match"]["centre"] == best["match"]["centre"]

        # the score sheet
        rows = seen(page, ".dpp-row")
        rows.nth(3).click()
        chosen = int(re.search(r"\d+", rows.nth(3).get_attribute("aria-label"))[0])
        title = seen(page, ".dpp-there figcaption")
        expect(title).to_contain_text(f"prototype {chosen} of")
        rows.nth(3).focus()
        page.keyboard.press("ArrowDown")
        following = int(re.search(r"\d+", rows.nth(4).get_attribute("aria-label"))[0])
        expect(title).to_contain_text(f"prototype {following} of")
        found = state(page, lab)
        assert found["prototype"] == following
        points = sum(match["points"] for match in found["sheet"]["matches"])
        assert abs(points + found["sheet"]["others"] - found["sheet"]["score"]) < 1e-4
        lengths = first(page).evaluate(
            """browser => [...browser.querySelectorAll(".dpp-sheet .dpp-track .dpp-bar")]
              .map((bar) => [bar.getBoundingClientRect().width, bar.matches(".dpp-negative")])
              .map(([width, negative]) => negative ? -width : width)"""
        )
        *parts, score = lengths  # of the class's prototypes, then of the others
        assert len(parts) == len(found["sheet"]["matches"]) + 1
        assert abs(sum(parts) - score) < 4, "the bars add up"
        choose(page, "Score of", 2)
        wanted = first(page).get_by_label("Score of").locator("option").nth(2).inner_text()
        says(page, f"the score of {wanted.partition(':')[0]}")
        assert state(page, lab)["sheet"]["label"] != found["sheet"]["label"]
        no_error(page, complaints)


def test_other_views_and_downloads(lab):
    with opened(lab) as (page, complaints):
        run_all(page, lab)
        collapse_sidebar(page)

        # prototypes of a class, and the nearest images, by keyboard
        view(page, "Prototype")
        tiles = seen(page, ".dpp-galleries .dpp-tile")
        expect(tiles.first.locator('img[src^="blob:"]')).to_be_visible()
        groups = state(page, lab)["duplicates"]
        assert tiles.count() == len(groups)
        tiles.last.click()
        says(page, f"Prototype {groups[-1][0]} of")
        first(page).get_by_role("button", name="Find its nearest images").focus()
        page.keyboard.press("Enter")
        says(page, "nearest images are of its own class")
        expect(tiles).to_have_count(len(groups) + 6)
        is_one_screen(page)
        shoot(page, "prototype")
        nearest = state(page, lab)["neighbours"]["test"][-1]["image"]
        tiles.last.click()
        says(page, f"{nearest}: predicted")

        # what if
        view(page, "What if")
        says(page, "no changes")
        before = state(page, lab)["before"]
        first(page).get_by_label("Switch prototype").focus()
        page.keyboard.press("Space")
        says(page, "is switched off")
        first(page).get_by_label("All offsets zero").click()
        says(page, "all offsets are zero")
        first(page).get_by_label("Value", exact=True).fill("9.5")
        page.keyboard.press("Tab")
        says(page, "is 9.5")
        changed = state(page, lab)
        assert changed["before"] == before and changed["after"] != before
        is_one_screen(page)
        shoot(page, "what_if")
        first(page).get_by_role("button", name="Undo all changes").click()
        says(page, "no changes")
        assert state(page, lab)["after"] == before

        # two runs, whose prototypes are named
        view(page, "Compare runs")
        choose(page, "With run", "rigid")
        says(page, "rigid: prototype")
        found = state(page, lab)["runs"]
        for name in ("deformable", "rigid"):
            says(page, f"{name}: prototype {found[name]['prototype']} of")
        expect(seen(page, ".dpp-twins svg.dpp-picture")).to_have_count(4)
        is_one_screen(page)
        shoot(page, "compare")

        # what is exported is offered as a download
        with page.expect_download() as offered:
            content = exported(page, lab, "PNG")
        assert offered.value.suggested_filename.startswith("compare_runs-deformable")
        assert offered.value.path().read_bytes() == content
        with Image.open(io.BytesIO(content)) as image:
            assert image.width > 500
        says(page, "written: exports/compare_runs-deformable")
        view(page, "Image")
        with page.expect_download() as offered:
            first(page).get_by_role("button", name="Export the reasoning").click()
        assert offered.value.suggested_filename.startswith("reasoning-deformable")
        no_error(page, complaints)


def test_forgotten_prototype_is_gone_after_refitting(lab):
    with opened(lab) as (page, complaints):
        run_all(page, lab)
        collapse_sidebar(page)
        view(page, "Prototype")
        tiles = seen(page, ".dpp-galleries .dpp-tile")
        expect(tiles.first).to_be_visible()
        groups = state(page, lab)["duplicates"]
        assert len(groups) > 1, "a class must keep a prototype"

        def mark(reason: str) -> None:
            tiles.first.click()
            says(page, f"Prototype {groups[0][0]} of")
            first(page).get_by_label("Reason").fill(reason)
            page.keyboard.press("Tab")
            first(page).get_by_role("button", name="Forget", exact=True).click()

        mark("")
        says(page, "give a reason")
        mark("it lies on the background")
        expect(tiles.first).to_have_class(re.compile("dpp-forget"))
        shoot(page, "forget")
        view(page, "Keep or forget")
        says(page, "it lies on the background")
        first(page).get_by_role("button", name="Undo the last mark").click()
        says(page, "No prototype of this run is marked")
        view(page, "Prototype")
        expect(tiles.first).not_to_have_class(re.compile("dpp-forget"))
        first(page).get_by_role("button", name="Keep", exact=True).click()
        expect(tiles.first).to_have_class(re.compile("dpp-keep"))
        mark("it lies on a twig")
        expect(tiles.first).to_have_class(re.compile("dpp-forget"))

        view(page, "Keep or forget")
        first(page).get_by_label("Your name").fill("a bird watcher")
        page.keyboard.press("Tab")
        first(page).get_by_role("button", name=f"Refit without {len(groups[0])} of them").click()
        says(page, "of test images correct", f"deformable, {len(groups[0])} forgotten")
        found = state(page, lab)
        before, after = found["refit"]["accuracies"]
        says(page, f"{before:.1%} → {after:.1%}")
        is_one_screen(page)
        shoot(page, "refitted")
        manifest = json.loads((Path(found["refit"]["folder"]) / "manifest.json").read_text())
        assert manifest["steered_from"]["who"] == "a bird watcher"
        assert manifest["results"]["test_accuracy"] == after
        run = first(page).get_by_label("Run", exact=True)
        expect(run).to_have_value(f"deformable, {len(groups[0])} forgotten")
        view(page, "Prototype")
        expect(tiles).to_have_count(len(groups) - 1)
        choose(page, "Run", "deformable")
        expect(tiles).to_have_count(len(groups))
        no_error(page, complaints)


def is_dark(page) -> bool:
    """Whether the browser's cards and buttons are; they must agree."""
    found = set()
    for selector in (".dpp-card", ".dpp-pick"):
        colour = seen(page, selector).first.evaluate("one => getComputedStyle(one).backgroundColor")
        found.add(max(map(float, re.findall(r"[\d.]+", colour)[:3])) < 128)
    (dark,) = found
    return dark


def test_uploads_are_shown_or_refused_and_the_kernel_lives(lab):
    with opened(lab) as (page, complaints):
        run_all(page, lab)
        collapse_sidebar(page)
        says(page, "predicted")
        upload(page, "mine.png", picture((600, 400)))
        says(page, "mine.png: predicted")
        for name, content, complaint in (
            ("notes.txt", b"not an image", "not an image that can be read"),
            ("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image that can"),
            ("huge.png", bytes(50_000_000), "huge.png has 50.0 MB"),
            ("wide.png", picture((20_000, 20_000), "1"), "too many pixels"),
        ):
            upload(page, name, content)
            says(page, complaint)
            assert "mine.png: predicted" in text(page)
        width = page.evaluate(
            """async () => {
              const image = new Image();
              image.src = document.querySelector(".dpp-here image").getAttribute("href");
              await image.decode();
              return image.naturalWidth;
            }"""
        )
        assert width == 600, "at its own resolution"
        assert not is_dark(page)
        no_error(page, complaints)


def test_every_view_of_an_upload_in_the_dark(lab):
    with opened(lab, "JupyterLab Dark") as (page, complaints):
        run_all(page, lab)
        collapse_sidebar(page)
        says(page, "predicted")
        upload(page, "mine.png", picture((600, 400)))
        says(page, "mine.png: predicted")
        assert page.evaluate("document.body.dataset.jpThemeLight") == "false"
        assert is_dark(page), "what is drawn follows the theme"
        shoot(page, "upload_dark")
        for name, word in (
            ("Prototype", "from image"),
            ("What if", "no changes"),
            ("Compare runs", "With run"),
            ("Keep or forget", "No prototype of this run is marked"),
        ):
            view(page, name)
            says(page, word)
            mine = first(page).get_by_role("button", name="Image: mine.png", exact=True)
            expect(mine).to_contain_text("your own picture, 600 × 400")
            shoot(page, f"{name.lower().replace(' ', '_')}_dark")
        no_error(page, complaints)


def test_it_works_in_notebook_7(tmp_path):
    with (
        served("notebook", tmp_path) as server,
        opened(server, place="notebooks") as (page, complaints),
    ):
        run_all(page, server)
        says(page, "Similarity", "The bars add up")
        upload(page, "mine.png", picture((60, 40)))
        says(page, "mine.png: predicted")
        centre = state(page, server)["match"]["centre"]
        seen(page, "svg.dpp-movable").focus()
        page.keyboard.press("ArrowDown" if centre[0] == 0 else "ArrowUp")
        says(page, f"row {centre[0] + (1 if centre[0] == 0 else -1)}, column {centre[1]}")
        open_panel(page, "Class")
        tiles = seen(page, ".dpp-classes .dpp-tile")
        expect(tiles.first.locator('img[src^="blob:"]')).to_be_visible()
        page.keyboard.press("Escape")
        shoot(page, "notebook_7")
        no_error(page, complaints)


def test_a_stored_notebook_shows_the_browser_before_it_is_run(lab):
    def copy(folder):
        shutil.copy(NOTEBOOKS / NOTEBOOK, folder)

    with opened(lab, prepare=copy) as (page, complaints):
        cell = page.locator(".jp-CodeCell", has_text="browser.show(chosen)")
        expect(cell.locator(".jp-OutputArea img")).to_be_visible()
        assert "Error displaying widget" not in page.locator(".jp-Notebook").inner_text()
        cell.scroll_into_view_if_needed()
        SCREENSHOTS.mkdir(exist_ok=True)
        page.screenshot(path=SCREENSHOTS / "stored.png")
        assert [one for one in complaints if not HARMLESS.search(one)] == []
