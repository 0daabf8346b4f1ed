"""Deformable ProtoPNet (Donnelly, Barnett and Chen, CVPR 2022), reproduced.

Importing `dpp` loads nothing heavy; import the module you need, for example `from dpp import ops`.
"""

__version__ = "0.1.0"
