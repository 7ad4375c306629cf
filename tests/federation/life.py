"""A federation's whole life in real processes, with cuts: ``python -m tests.federation.life [FOLDER]``.

A server and four sites with TLS and node keys on loopback go through a known and a novel stage on digits. On the way
one site is killed in the middle of a round and comes back, and the server is killed and started again. Nothing is
lost, so the end must be that of the same experiment in one process, bit for bit.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from asterism.privacy.chain import broken_line
from asterism.runs.execute import execute, new_folder
from asterism.runs.store import RunFolder
from tests.federation.rehearse import Federation, federation
from tests.synthetic import same_bits


def live(made: Federation, *, cuts: bool) -> dict[str, Any]:
    """The results of a whole life, cut or not."""
    made.serve()
    for name in made.sites:
        made.join(name)
    if cuts:
        kill_a_site(made)
        kill_the_server(made)
    return made.results()


def kill_a_site(made: Federation) -> None:
    """Kills a site that was just asked to train; it comes back and its order is sent again."""
    made.wait(lambda: made.events("kept"), "the first round")
    name = made.sites[0]
    answered = len(made.log(name, "answered"))
    made.wait(lambda: len(made.log(name, "answered")) > answered, "the site's next answer")
    made.kill(name)
    time.sleep(1.0)
    made.join(name)


def kill_the_server(made: Federation) -> None:
    """Kills the server in the novel stage; it goes on from its newest state."""
    made.wait(lambda: any(e["stage"] == "novel-1" for e in made.events("kept")), "the novel stage")
    made.kill("server")
    time.sleep(1.0)
    made.serve()


def equal_to_one_process(made: Federation, results: dict[str, Any]) -> None:
    """Fails unless states and results are those of the same experiment in one process."""
    alone = made.folder / "alone"
    split = {"file": str(made.folder / "split.json")}
    experiment = made.experiment.model_copy(update={"split": made.experiment.split.model_copy(update=split)})
    new_folder(experiment, alone)
    expected = execute(alone)
    kept, other = RunFolder(made.run).newest(), RunFolder(alone).newest()
    assert kept is not None and other is not None
    assert same_bits(kept.state.tensors, other.state.tensors), "the weights differ from those of one process"
    for stage in [*results["stages"], *expected["stages"]]:
        stage.pop("seconds")
    assert results == json.loads(json.dumps(expected)), "the results differ from those of one process"


def sound_ledgers(made: Federation) -> int:
    """The number of ledger lines at all sites, each chain whole."""
    lines = 0
    for name in made.sites:
        found = (made.folder / "sites" / name / "ledger.jsonl").read_bytes().splitlines()
        assert broken_line(found) is None
        lines += len(found)
    return lines


def main() -> None:
    """Runs it and tells what came out."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        started = time.monotonic()
        with federation(folder) as made:
            results = live(made, cuts=True)
            resumed = len(made.events("resumed"))
            equal_to_one_process(made, results)
            told = {
                "equal_to_one_process": True, "server_resumed": resumed, "ledger_lines": sound_ledgers(made),
                "seconds": round(time.monotonic() - started, 1), "results": results,
            }  # fmt: skip
        print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
