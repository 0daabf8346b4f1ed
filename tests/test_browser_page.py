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

import nbformat
import pytest
from PIL import Image

from dpp.system.paths import NOTEBOOKS, ROOT

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium or Google Chrome on PATH"),
    pytest.mark.skipif(sync_playwright is None, reason="playwright is not installed"),
]
NOTEBOOK = "12_browse_prototypes.ipynb"
SCREENSHOTS = ROOT / "screenshots"
TOKEN = "a-token-of-this-test"
PATIENCE = 120_000  # milliseconds: the machine may be busy
if sync_playwright is not None:
    expect.set_options(timeout=PATIENCE)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
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
        nbformat.v4.new_code_cell("print('state', one.session.label, two.session.label)"),
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
    done = page.locator(".jp-OutputArea-output", has_text="state 0 0")
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


def test_every_control_works_by_mouse_and_keyboard(lab, tmp_path):
    with opened(lab) as (page, complaints):
        run_all(page, lab)
        collapse_sidebar(page)
        says(page, "Prototype 0 of")
        shoot(page, "prototype")

        # class and prototype
        choose(page, "Class", 1)
        says(page, "Prototype 10 of")
        first(page).get_by_label("Prototype", exact=True).focus()
        page.keyboard.press("ArrowDown")
        says(page, "Prototype 11 of")
        search = first(page).get_by_label("Find class")
        search.focus()
        page.keyboard.type("no such bird")
        says(page, "no class has")
        search.fill("")
        assert state(page, lab)["prototype"] == 11

        # nearest images, by keyboard
        first(page).get_by_role("button", name="Find its nearest images").focus()
        page.keyboard.press("Enter")
        says(page, "nearest images are of its own class")
        assert len(state(page, lab)["neighbours"]["train"]) == 3
        shoot(page, "nearest")

        # an image, its score sheet
        view(page, "Image")
        says(page, "predicted", "all other prototypes", "score of")
        images = first(page).get_by_label("Test image").locator("option")
        before = images.all_inner_texts()
        choose(page, "Images of", 2)
        expect(images).not_to_have_text(before)
        name = images.nth(0).inner_text()
        says(page, f"{name}: predicted")
        name = images.nth(1).inner_text()
        choose(page, "Test image", name)
        says(page, f"{name}: predicted")
        assert state(page, lab)["image"] == name
        rows = first(page).get_by_label("Prototype, similarity × connection = points")
        rows.select_option(index=3)
        chosen = int(re.search(r"\d+", rows.locator("option").nth(3).inner_text())[0])
        expect(first(page).locator(f'img[alt*="prototype {chosen} on"]')).to_be_visible()
        assert state(page, lab)["prototype"] == chosen
        rows.focus()
        page.keyboard.press("ArrowDown")
        following = int(re.search(r"\d+", rows.locator("option").nth(4).inner_text())[0])
        expect(first(page).locator(f'img[alt*="prototype {following} on"]')).to_be_visible()
        found = state(page, lab)
        assert found["prototype"] == following
        points = sum(match["points"] for match in found["sheet"]["matches"])
        assert abs(points + found["sheet"]["others"] - found["sheet"]["score"]) < 1e-4
        shoot(page, "image")
        choose(page, "Score of", 2)
        wanted = first(page).get_by_label("Score of").locator("option").nth(2).inner_text()
        says(page, f"score of {wanted.partition(':')[0]}")
        first(page).get_by_label("Also draw the reasoning").focus()
        page.keyboard.press("Space")
        expect(first(page).locator('img[alt^="Why the image"]')).to_be_visible()
        assert state(page, lab)["sheet"]["label"] != found["sheet"]["label"]

        # the centre: slider, click, arrow keys
        view(page, "Move the centre")
        says(page, "Similarity", "sum")
        first(page).get_by_role("button", name="Go to the best place").click()
        best = state(page, lab)
        says(page, f"Similarity {best['match']['similarity']:.3f}")
        figure = first(page).locator("img.dpp-pointed")
        box = figure.bounding_box()
        page.mouse.click(box["x"] + 0.4 * box["width"], box["y"] + 0.15 * box["height"])
        says(page, "row 0, column 0")
        figure.focus()
        page.keyboard.press("ArrowDown")
        says(page, "row 1, column 0")
        slider = first(page).get_by_role("slider").nth(1)
        slider.focus()
        page.keyboard.press("ArrowRight")
        says(page, "row 1, column 1")
        moved = state(page, lab)
        assert moved["match"]["centre"] == [1, 1]
        assert abs(moved["similarities"][1][1] - moved["match"]["similarity"]) < 1e-5
        assert moved["match"]["similarity"] <= best["match"]["similarity"]
        shoot(page, "centre")
        box = figure.bounding_box()
        page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.8 * box["height"])
        expect(first(page)).not_to_contain_text("row 1, column 1")

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
        shoot(page, "what_if")
        first(page).get_by_role("button", name="Undo all changes").click()
        says(page, "no changes")
        assert state(page, lab)["after"] == before

        # two runs
        view(page, "Compare runs")
        compared = first(page).locator('img[alt^="The best prototype of deformable and of rigid"]')
        choose(page, "With run", "rigid")
        expect(compared).to_be_visible()
        assert set(state(page, lab)["runs"]) == {"deformable", "rigid"}
        says(page, "written: exports/compare_runs-deformable")
        shoot(page, "compare")
        choose(page, "Run", "rigid")
        expect(first(page).locator('img[alt*="of rigid and of rigid"]')).to_be_visible()
        choose(page, "Run", "deformable")
        expect(compared).to_be_visible()
        with Image.open(io.BytesIO(exported(page, lab, "PNG"))) as image:
            assert image.width > 500

        # the other browser has not moved
        other = page.locator(".dpp-browser").nth(1)
        expect(other).to_contain_text("Prototype 0 of")
        no_error(page, complaints)


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_uploads_are_shown_or_refused_and_the_kernel_lives(lab, theme):
    with opened(lab, theme) as (page, complaints):
        run_all(page, lab)
        collapse_sidebar(page)
        view(page, "Image")
        says(page, "predicted")
        upload(page, "mine.png", picture((60, 40)))
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
        shoot(page, f"upload_{theme.split()[1].lower()}")
        for name, word in (
            ("Prototype", "from image"),
            ("Move the centre", "the maximum over the map is"),
            ("What if", "no changes"),
            ("Compare runs", "With run"),
        ):
            view(page, name)
            says(page, word)
            shoot(page, f"{name.lower().replace(' ', '_')}_{theme.split()[1].lower()}")
        dark = "Dark" in theme
        colour = page.evaluate("document.body.dataset.jpThemeLight")
        assert colour == ("false" if dark else "true")
        no_error(page, complaints)


def test_it_works_in_notebook_7(tmp_path):
    with (
        served("notebook", tmp_path) as server,
        opened(server, place="notebooks") as (page, complaints),
    ):
        run_all(page, server)
        choose(page, "Class", 1)
        says(page, "Prototype 10 of")
        view(page, "Image")
        upload(page, "mine.png", picture((60, 40)))
        says(page, "mine.png: predicted")
        view(page, "Move the centre")
        says(page, "Similarity")
        centre = state(page, server)["match"]["centre"]
        first(page).locator("img.dpp-pointed").focus()
        page.keyboard.press("ArrowDown" if centre[0] == 0 else "ArrowUp")
        says(page, f"row {centre[0] + (1 if centre[0] == 0 else -1)}, column {centre[1]}")
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
