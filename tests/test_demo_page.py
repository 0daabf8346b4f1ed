"""The live demo in a real browser: its numbers are the Python network's, its controls work.

Screenshots go to `screenshots/`, which git ignores: look at them.
"""

import io
import re
from contextlib import contextmanager

import numpy as np
import pytest
from chromium import IN_CHROMIUM, PATIENCE, SCREENSHOTS, expect
from demo_site import FEW, START, make_demo
from PIL import Image

from dpp.data.image_records import Box
from dpp.data.images import squeeze
from dpp.drawn.species import kinds
from dpp.site.frames import draw_frame

pytestmark = IN_CHROMIUM
SAME = 1e-3  # the largest difference between the page's numbers and Python's
POSES = [(1, 0, 1), (2, 1, 0), (0, 1, 2)]  # of head, wing and tail, in `FEW`
LOOK = """async ([bird, head, wing, tail, mirrored]) => {
  await chooseBird(bird);
  Object.assign(state, { head, wing, tail, mirrored });
  see();
  return told();
}"""
TOLD = """() => {
  window.told = () => ({
    pixels: Array.from(seen.pixels),
    ...Object.fromEntries(MODES.map((mode) => {
      const { points, scores, centres } = seen.decisions[mode];
      return [mode, [points, scores, centres].map((one) => Array.from(one))];
    })),
  });
}"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return make_demo(tmp_path_factory.mktemp("site") / "demo")


@contextmanager
def opened(chromium, demo, width: int = 1280, scheme: str = "light"):
    """The page from disk; afterwards, that it asked for nothing else and complained of nothing."""
    complaints, asked = [], []
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda error: complaints.append(f"page: {error}"))
    page.on("console", lambda said: complaints.append(f"{said.type}: {said.text}"))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((demo.folder / "index.html").as_uri())
    page.wait_for_selector("#demo[aria-busy=false]")
    page.evaluate(TOLD)
    try:
        yield page
        assert complaints == []
        assert [url for url in asked if not url.startswith(("file://", "blob:", "data:"))] == []
    finally:
        context.close()


def drawn(demo, bird: int, head: int, wing: int, tail: int) -> np.ndarray:
    """A frame as Python draws it."""
    pose = (FEW.head[head], FEW.wing[wing], FEW.tail[tail])
    return draw_frame(kinds(10, base=False)[bird], *pose, demo.run.experiment.image_size)


def compare(demo, told: dict, pixels: np.ndarray) -> float:
    """The largest difference of points and scores; pixels and centres must be equal."""
    assert np.array_equal(np.array(told["pixels"]), pixels.ravel())
    largest = 0.0
    for mode, output in demo.decide(pixels).items():
        points, scores, centres = map(np.array, told[mode])
        largest = max(largest, np.abs(points - output.logits[0].numpy()).max())
        largest = max(largest, np.abs(scores - output.scores[0].numpy()).max())
        assert (centres == output.places[0].numpy()).mean() > 0.98, mode  # but for near ties
    return largest


def test_numbers_are_those_of_the_python_network(demo, chromium):
    differences = {}
    with opened(chromium, demo) as page:
        for bird in (0, 3, 8):
            for pose in POSES:
                for mirrored in (False, True) if pose == START else (False,):
                    told = page.evaluate(LOOK, [bird, *pose, mirrored])
                    pixels = drawn(demo, bird, *pose)
                    pixels = pixels[:, ::-1] if mirrored else pixels
                    differences[bird, *pose, mirrored] = compare(demo, told, pixels)
                    assert told["moved"][0] != told["rest"][0]  # deformation does something
    print(f"largest difference {max(differences.values()):.2g} over {len(differences)} frames")
    assert max(differences.values()) < SAME


def test_parts_are_where_python_has_them_and_add_up(demo, chromium):
    network = demo.networks["moved"]
    output = demo.decide(drawn(demo, 8, *START))["moved"]
    with opened(chromium, demo) as page:
        page.evaluate(LOOK, [8, *START, False])
        for prototype in (3, 87):
            places, shares = page.evaluate(
                """(p) => {
                  const decision = seen.decisions.moved;
                  const centre = decision.centres[p];
                  const shares = network.partShares(decision, p, centre);
                  return [network.partPlaces(decision, centre), shares];
                }""",
                prototype,
            )
            number = output.places.new_tensor([prototype])
            expected = network.model.find_parts(output, 0, number)
            assert np.abs(np.array(places) - expected[0][0].numpy()).max() < SAME
            assert np.abs(np.array(shares) - expected[1][0].numpy()).max() < SAME


def turning_point(demo) -> tuple[int, str, str, int, int]:
    """A bird whose class changes when one slider goes to its end: bird, joint, key, both labels."""
    for bird in (1, 8, 0, 6):
        before = int(demo.decide(drawn(demo, bird, *START))["moved"].logits.argmax())
        for axis, joint in enumerate(FEW._fields):
            for key, place in (("End", len(FEW[axis]) - 1), ("Home", 0)):
                pose = [*START]
                pose[axis] = place
                after = int(demo.decide(drawn(demo, bird, *pose))["moved"].logits.argmax())
                if after != before:
                    return bird, joint, key, before, after
    raise AssertionError("no slider changes any of these birds' classes")


def test_slider_changes_the_prediction_and_reset_brings_it_back(demo, chromium):
    bird, joint, key, before, after = turning_point(demo)
    with opened(chromium, demo) as page:
        names = page.evaluate("classes")
        page.get_by_label(names[bird], exact=True).check(force=True)
        verdict = page.locator("#verdict")
        expect(verdict).to_contain_text(f"{names[before]}:")
        page.get_by_label(joint.capitalize(), exact=True).focus()
        page.keyboard.press(key)
        expect(verdict).to_contain_text(f"{names[after]}:")
        page.get_by_role("button", name="Reset", exact=True).click()
        expect(verdict).to_contain_text(f"{names[before]}:")


def test_deformation_off_changes_the_first_bird_s_class(demo, chromium):
    outputs = demo.decide(drawn(demo, 8, *START))
    labels = {mode: int(output.logits.argmax()) for mode, output in outputs.items()}
    assert labels["moved"] == 8 != labels["rest"]  # what the page's text says
    with opened(chromium, demo) as page:
        names = page.evaluate("classes")
        expect(page.locator("#verdict")).to_have_text(f"{names[8]}: correct.")
        expect(page.locator("#parts")).to_contain_text("moved")
        page.get_by_text("At rest", exact=True).click()
        wrong = f"{names[labels['rest']]}: wrong, it is a {names[8]}."
        expect(page.locator("#verdict")).to_have_text(wrong)
        expect(page.locator("#parts")).not_to_contain_text("moved")
        page.keyboard.press("ArrowLeft")  # the radio buttons by keyboard
        assert page.evaluate("state.mode") == "mean"
        said = page.locator("#modes .says").all_inner_texts()
        expected = [f"{'✓' if label == 8 else '✗'} {names[label]}" for label in labels.values()]
        assert said == expected


def test_birds_are_named_as_the_text_says(demo):
    labels = [
        [int(output.logits.argmax()) for output in demo.decide(drawn(demo, bird, *START)).values()]
        for bird in range(10)
    ]
    assert sum(len(set(one)) == 1 for one in labels) > 5  # "on most, all three settings agree"
    assert sum(moved == bird for bird, (moved, *_) in enumerate(labels)) == 9
    poses = np.ndindex(FEW.shape)
    first = [int(demo.decide(drawn(demo, 0, *one))["moved"].logits.argmax()) for one in poses]
    assert np.mean(np.array(first) == 0) < 0.5  # "the first one is usually named wrong"


def test_centre_is_dragged_and_moved_by_keys(demo, chromium):
    with opened(chromium, demo) as page:
        picture, best = page.locator("#picture"), page.get_by_role("button", name="Back to the")
        expect(page.locator("#centre")).to_contain_text("its best place")
        expect(best).to_be_hidden()
        picture.scroll_into_view_if_needed()
        box = picture.bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 0.64 * box["height"])
        page.mouse.up()
        expect(page.locator("#centre")).to_have_text("Centre: row 6, column 3")
        expect(page.locator("#sum")).to_contain_text("Similarity here")
        picture.focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#centre")).to_contain_text("row 5, column 4")
        expect(picture).to_have_attribute("aria-label", re.compile("row 5, column 4"))
        here = page.evaluate("""() => {
          const decision = seen.decisions.moved;
          const shares = network.partShares(decision, state.prototype, state.centre);
          const at = state.centre * network.labels.length + state.prototype;
          return [shares.reduce((a, b) => a + b), decision.similarities[at]];
        }""")
        assert here[0] == pytest.approx(here[1], abs=1e-4)
        best.click()
        expect(page.locator("#centre")).to_contain_text("its best place")


def test_prototypes_and_classes_are_chosen(demo, chromium):
    with opened(chromium, demo) as page:
        page.get_by_role("button", name="Rufous Finch").click()
        expect(page.locator("#others-title")).to_contain_text("Rufous Finch")
        numbers = page.locator("#prototypes input").evaluate_all("all => all.map(one => one.value)")
        labels = demo.networks["moved"].labels
        assert [int(n) for n in numbers] == [p for p, label in enumerate(labels) if label == 9]
        page.get_by_label(f"Prototype {numbers[4]}", exact=True).check(force=True)
        text = re.compile(f"Training picture of a Rufous Finch.*prototype {numbers[4]}$")
        expect(page.locator("#source")).to_have_attribute("aria-label", text)
        pixels = page.evaluate("Array.from(imageOf(state.prototype))")
        network = demo.networks["moved"]
        record = network.records[network.origins[int(numbers[4])].image]
        assert np.array_equal(np.array(pixels), network.picture(record).pixels.ravel())
        page.get_by_role("button", name="Mirror", exact=True).click()
        page.get_by_role("button", name="Show the fit everywhere").click()
        expect(page.locator("#mirror")).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#fit")).to_have_attribute("aria-pressed", "true")


def upload(page, name: str, content: bytes) -> None:
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    page.locator("#file").set_input_files(file)


def png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


@pytest.mark.parametrize("height, width", [(64, 64), (150, 211), (40, 33)])
def test_uploaded_picture_is_seen_as_python_sees_it(demo, chromium, height, width):
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    expected = squeeze(Image.fromarray(noise), Box(0, 0, width, height), 64).transpose(1, 2, 0)
    with opened(chromium, demo) as page:
        upload(page, "noise.png", png(noise))
        expect(page.locator("#message")).to_contain_text("noise.png, squeezed to 64 × 64 pixels")
        assert compare(demo, page.evaluate("told()"), expected) < SAME
        expect(page.get_by_label("Head", exact=True)).to_be_disabled()
        page.get_by_label("Sooty Shrike", exact=True).check(force=True)
        expect(page.get_by_label("Head", exact=True)).to_be_enabled()
        expect(page.locator("#message")).to_be_hidden()


def test_wrong_file_is_said_in_one_clear_line(demo, chromium):
    with opened(chromium, demo) as page:
        before = page.locator("#verdict").inner_text()
        for name, content in (("notes.txt", b"no picture"), ("cut.png", b"\x89PNG\r\n\x1a\n")):
            upload(page, name, content)
            expect(page.locator("#message")).to_contain_text(f"{name} is not a picture that this")
        assert page.locator("#verdict").inner_text() == before
        page.get_by_role("button", name="Reset", exact=True).click()
        expect(page.locator("#message")).to_be_hidden()


def test_things_to_try_show_what_the_text_says(demo, chromium):
    with opened(chromium, demo) as page:
        show = page.get_by_role("button", name="Show it")
        show.nth(0).click()
        expect(page.locator("#verdict")).to_contain_text("wrong, it is a Band-tailed Shrike")
        show.nth(1).click()
        expect(page.locator("#mirror")).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#verdict")).to_have_text("Band-tailed Shrike: correct.")
        places = "network.partPlaces(seen.decisions.moved, seen.decisions.moved.centres[87])"
        before = page.evaluate(LOOK, [8, *START, False]) and page.evaluate(places)
        show.nth(2).click()
        expect(page.locator("#head-value")).to_have_text("50° up")
        page.wait_for_function("!waiting")
        went = np.linalg.norm(np.subtract(page.evaluate(places), before), axis=1)
        assert 0 < went.max() < 1  # "the parts stir by a fraction of a cell"
        show.nth(3).click()
        expect(page.locator("#sum")).to_contain_text("Similarity here")
        expect(page.locator("#fit")).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("width", [390, 820, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_its_window(demo, chromium, width, scheme):
    with opened(chromium, demo, width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        assert dark == (scheme == "dark")
        SCREENSHOTS.mkdir(exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"demo_{width}_{scheme}.png", full_page=True)


def test_update_and_first_paint_are_quick(demo, chromium):
    with opened(chromium, demo) as page:
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")

        def spent() -> float:
            """Seconds of the page's own thread: other processes do not count."""
            metrics = session.send("Performance.getMetrics")["metrics"]
            return next(one["value"] for one in metrics if one["name"] == "ThreadTime")

        page.evaluate("update = () => { see(); show(); stage.draw(); source.draw(); }")
        page.evaluate("for (let i = 0; i < 10; i++) { update(); }")  # until it is compiled
        begin, count = spent(), 10
        page.evaluate(f"for (let i = 0; i < {count}; i++) {{ update(); }}")
        milliseconds = 1000 * (spent() - begin) / count
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        print(f"an update takes {milliseconds:.0f} ms of its thread; first paint {paint:.0f} ms")
        assert 1 < milliseconds < 250 and paint < 10_000  # 100 and 2000 where nothing else runs
    assert sum(file.stat().st_size for file in demo.folder.iterdir()) < 5e6
