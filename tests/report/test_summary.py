from __future__ import annotations

import io
import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from asterism.metrics import Scores
from asterism.report.read import Results, StageResults
from asterism.report.summary import MEASURES, as_json, comparison, experiments, results_table


def result(run: str, seed: int, known: float, *, novel: float | None = None) -> Results:
    stages = [stage("known", known, None)]
    return Results(run=run, seed=seed, stages=(*stages, *([] if novel is None else [stage("novel-1", known, novel)])))


def stage(name: str, known: float, novel: float | None) -> StageResults:
    scores = Scores(known, novel, known if novel is None else (known + novel) / 2)
    return StageResults(
        name=name,
        rounds=20,
        seconds=10.0,
        images=5000,
        true=4,
        estimated=None if novel is None else 5,
        headwise=scores,
        joint=scores,
    )


@given(values=st.lists(st.floats(0, 100), min_size=2, max_size=6))
def test_mean_and_sample_deviation_are_over_seeds(values: list[float]) -> None:
    (row,) = comparison(result("demo", seed, value) for seed, value in enumerate(values))
    found = row.measures["headwise.known"]
    assert row.seeds == tuple(range(len(values))) and found.seeds == len(values)
    assert found.mean == pytest.approx(statistics.mean(values))
    assert found.deviation == pytest.approx(statistics.stdev(values))


def test_one_seed_has_no_deviation() -> None:
    (row,) = comparison([result("demo", 1, 95.06)])
    assert row.measures["joint.all"].deviation is None and row.words("joint.all") == "95.1"


def test_experiments_and_stages_have_rows_of_their_own() -> None:
    rows = comparison([result("gal", 1, 70, novel=40), result("gal", 2, 72, novel=44), result("known", 1, 90)])
    assert [(row.run, row.stage, row.seeds) for row in rows] == [
        ("gal", "known", (1, 2)),
        ("gal", "novel-1", (1, 2)),
        ("known", "known", (1,)),
    ]
    assert rows[1].words("headwise.novel") == "42.0 ± 2.8" and rows[0].words("headwise.novel") == "–"
    assert rows[1].measures["count_error"].mean == 25.0


def test_seed_without_a_stage_is_not_counted_for_it() -> None:
    rows = comparison([result("gal", 1, 70, novel=40), result("gal", 2, 72)])
    assert [(row.stage, row.seeds) for row in rows] == [("known", (1, 2)), ("novel-1", (1,))]


def test_repeated_seed_is_no_further_seed() -> None:
    groups = experiments([result("demo", 1, 90), result("demo", 1, 80), result("demo", 2, 70), result("demo", 1, 60)])
    assert {name: list(seeds) for name, seeds in groups.items()} == {"demo": [1, 2], "demo (2)": [1], "demo (3)": [1]}


def test_json_holds_every_measure_and_null_for_what_nobody_took() -> None:
    (row,) = json.loads(json.dumps(as_json(comparison([result("demo", 1, 90), result("demo", 2, 92)]))))
    assert set(row) == {"run", "stage", "seeds", *MEASURES}
    assert row["joint.known"] == {"mean": 91.0, "std": pytest.approx(2**0.5), "seeds": 2}
    assert row["nmi"] is None and row["images_per_second"]["mean"] == 500


def test_table_shows_every_experiment_within_eighty_columns() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(
        results_table([result("[bold]gal", 1, 70, novel=40), result("demo", 1, 95.06), result("demo", 2, 95.06)])
    )
    text = console.export_text()
    assert "[bold]gal" in text and "95.1 ± 0.0" in text and "sample standard deviation" in text
    assert max(map(len, text.splitlines())) <= 80
