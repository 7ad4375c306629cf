from __future__ import annotations

from pathlib import Path

import pytest
import torch

from asterism.errors import AsterismError
from asterism.flow import State
from asterism.runs.again import same
from asterism.runs.store import RunFolder, read_checkpoint


def state(round: int, stage: str = "known") -> State:
    tensors = {
        "parameters": torch.randn(7, generator=torch.Generator().manual_seed(round)),
        "buffers": torch.zeros(0),
        "counters": torch.tensor([round]),
    }
    return State(stage, round, tensors, "layout", ("cat", "döner/1"))


def test_newest_state_comes_back_bit_for_bit_with_its_progress(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        folder.keep(step, state(step), {"images": 5 * step})
    back = RunFolder(tmp_path).newest()
    assert back is not None
    assert same(back.state, state(2))
    assert (back.step, back.progress) == (2, {"images": 10})


def test_empty_folder_has_no_newest_state(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).newest() is None


def test_only_the_newest_round_and_the_end_of_each_stage_stay(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step, kept in enumerate([state(1), state(2), state(1, "novel-1"), state(2, "novel-1")], start=1):
        folder.keep(step, kept, {})
    names = sorted(file.name for file in (tmp_path / "states").iterdir())
    assert names == ["known-round002.safetensors", "novel-1-round002.safetensors"]


def test_every_round_stays_when_asked(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.keep(step, state(step), {}, every=True)
    assert len(list((tmp_path / "states").iterdir())) == 3
    back = folder.newest()
    assert back is not None
    assert back.state.round == 3


def value(x: float) -> dict[str, torch.Tensor]:
    return {"variate": torch.tensor([x])}


def test_stores_come_back_as_they_were_at_the_newest_state(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.stores.of("site/1 é")["scaffold"] = value(1.0)
    folder.keep(1, state(1), {})
    folder.stores.of("site/1 é")["scaffold"] = value(2.0)
    folder.stores.of("site-2")["moon"] = value(5.0)
    folder.keep(2, state(2), {})
    back = RunFolder(tmp_path)
    back.newest()
    assert back.stores.of("site/1 é")["scaffold"]["variate"].item() == 2.0
    assert back.stores.of("site-2")["moon"]["variate"].item() == 5.0
    assert len(list(tmp_path.glob("sites/*/*"))) == 2


def test_cut_between_the_stores_and_the_state_goes_back_to_the_round_before(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.stores.of("site-1")["scaffold"] = value(1.0)
    folder.keep(1, state(1), {})
    folder.stores.of("site-1")["scaffold"] = value(2.0)
    folder.stores.write(2)  # the cut comes here: the state of step 2 is never written
    back = RunFolder(tmp_path)
    checkpoint = back.newest()
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert back.stores.of("site-1")["scaffold"]["variate"].item() == 1.0
    assert [file.name for file in tmp_path.glob("sites/*/*")] == ["scaffold@000001.safetensors"]


def test_unchanged_entries_are_not_written_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.stores.of("site-1")["scaffold"] = value(1.0)
    folder.keep(1, state(1), {})
    folder.keep(2, state(2), {})
    assert [file.name for file in tmp_path.glob("sites/*/*")] == ["scaffold@000001.safetensors"]


def test_what_another_process_wrote_for_the_next_step_is_reread(tmp_path: Path) -> None:
    folder, other = RunFolder(tmp_path), RunFolder(tmp_path)
    folder.stores.of("site-1")["scaffold"] = value(1.0)
    folder.keep(1, state(1), {})
    assert other.step == 1
    other.stores.reread("site-1")["scaffold"] = value(2.0)
    other.stores.write(other.step + 1)
    assert folder.stores.reread("site-1")["scaffold"]["variate"].item() == 2.0
    folder.keep(2, state(2), {})
    assert [file.name for file in tmp_path.glob("sites/*/*")] == ["scaffold@000002.safetensors"]


@pytest.mark.parametrize("damage", ["empty", "half", "garbage"])
def test_damaged_state_is_named_with_what_to_do(tmp_path: Path, damage: str) -> None:
    file = RunFolder(tmp_path).keep(1, state(1), {})
    content = file.read_bytes()
    file.write_bytes({"empty": b"", "half": content[: len(content) // 2], "garbage": b"\xff" * 64}[damage])
    with pytest.raises(AsterismError, match="damaged state file") as caught:
        RunFolder(tmp_path).newest()
    assert str(file) in caught.value.where
    assert caught.value.fix


def test_half_written_temporary_file_is_never_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.keep(1, state(1), {})
    (tmp_path / "states" / ".known-round002.safetensors.123.part").write_bytes(b"half")
    checkpoint = folder.newest()
    assert checkpoint is not None
    assert checkpoint.state.round == 1


def test_state_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    from asterism.runs.store import write_tensors

    write_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(1)}, {"format": 9})
    with pytest.raises(AsterismError, match="format 9"):
        read_checkpoint(tmp_path / "x.safetensors")
