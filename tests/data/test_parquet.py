"""Parquet tables as the Hub stores them: both parts, names of classes, damage, and little memory."""

from __future__ import annotations

import io
import json
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from asterism.data.decode import assemble
from asterism.data.readers import parquet
from asterism.data.settings import Images
from asterism.errors import AsterismError


def picture(level: int, side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (level, 0, 0)).save(file, "PNG")
    return file.getvalue()


def row(level: int, name: str | None = None) -> dict[str, Any]:
    return {"bytes": picture(level), "path": name}


def write(
    path: Path, images: Sequence[Any], labels: Sequence[int | None], *, label: str = "label", names: Any = None
) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"picture": pa.array(images, kind), label: pa.array(labels, pa.int64())})
    if names is not None:
        info = {"info": {"features": {label: {"names": names}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path, row_group_size=2)


def test_both_parts_are_read_in_the_order_of_files_and_rows(tmp_path: Path) -> None:
    write(tmp_path / "train-00001-of-00002.parquet", [row(3), row(4)], [0, 1])
    write(tmp_path / "train-00000-of-00002.parquet", [row(0, "a.png"), row(1), row(2)], [1, 0, None])
    write(tmp_path / "test-00000-of-00001.parquet", [row(5)], [1])
    (tmp_path / "classes.json").write_text('["ant", "bee"]')
    parts = assemble(parquet.read(tmp_path), Images())
    assert parts.test is not None
    assert parts.train.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert parts.train.labels.tolist() == [1, 0, -1, 0, 1]
    assert parts.train.ids[:2] == ["a.png", "train-00000-of-00002.parquet#2"]
    assert (int(parts.test.pixels[0, 0, 0, 0]), parts.test.classes) == (5, ("ant", "bee"))


def test_names_may_come_from_the_metadata_of_the_hub(tmp_path: Path) -> None:
    write(tmp_path / "any.parquet", [row(0)], [1], label="fine_label", names=["ant", "bee"])
    listing = parquet.read(tmp_path)
    assert (listing.classes, listing.count) == (("ant", "bee"), 1)
    assert [(item.label, item.test) for item in listing.items] == [(1, False)]


def test_validation_file_is_the_test_part_where_there_is_no_other(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", [row(0)], [0], names=["ant"])
    write(tmp_path / "validation-0.parquet", [row(0)], [0], names=["ant"])
    assert [item.test for item in parquet.read(tmp_path).items] == [False, True]


def test_unreadable_image_is_named_by_file_and_row(tmp_path: Path) -> None:
    broken = {"bytes": b"broken", "path": "b.png"}
    write(tmp_path / "train-0.parquet", [row(0), broken, None], [0, 0, 0], names=["ant"])
    with pytest.raises(AsterismError, match="cannot read image") as error:
        assemble(parquet.read(tmp_path), Images())
    assert error.value.where == f"{tmp_path / 'train-0.parquet'} row 2"
    assert len(assemble(parquet.read(tmp_path), Images(skip_bad=True)).skipped) == 2


def test_label_out_of_range_is_named_by_file_and_row(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", [row(0), row(1), row(2)], [0, 0, 7], names=["ant"])
    with pytest.raises(AsterismError, match="label 7, for 1 classes") as error:
        list(parquet.read(tmp_path).items)
    assert error.value.where == f"{tmp_path / 'train-0.parquet'} row 3"


def test_unknown_names_of_classes_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", [row(0)], [0])
    with pytest.raises(AsterismError, match="names of the classes") as error:
        parquet.read(tmp_path)
    assert error.value.where == str(tmp_path / "classes.json")


def test_table_without_images_says_what_is_needed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "label": [0]}), tmp_path / "train-0.parquet")
    with pytest.raises(AsterismError, match="among text, label") as error:
        parquet.read(tmp_path)
    assert "struct column" in error.value.fix


@pytest.mark.parametrize("keep", [100, -1000])
def test_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "train-0.parquet"
    write(path, [row(0)], [0], names=["ant"])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(AsterismError, match="not a parquet file") as error:
        parquet.read(tmp_path)
    assert error.value.where == str(path)


def test_damage_inside_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train-0.parquet"
    write(path, [row(0)], [0], names=["ant"])
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    with pytest.raises(AsterismError, match="damaged parquet file") as error:
        list(parquet.read(tmp_path).items)
    assert error.value.where == str(path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "train-0.parquet", [row(0)], [0], names=["ant"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(AsterismError, match="pyarrow") as error:
        parquet.read(tmp_path)
    assert error.value.fix == "pip install asterism[hf]"


def test_memory_stays_near_the_tensor_whatever_the_row_groups(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3000, 64, 64, 3), dtype=np.uint8)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": bitmap(image), "path": None} for image in noise]
    table = pa.table({"image": pa.array(rows, kind), "label": pa.array([0] * 3000)})
    pq.write_table(table, tmp_path / "train-0.parquet", compression="none", use_dictionary=False)
    (tmp_path / "classes.json").write_text('["noise"]')
    del rows, table
    before = pa.total_allocated_bytes()
    assert max(pa.total_allocated_bytes() for _ in parquet.read(tmp_path).items) - before < 0.6 * noise.size
    tracemalloc.start()
    try:
        pixels = assemble(parquet.read(tmp_path), Images()).train.pixels
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pixels.numel() == noise.size
    assert peak < 1.1 * noise.size


def bitmap(image: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "BMP")
    return file.getvalue()
