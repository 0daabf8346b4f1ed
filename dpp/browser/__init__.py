"""The prototype browser for JupyterLab and Notebook 7: the only room that imports ipywidgets.

from dpp import browser, runs
browser.show({"deformable": run, "rigid": other})
"""

from dpp.browser.widgets import Browser, show

__all__ = ["Browser", "show"]
