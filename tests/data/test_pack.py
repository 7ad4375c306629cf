"""Packed images: bit-equal, within the size asked for, checked on reading, whole or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.data.images import Dataset, ImageSet
from asterism.data.pack import HEADER, pack
from asterism.data.readers import packed
from asterism.data.settings import Images
from asterism.data.sources import load
from asterism.errors import AsterismError
from asterism.seeds import generator


def images(count: int, *, named: bool = False) -> ImageSet:
    rng = generator(3, "images", count)
    pixels = torch.randint(0, 256, (count, 3, 8, 9), generator=rng, dtype=torch.uint8)
    labels = torch.randint(-1, 2, (count,), generator=rng)
    ids = [f'folder/Bär "{i}"\n.png' for i in range(count)]
    sites = tuple(f"ward-{i % 2}" for i in range(count)) if named else ()
    return ImageSet(pixels, labels, ids, ("ant", "bee"), sites)


def dataset(train: int = 20, test: int = 5) -> Dataset:
    return Dataset("tiny", images(train, named=True), images(test))


def same(first: ImageSet, second: ImageSet) -> bool:
    return (
        torch.equal(first.pixels, second.pixels)
        and torch.equal(first.labels, second.labels)
        and (list(first.ids), first.classes, first.sites) == (list(second.ids), second.classes, second.sites)
    )


def test_packed_images_come_back_bit_equal(tmp_path: Path) -> None:
    data = dataset()
    assert pack(data, tmp_path / "out", 4000) > 2
    loaded = load(Images(images=str(tmp_path / "out")), seed=0)
    assert same(loaded.dataset.train, data.train)
    assert same(loaded.dataset.test, data.test)


def test_empty_test_part_comes_back_empty(tmp_path: Path) -> None:
    pack(Dataset("tiny", images(3), images(0)), tmp_path / "out", 10**6)
    parts = packed.read(tmp_path / "out")
    assert parts.test is not None
    assert (len(parts.train), len(parts.test)) == (3, 0)


@given(st.integers(HEADER + 400, HEADER + 20_000), st.lists(st.integers(0, 300), min_size=1, max_size=20))
@settings(deadline=None, max_examples=30)
def test_no_shard_is_larger_than_asked_for(
    tmp_path_factory: pytest.TempPathFactory, limit: int, lengths: list[int]
) -> None:
    whole = images(len(lengths))
    named = ImageSet(whole.pixels, whole.labels, ["ß" * (n // 12) for n in lengths], whole.classes)
    folder = tmp_path_factory.mktemp("packed") / "out"
    shards = pack(Dataset("tiny", named, images(0)), folder, limit)
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    assert len(sizes) == shards
    assert max(sizes) <= limit
    assert same(packed.read(folder).train, named)


def test_shard_too_small_for_one_image_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AsterismError, match="no room for one image"):
        pack(dataset(), tmp_path / "out", HEADER + 100)
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(AsterismError, match="exists already"):
        pack(dataset(), tmp_path, 10**6)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(AsterismError, match="No space left"):
        pack(dataset(), tmp_path / "out", 10**6)
    assert list(tmp_path.iterdir()) == []


def test_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AsterismError, match="cannot write") as error:
        pack(dataset(), tmp_path / "file" / "out", 10**6)
    assert error.value.where == str(tmp_path / "file" / "out")


def test_interrupted_packing_is_swept_up_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".out.part").mkdir()
    (tmp_path / ".out.part" / "train-00000.safetensors").write_bytes(b"half")
    pack(dataset(), tmp_path / "out", 10**6)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_damaged_shard_is_named(tmp_path: Path) -> None:
    pack(dataset(), tmp_path / "out", 4000)
    shard = tmp_path / "out" / "train-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(AsterismError, match="damaged") as error:
        packed.read(tmp_path / "out")
    assert error.value.where == str(shard)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    pack(dataset(), tmp_path / "out", 4000)
    os.unlink(tmp_path / "out" / "test-00000.safetensors")
    with pytest.raises(AsterismError, match="missing") as error:
        packed.read(tmp_path / "out")
    assert error.value.where == str(tmp_path / "out" / "test-00000.safetensors")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"format": 2}, "format 1"),
        ({"classes": None}, "index is damaged"),
        ({"train": {"count": 3, "shards": []}}, "0 of 3 images"),
        ({"test": {}}, "index is damaged"),
    ],
)
def test_index_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, object], what: str) -> None:
    pack(dataset(), tmp_path / "out", 10**6)
    index = tmp_path / "out" / "index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), **change}))
    with pytest.raises(AsterismError, match=what) as error:
        packed.read(tmp_path / "out")
    assert error.value.where == str(index)


def test_index_cut_short_is_refused(tmp_path: Path) -> None:
    pack(dataset(), tmp_path / "out", 10**6)
    index = tmp_path / "out" / "index.json"
    index.write_text(index.read_text()[:50])
    with pytest.raises(AsterismError, match="index is damaged"):
        packed.read(tmp_path / "out")
