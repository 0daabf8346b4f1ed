"""For `pytest -p`: has `dpp.ops` load the emulated CUDA part as the operators of the CPU.

`DPP_EMULATED_CUDA` names the folder of its `_C.so`, from extension.cpp. `dpp.ops` chooses when it
is imported, so this must come first.
"""

import os
import sys
from pathlib import Path

from dpp.system import paths

assert "dpp.ops" not in sys.modules
paths.PACKAGE = Path(os.environ["DPP_EMULATED_CUDA"])
