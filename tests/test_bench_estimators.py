"""The table of estimates by method, made from stored pools."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bench.estimators import ROWS, counted, main, table

from asterism.errors import AsterismError
from asterism.estimators import ESTIMATORS
from tests.test_estimators import crowded
from tests.test_prototypes import separated


def stored(folder: Path, true: int, seed: int) -> Path:
    features = separated(true, 4, seed=seed, dimensions=64)
    file = folder / f"seed{seed}-novel{true:02}.npz"
    known, sizes = crowded(features), np.ones(len(features), np.int64)
    np.savez(file, features=features, sizes=sizes, known=known, means=known, true=true, seed=seed)
    return file


def test_a_stored_pool_is_counted_by_every_row(tmp_path: Path) -> None:
    file = stored(tmp_path, 5, 1)
    for row in ROWS.values():
        found = counted(file, row)
        assert (found["true"], found["seed"], found["prototypes"]) == (5, 1, 20)
        assert found["estimated"] == 5 or ESTIMATORS[row.method].needs_known


def test_the_table_has_a_column_for_every_true_number_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, 5, 1)
    main(tmp_path, tmp_path / "found.json", "ppm;louvain")
    first = json.loads((tmp_path / "found.json").read_text())["runs"]
    stored(tmp_path, 3, 1)
    main(tmp_path, tmp_path / "found.json", "ppm;louvain")
    runs = json.loads((tmp_path / "found.json").read_text())["runs"]
    assert runs[:2] == first and len(runs) == 4
    assert "| louvain | 3 | 5 | 0.0 |" in capsys.readouterr().out


def test_entries_are_means_over_seeds_and_the_error_is_the_papers() -> None:
    runs = [
        {"row": "ppm", "true": true, "estimated": estimated, "seconds": 0.1}
        for true, estimated in ((5, 4), (5, 8), (10, 9))
    ]
    assert table(runs)[2] == "| ppm | 6.0 ± 2.8 | 9 | 30.0 | 0.10 |"


def test_a_folder_without_pools_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AsterismError, match="no pools"):
        main(tmp_path)
