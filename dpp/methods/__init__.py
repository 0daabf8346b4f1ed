"""The paper's method and the four that it is compared with, one module each.

`METHODS` is the table of them.
"""

from dpp.methods.table import METHODS

__all__ = ["METHODS"]
