"""Builds the site: `python -m dpp.site [FOLDER]`, which is `make site`."""

import argparse
import sys
from pathlib import Path

from dpp.site.build import build
from dpp.system.errors import UserError
from dpp.system.paths import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dpp.site", description=__doc__)
    help = "where the site goes; what is there is replaced (default: build/site)"
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "site", help=help)
    try:
        print(build(parser.parse_args().folder))
    except UserError as error:
        print(f"dpp.site: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
