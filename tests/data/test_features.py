"""Feature files of every kind, and what is said of those that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asterism.data.features import checked, read
from asterism.errors import AsterismError

ROWS = np.arange(6.0).reshape(3, 2)
NAMES = ("north", "south", "north")


def table(path: Path, **columns: Any) -> None:
    pq.write_table(pa.table(columns), path)


def store(folder: Path, kind: str) -> Path:
    """``ROWS`` and ``NAMES`` as a file; the names are in a column, or an array, ``who``."""
    path = folder / f"features.{kind}"
    if kind == "npz":
        np.savez(path, features=ROWS, who=np.array(NAMES))
    elif kind == "csv":
        lines = [f"{a},{name},{b}" for (a, b), name in zip(ROWS, NAMES, strict=True)]
        path.write_text("\n".join(["x, who,y", *lines]) + "\n", encoding="utf-8-sig")
    else:
        table(path, x=ROWS[:, 0], who=list(NAMES), y=ROWS[:, 1])
    return path


def refused(path: Path, participants: str | None = None) -> AsterismError:
    with pytest.raises(AsterismError) as caught:
        read(path, participants)
    return caught.value


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_rows_and_participants_are_read(tmp_path: Path, kind: str) -> None:
    found = read(store(tmp_path, kind), "who")
    assert np.array_equal(found.rows, ROWS)
    assert found.participants == NAMES


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8, np.bool_])
def test_numbers_of_any_kind_are_read(tmp_path: Path, dtype: Any) -> None:
    np.save(tmp_path / "features.npy", ROWS.astype(dtype))
    found = read(tmp_path / "features.npy")
    assert found.rows.dtype == (np.float32 if dtype is np.float32 else np.float64)
    assert np.array_equal(found.rows, ROWS.astype(dtype)) and found.participants is None


def test_participants_of_an_npz_file_need_no_naming(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", features=ROWS, participants=np.array([7, 8, 7]))
    assert read(tmp_path / "f.npz").participants == ("7", "8", "7")


@pytest.mark.parametrize("fixed", [True, False])
def test_parquet_may_hold_lists(tmp_path: Path, fixed: bool) -> None:
    kind = pa.list_(pa.float32(), 2) if fixed else pa.list_(pa.float32())
    table(tmp_path / "f.parquet", z=pa.array(ROWS.tolist(), kind), site=list(NAMES))
    found = read(tmp_path / "f.parquet", "site")
    assert np.array_equal(found.rows, ROWS) and found.participants == NAMES


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_row_without_distances_is_named(tmp_path: Path, bad: float) -> None:
    rows = np.zeros((5000, 3))
    rows[4998, 1] = bad
    np.save(tmp_path / "f.npy", rows)
    error = refused(tmp_path / "f.npy")
    assert error.where.endswith("f.npy row 4999") and error.what.startswith(f"a feature is {bad}")
    with pytest.raises(AsterismError) as caught:
        checked(rows)
    assert caught.value.where == "row 4999"


def test_row_of_a_csv_file_is_counted_as_a_spreadsheet_does(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("x,y\n1,2\n3,nan\n")
    assert refused(tmp_path / "f.csv").where.endswith("f.csv row 3")


CSV = {
    "column 'label' is not numeric: 'cat'": "x,label\n1,2\n2,cat\n",
    "column 'y' is not numeric: ''": "x,y\n1,2\n2,\n",
    "1 cells, 2 columns": "x,y\n1,2\n2\n",
    "no features: 0 rows, 2 columns": "x,y\n",
    "no features: 0 rows, 0 columns": "",
}


@pytest.mark.parametrize("what", CSV)
def test_csv_mistake_is_named_with_its_row(tmp_path: Path, what: str) -> None:
    (tmp_path / "f.csv").write_text(CSV[what])
    error = refused(tmp_path / "f.csv")
    assert error.what == what
    assert what.startswith("no features") or error.where.endswith("row 3")


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_missing_column_of_participants_is_named(tmp_path: Path, kind: str) -> None:
    error = refused(store(tmp_path, kind), "site")
    assert "'site'" in error.what and "who" in error.fix


def test_participants_without_being_told_are_not_numeric(tmp_path: Path) -> None:
    for kind in ("csv", "parquet"):
        error = refused(store(tmp_path, kind))
        assert error.what.startswith("column 'who' is not numeric") and "--participants" in error.fix


def test_row_of_nobody_is_named(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("x,who\n1,a\n2, \n")
    error = refused(tmp_path / "f.csv", "who")
    assert (error.what, error.where[-5:]) == ("a row that is nobody's", "row 3")
    table(tmp_path / "f.parquet", x=[1.0, 2.0], who=["a", None])
    assert refused(tmp_path / "f.parquet", "who").where.endswith("row 2")


def test_arrays_that_are_no_features_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "line.npy", np.ones(4))
    assert refused(tmp_path / "line.npy").what == "features have the shape (4,)"
    np.save(tmp_path / "text.npy", np.array([["a"]]))
    assert "not numbers" in refused(tmp_path / "text.npy").what
    np.save(tmp_path / "objects.npy", np.array([[None]]), allow_pickle=True)
    assert "not an array file" in refused(tmp_path / "objects.npy").what
    np.savez(tmp_path / "f.npz", z=ROWS)
    assert refused(tmp_path / "f.npz").what == "no array 'features'"
    np.savez(tmp_path / "g.npz", features=ROWS, participants=np.array(["a"]))
    assert refused(tmp_path / "g.npz").what == "3 rows, 1 participants"


def test_arrays_under_a_wrong_name_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", ROWS)
    (tmp_path / "f.npy").rename(tmp_path / "f.npz")
    assert refused(tmp_path / "f.npz").fix == "name the file .npy"
    np.savez(tmp_path / "g.npz", features=ROWS)
    (tmp_path / "g.npz").rename(tmp_path / "g.npy")
    assert refused(tmp_path / "g.npy").fix == "name the file .npz"


def test_npy_has_no_participants(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", ROWS)
    assert "no column of participants" in refused(tmp_path / "f.npy", "who").what


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "csv"])
def test_damaged_file_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"f.{kind}"
    path.write_bytes(b"\xff\xfe\x00nothing of the kind")
    assert refused(path).where == str(path)


def test_file_that_is_not_there_or_of_no_kind_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "f.npy").what == "no such file of features"
    (tmp_path / "f.txt").write_text("1 2")
    error = refused(tmp_path / "f.txt")
    assert error.what == "no kind of feature file: .txt" and ".parquet" in error.fix


def test_parquet_mistakes_are_named(tmp_path: Path) -> None:
    table(tmp_path / "hole.parquet", x=[1.0, None])
    assert refused(tmp_path / "hole.parquet").where.endswith("row 2")
    table(tmp_path / "ragged.parquet", z=[[1.0, 2.0], [3.0]])
    assert refused(tmp_path / "ragged.parquet").what == "1 features, the first row has 2"
    table(tmp_path / "both.parquet", z=[[1.0, 2.0]], label=[1])
    assert "column 'label'" in refused(tmp_path / "both.parquet").what
    table(tmp_path / "empty.parquet", x=pa.array([], pa.float64()))
    assert refused(tmp_path / "empty.parquet").what == "no features: 0 rows, 1 columns"


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(tmp_path, "parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refused(path).fix == "pip install asterism[hf]"


def test_sizes_of_prototypes_are_whole_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "pool.npz", features=np.eye(3), sizes=np.array([4, 5, 6], np.int32))
    sizes = read(tmp_path / "pool.npz").sizes
    assert sizes is not None and sizes.tolist() == [4, 5, 6] and sizes.dtype == np.int64
    np.savez(tmp_path / "pool.npz", features=np.eye(3), sizes=np.array([0.5, 1, 2]))
    with pytest.raises(AsterismError, match="sizes are float64"):
        read(tmp_path / "pool.npz")
