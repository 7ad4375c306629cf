"""CPU seconds of ``asterism --help`` in a fresh process: the median of several starts, as one JSON line."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

STARTS = 9


def processor_seconds() -> float:
    """User and system seconds of one start."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "asterism", "--help"], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def main() -> None:
    """Prints the median; the first start only warms the disk cache and the compiled modules."""
    processor_seconds()
    measured = [processor_seconds() for _ in range(STARTS)]
    row = {"bench": "startup", "starts": STARTS, "cpu_seconds": round(statistics.median(measured), 3)}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
