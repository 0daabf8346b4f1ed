"""Where Chromium is, how it is started, and what a test that needs it is marked with."""

import shutil

import pytest

from dpp.system.paths import ROOT

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
    expect = sync_playwright = None

IN_CHROMIUM = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium or Google Chrome on PATH"),
    pytest.mark.skipif(sync_playwright is None, reason="playwright is not installed"),
]
SCREENSHOTS = ROOT / "screenshots"
PATIENCE = 120_000  # milliseconds: the machine may be busy
if sync_playwright is not None:
    expect.set_options(timeout=PATIENCE)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
