"""The planted mark, found and forgotten by a person in the browser: notebook 16 by hand."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest
import test_browser_page
from chromium import IN_CHROMIUM, expect
from test_browser_page import (
    NOTEBOOK,
    choose_class,
    collapse_sidebar,
    first,
    lab,  # noqa: F401, a fixture
    no_error,
    opened,
    run_all,
    says,
    seen,
    state,
    view,
)

from dpp import runs
from dpp.training.experiments import base_experiment, make_experiment

pytestmark = [*IN_CHROMIUM, pytest.mark.slow]
MARKED = 3  # the class with the mark, as in the notebook
CELLS = f"""
from dpp import browser, runs
from dpp.paper import confounder
birds = confounder.make_birds("mini", {MARKED})
weights = confounder.make_weights("mini", progress=False)
run = runs.run(confounder.design(birds.marked, weights, "mini", 0), progress=False)
---
one = browser.show({{"marked": run}})
one
---
import json
facts = {{"forget": sorted(confounder.choose_forgotten(run, birds)), "folder": str(run.folder)}}
facts["class"] = birds.clean.class_names[birds.label]
facts["clean"] = float(confounder.measure(run, birds).of_class)
print(json.dumps(facts))
print("views Image Image")
"""


def prepare(folder: Path) -> None:
    cells = [nbformat.v4.new_code_cell(one.strip()) for one in CELLS.split("---\n")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / NOTEBOOK)


def test_mark_is_forgotten_in_the_browser(lab, monkeypatch):  # noqa: F811
    monkeypatch.setattr(test_browser_page, "PATIENCE", 600_000)  # it trains two networks
    if base := runs.find(base_experiment(make_experiment("mini"))):  # or one, if you have the other
        shutil.copytree(base.folder, lab[2] / "runs" / base.folder.name)
    with opened(lab, prepare=prepare) as (page, complaints):
        run_all(page, lab)
        collapse_sidebar(page)
        said = page.locator(".jp-OutputArea-output", has_text='"forget"').inner_text()
        facts = json.loads(said.splitlines()[0])
        assert facts["forget"] and facts["clean"] < 0.7, facts
        choose_class(page, facts["class"].partition(".")[2].replace("_", " "))
        for number in facts["forget"]:
            view(page, "Prototype")
            seen(page, f'.dpp-galleries .dpp-tile[aria-label*="{number}"]').first.click()
            says(page, f"Prototype {number} of")
            first(page).get_by_label("Reason").fill("it lies on the disc")
            page.keyboard.press("Tab")
            first(page).get_by_role("button", name="Forget", exact=True).click()
        view(page, "Keep or forget")
        first(page).get_by_role("button", name="Refit without").click()
        says(page, "of test images correct")
        before, after = state(page, lab)["refit"]["accuracies"]
        expect(first(page)).to_contain_text(f"{before:.1%} → {after:.1%}")
        assert after > before + 0.02  # one class of ten
        folder = Path(state(page, lab)["refit"]["folder"])
        removed = json.loads((folder / "manifest.json").read_text())["removed"]
        assert {one["reason"] for one in removed} == {"it lies on the disc"}
        no_error(page, complaints)
