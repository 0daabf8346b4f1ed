"""Asks OSV, the database of open-source vulnerabilities, about every pin: `make audit`.

Needs nothing but Python and the network. Exits with 1 if a pin has a known vulnerability; where
OSV cannot be reached it says that nothing was checked.
"""

import json
import re
import sys
import urllib.request
from pathlib import Path

OSV = "https://api.osv.dev"
PINS = Path(__file__).resolve().parents[1] / "requirements.txt"
TIMEOUT = 30  # seconds


def read_pins(path: Path = PINS) -> dict[str, str]:
    """Versions by package."""
    found = (re.match(r"([\w.-]+)==([^\s;]+)", line) for line in path.read_text().splitlines())
    return {pin[1]: pin[2] for pin in found if pin}


def ask(pins: dict[str, str], server: str = OSV) -> dict[str, list[str]]:
    """The known vulnerabilities of each package that has any, by their identifiers."""
    queries = [
        {"package": {"name": name, "ecosystem": "PyPI"}, "version": version.partition("+")[0]}
        for name, version in pins.items()
    ]
    body = json.dumps({"queries": queries}).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/v1/querybatch", body, kind)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        results = json.load(answer)["results"]
    pairs = zip(pins, results, strict=True)
    return {
        name: [vulnerability["id"] for vulnerability in result["vulns"]]
        for name, result in pairs
        if result.get("vulns")
    }


def main(server: str = OSV) -> int:
    pins = read_pins()
    try:
        known = ask(pins, server)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"NOT CHECKED: {server} did not answer as expected ({error}): the {len(pins)} pins")
        print("of requirements.txt may or may not have known vulnerabilities")
        return 0
    for name, identifiers in known.items():
        print(f"{name}=={pins[name]}: {', '.join(identifiers)}; see https://osv.dev")
    print(f"{len(pins)} pins checked, {len(known)} with known vulnerabilities")
    return int(bool(known))


if __name__ == "__main__":
    sys.exit(main())
