"""The prototype browser in JupyterLab and Notebook 7: the only importer of ipywidgets.

from dpp import browser, runs
browser.show({"deformable": run, "rigid": other})
"""

from dpp.browser.widgets import Browser, show

__all__ = ["Browser", "show"]
