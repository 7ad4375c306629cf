from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from asterism.errors import AsterismError
from asterism.flow import Collect, Reply, Version
from asterism.privacy.chain import broken_line
from asterism.privacy.groups import Floor, smallest_group
from asterism.privacy.ledger import Ledger

ASK = Collect(("site-1", "site-2"), "prototypes", {}, Version("novel-1", 0, "layout"))
REPLY = Reply({"centres": torch.zeros(3, 4), "sizes": torch.zeros(3, dtype=torch.int64)}, metrics={"samples": 12.0})


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    ledger = Ledger(tmp_path / "ledger.jsonl", lambda: "2026-01-01T00:00:00")
    for site in ASK.participants:
        assert ledger(site, ASK, REPLY) is REPLY
    return tmp_path / "ledger.jsonl"


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def test_line_separators_in_a_name_do_not_break_the_chain(tmp_path: Path) -> None:
    for _ in range(2):  # the second ledger goes on from the file
        Ledger(tmp_path / "ledger.jsonl", lambda: "now")("a\u2028b\u0085c", ASK, REPLY)
    assert broken_line((tmp_path / "ledger.jsonl").read_bytes().split(b"\n")[:-1]) is None


def test_each_reply_is_written_with_names_shapes_and_bytes(ledger_file: Path) -> None:
    first = json.loads(ledger_file.read_text().splitlines()[0])
    assert (first["site"], first["task"], first["stage"], first["round"]) == ("site-1", "prototypes", "novel-1", 0)
    assert first["tensors"] == [
        {"name": "centres", "shape": [3, 4], "bytes": 48},
        {"name": "sizes", "shape": [3], "bytes": 24},
    ]
    assert (first["bytes"], first["samples"]) == (72, 12.0)


def test_chain_is_whole_and_goes_on_after_a_restart(ledger_file: Path) -> None:
    Ledger(ledger_file, lambda: "later")("site-3", ASK, REPLY)
    assert broken_line(lines_of(ledger_file)) is None


@pytest.mark.parametrize("tamper", ["change", "remove", "swap", "garbage"])
def test_changed_removed_swapped_or_garbled_lines_break_the_chain(ledger_file: Path, tamper: str) -> None:
    Ledger(ledger_file, lambda: "later")("site-3", ASK, REPLY)
    one, two, three = ledger_file.read_text().splitlines()
    lines = {
        "change": [one.replace("site-1", "site-9"), two, three],
        "remove": [two, three],
        "swap": [two, one, three],
        "garbage": [one, "{", three],
    }[tamper]
    ledger_file.write_text("\n".join(lines) + "\n")
    assert broken_line(lines_of(ledger_file)) in (1, 2)


def test_rows_that_do_not_tell_their_numbers_do_not_leave_a_site_that_has_a_floor() -> None:
    rows = Reply({"centroids": torch.zeros(3, 4)}, metrics={"samples": 12.0})
    assert smallest_group(ASK, rows) is None
    with pytest.raises(AsterismError, match="would send centroids without the number"):
        Floor(5)("site-1", ASK, rows)
    assert Floor(0)("site-1", ASK, rows) is rows


def test_floor_leaves_out_single_rows_and_empties_rows_of_sums() -> None:
    sizes, counts = torch.tensor([7, 4, 0]), torch.tensor([7.0, 4.0, 0.0])
    single = Floor(5)("site-1", ASK, Reply({"centres": torch.arange(6.0).view(3, 2), "sizes": sizes}))
    assert single.tensors["sizes"].tolist() == [7, 0]
    assert single.tensors["centres"].tolist() == [[0.0, 1.0], [4.0, 5.0]]
    sums = {"sums": torch.tensor([[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]), "counts": counts, "outer": torch.ones(2, 2)}
    summed = Floor(5)("site-1", ASK, Reply(sums))
    assert summed.tensors["counts"].tolist() == [7.0, 0.0, 0.0]
    assert summed.tensors["sums"].tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert "outer" not in summed.tensors  # not by row, so what is behind it cannot be taken out
    assert (single.metrics["withheld"], summed.metrics["withheld"]) == (1.0, 1.0)
    assert smallest_group(ASK, single) == smallest_group(ASK, summed) == 7
