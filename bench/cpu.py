"""What makes a CPU fast: memory that is kept, layouts, and threads against participants at once.

    python -m bench.cpu

The same works and the same interleaved rounds as ``bench.peers``, with variants of ours and of the plain loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from asterism.files import write_json
from bench.peers.__main__ import WORKS, Peer, compared, table
from bench.peers.ours import FORGETFUL
from bench.record import described, results_file

CORES = torch.get_num_threads()
VARIANTS = {
    "ours": Peer("ours"),
    "forgetful": Peer("ours", (FORGETFUL,)),  # freed memory goes back to the system
    "one a core": Peer("ours", (f"machine.workers={CORES}", "machine.threads=1")),
    "one thread": Peer("ours", ("machine.threads=1",), other=(("threads", 1),)),
    "loop": Peer("eager"),
    "loop, last": Peer("eager", other=(("channels_last", True),)),  # the plain loop with channels last
}


def main(
    works: Annotated[str, typer.Option(help="Beginnings of their names, separated by commas.")] = "",
    repeats: Annotated[int, typer.Option(help="Rounds measured of each.")] = 5,
    out: Annotated[Path | None, typer.Option(help="JSON file of the results.")] = None,
) -> None:
    """Measures every variant at every work and prints the table."""
    found = described()
    for name, work in WORKS["cpu"].items():
        if name.startswith(tuple(works.split(","))):
            found["runs"] += compared(name, work, VARIANTS, repeats, (Path(), None))
            print(table(found["runs"]), flush=True)
            write_json(out or results_file("cpu", "cpu"), found)


if __name__ == "__main__":
    typer.run(main)
