from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from asterism import cli_estimate
from asterism.cli import main
from asterism.distances import Floats
from asterism.errors import AsterismError
from asterism.estimation import Estimate, estimate, plateau
from asterism.estimators import ESTIMATORS
from asterism.estimators.silhouette import Silhouette
from asterism.prototypes import Curve, exact_curve
from asterism.spanning import tree
from tests.test_prototypes import separated

RNG = np.random.default_rng


@pytest.fixture
def app() -> typer.Typer:
    """The command alone, by its name."""
    made = typer.Typer()
    cli_estimate.register(made)
    made.callback()(lambda: None)
    return made


def sited(classes: int = 8, each: int = 60, sites: int = 5) -> tuple[Floats, list[str]]:
    """Well separated classes, and five sites that hold some of each."""
    return separated(classes, each, dimensions=32), [f"site-{i % sites}" for i in range(classes * each)]


def test_separated_classes_are_counted_and_called_stable() -> None:
    rows, participants = sited()
    found = estimate(rows, participants=participants, clusters=20)
    assert (found.estimated, found.interval, found.verdict) == (8, (8, 8), "8, stable")
    assert found.prototypes == 100 and found.exact >= 8
    assert found.plateau is not None and found.plateau.width > 0.5
    assert [(site.site, site.prototypes, site.without) for site in found.sites] == [
        (f"site-{k}", 20, 8) for k in range(5)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dimensions", [2, 32, 256])
def test_noise_is_called_unstable(seed: int, dimensions: int) -> None:
    noise = RNG(seed).normal(size=(400, dimensions))
    assert not estimate(noise, prototypes=True).stable
    assert not estimate(noise, participants=[str(i % 4) for i in range(400)], clusters=30).stable


def test_an_outlier_is_called_unstable_and_its_site_shows() -> None:
    rows = np.concatenate([separated(12, 6), np.full((1, 16), 1e6)])
    sites = [*("a", "b", "c") * 24, "d"]
    found = estimate(rows, participants=sites, prototypes=True)
    assert (found.estimated, found.interval, found.stable) == (1, (1, 12), False)
    assert {site.site: site.without for site in found.sites} == {"a": 1, "b": 1, "c": 1, "d": 12}
    assert found.exact >= 12
    alone = estimate(rows, prototypes=True)
    assert (alone.estimated, alone.interval, alone.stable) == (1, (1, 12), False)


def test_classes_of_one_site_alone_widen_the_interval() -> None:
    rows = separated(10, 8)
    sites = ["owner"] * 32 + ["a", "b"] * 24
    found = estimate(rows, participants=sites, prototypes=True)
    assert (found.estimated, found.verdict) == (10, "6 to 10, unstable")


@pytest.mark.parametrize("method", ESTIMATORS)
def test_order_of_the_rows_changes_nothing(method: str) -> None:
    rows, participants = sited(each=20)
    order, known = RNG(0).permutation(len(rows)), np.eye(9, 32)
    shuffled = [participants[i] for i in order]
    again = estimate(rows[order], participants=shuffled, method=method, clusters=10, known=known)
    assert again == estimate(rows, participants=participants, method=method, clusters=10, known=known)
    single = estimate(rows, prototypes=True, method=method, known=known)
    assert single == estimate(rows[order], prototypes=True, method=method, known=known)


@pytest.mark.parametrize("method", ["silhouette", "eigengap", "louvain"])
def test_separated_classes_are_stable_by_every_method_that_needs_no_known_ones(method: str) -> None:
    rows, participants = sited()
    found = estimate(rows, participants=participants, clusters=20, method=method)
    assert (found.verdict, found.plateau) == ("8, stable", None)
    assert {site.without for site in found.sites} == {8}
    assert (found.search is None) == (method == "louvain")


def test_scores_that_leave_the_answer_open_are_called_unstable() -> None:
    rows, _ = sited(each=12)
    found = estimate(rows, prototypes=True, method="macc", known=100 * np.eye(40, 32)[:20])
    assert found.search is not None and found.search.near[1] - found.search.near[0] > found.estimated // 10
    assert not found.stable


def test_settings_and_sizes_reach_the_method() -> None:
    rows, sizes = RNG(0).normal(size=(60, 6)), RNG(1).integers(1, 50, 60)
    weighted = estimate(rows, prototypes=True, method="silhouette", sizes=sizes).search
    plain = estimate(
        rows, prototypes=True, method="silhouette", sizes=sizes, settings=Silhouette(weighted=False)
    ).search
    equal = estimate(rows, prototypes=True, method="silhouette").search
    assert weighted is not None and plain is not None and equal is not None
    assert plain.scores.tolist() == equal.scores.tolist() != weighted.scores.tolist()


def test_many_sites_are_left_out_by_tenths_where_counting_takes_long() -> None:
    rows, participants = sited(each=60, sites=30)
    slow = estimate(rows, participants=participants, clusters=8, method="louvain")
    assert slow.interval == (8, 8) and {site.without for site in slow.sites} == {None}
    quick = estimate(rows, participants=participants, clusters=8)
    assert {site.without for site in quick.sites} == {8}


def test_left_out_counts_are_those_of_the_rest() -> None:
    rows, participants = sited(each=10)
    rows[3] *= 50
    found = estimate(rows, participants=participants, prototypes=True)
    for site in found.sites:
        rest = [i for i, name in enumerate(participants) if name != site.site]
        assert site.without == estimate(rows[rest], prototypes=True).estimated


def test_json_begins_with_the_documented_keys_and_is_plain() -> None:
    rows, participants = sited(each=10)
    found = estimate(rows, participants=participants, clusters=8, method="ppm-exact")
    said = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert list(said)[:6] == ["method", "estimated", "interval", "prototypes", "seconds", "curve"]
    assert said["interval"] == list(found.interval) and said["curve"].keys() == {"radius", "count"}
    assert max(said["curve"]["count"]) == said["exact"] == said["estimated"]
    assert len(said["grid"]["radius"]) == len(said["grid"]["count"]) == 51
    assert said["sites"][0].keys() == {"site", "prototypes", "withheld", "without"}


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        (np.ones((1, 3)), "1, unstable"),
        (np.eye(2), "1, unstable"),
        (np.ones((6, 3)), "1, stable"),
        (np.zeros((40, 1)), "1, stable"),
    ],
)
def test_smallest_features_have_a_verdict(rows: Floats, verdict: str) -> None:
    for prototypes in (True, False):
        found = estimate(rows, prototypes=prototypes)
        assert found.estimated == 1
        json.dumps(found.as_json(), allow_nan=False)
        if prototypes:
            assert found.verdict == verdict


def test_withheld_prototypes_are_counted_by_site() -> None:
    rows = np.concatenate([np.eye(6).repeat(5, axis=0), 9 * np.eye(6)])
    found = estimate(rows, participants=["a"] * 30 + ["b"] * 6, floor=5)
    assert [(site.prototypes, site.withheld) for site in found.sites] == [(6, 0), (0, 6)]
    assert found.prototypes == 6 and found.sites[1].without is None
    with pytest.raises(AsterismError, match="every prototype is withheld"):
        estimate(rows, floor=50)


@pytest.mark.parametrize(
    ("counts", "estimated", "expected"),
    [
        ([2, 4, 5, 4, 3, 1], 4, (2.0, 6.0, 4 / 6)),
        ([5, 1, 5, 4, 1, 1], 5, (1.0, 2.0, 1 / 2)),
        ([1, 2, 1, 1, 1, 1], 1, (2.0, 3.0, 1 / 3)),
        ([1, 0, 1, 0, 1, 1], 1, None),
        ([9, 8, 7, 6, 5, 4], 2, None),
    ],
)
def test_plateau_is_the_widest_range_within_one(counts: list[int], estimated: int, expected: Any) -> None:
    curve = Curve(np.arange(1.0, 7.0), np.array(counts))
    found = plateau(curve, estimated, largest=20.0)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_plateau_of_separated_classes_lies_between_their_width_and_their_distance() -> None:
    grown = tree(separated(5, 10))
    found = plateau(exact_curve(grown), 5, grown.largest)
    assert found is not None and 3 < found.start < 8 and 20 < found.end < 60


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"method": "guess"}, "no such method: 'guess'"),
        ({"participants": ["a"]}, "4 rows, 1 participants"),
        ({"clusters": 0}, "clusters must be at least 1, got 0"),
        ({"method": "macc"}, "macc needs prototypes of known classes"),
        ({"method": "macc", "known": np.eye(3)}, "known prototypes have 3 columns, features 4"),
        ({"method": "macc", "known": np.full((2, 4), np.nan)}, "a feature is nan"),
        ({"sizes": np.ones(4)}, "sizes are of prototypes, and these rows are images"),
        ({"prototypes": True, "sizes": np.ones(3)}, "3 sizes of 4 rows"),
        ({"prototypes": True, "sizes": np.zeros(4)}, "4 sizes of 4 rows"),
        ({"floor": -1}, "floor must be at least 0, got -1"),
        ({"features": np.array([[0.0], [np.nan]])}, "a feature is nan"),
        ({"features": np.ones(4)}, "shape"),
        ({"features": np.ones((0, 4))}, "no features: 0 rows, 4 columns"),
    ],
)
def test_mistake_is_named(change: dict[str, Any], what: str) -> None:
    arguments: dict[str, Any] = {"features": np.eye(4), **change}
    with pytest.raises(AsterismError, match=what):
        estimate(arguments.pop("features"), **arguments)


def written(folder: Path) -> str:
    rows, participants = sited(each=20)
    np.savez(folder / "features.npz", features=rows, participants=np.array(participants))
    return str(folder / "features.npz")


def test_command_prints_the_answer_and_its_reasons(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["estimate", written(tmp_path), "--clusters", "20"], catch_exceptions=False)
    assert result.exit_code == 0
    for text in ("8 classes (ppm)", "8, stable", "each of 5 sites", "100 prototypes", "paper's 51: at most 8", "█"):
        assert text in result.output


def test_command_takes_known_prototypes_and_settings(app: typer.Typer, tmp_path: Path) -> None:
    np.save(tmp_path / "known.npy", np.eye(9, 32))
    call = ["estimate", written(tmp_path), "--method", "emacs", "--known", str(tmp_path / "known.npy")]
    call += ["--clusters", "10", "--set", "most=12", "--picture", str(tmp_path / "scores.svg")]
    said = CliRunner().invoke(app, call, catch_exceptions=False).output
    for text in ("(emacs)", "stand-in: EMaCS is not published under this name", "4 candidates, best "):
        assert text in said
    document = json.loads(CliRunner().invoke(app, [*call, "--json"], catch_exceptions=False).stdout)
    assert document["search"]["classes"] == [0, 1, 2, 3] and document["about"].startswith("stand-in")
    assert (tmp_path / "scores.svg").read_bytes().startswith(b"<?xml")


def test_command_weighs_stored_prototypes_by_their_sizes(app: typer.Typer, tmp_path: Path) -> None:
    rows, sizes = RNG(0).normal(size=(60, 6)), RNG(1).integers(1, 50, 60)
    np.savez(tmp_path / "pool.npz", features=rows, sizes=sizes)
    call = ["estimate", str(tmp_path / "pool.npz"), "--prototypes", "--method", "silhouette", "--json"]
    document = json.loads(CliRunner().invoke(app, call, catch_exceptions=False).stdout)
    found = estimate(rows, prototypes=True, method="silhouette", sizes=sizes).search
    assert found is not None and document["search"]["score"] == found.scores.tolist()


def test_every_method_is_named_in_the_help() -> None:
    for name in ESTIMATORS:
        assert name in cli_estimate.METHODS
    assert ESTIMATORS["emacs"].about in cli_estimate.METHODS


def test_command_prints_one_json_document(app: typer.Typer, tmp_path: Path) -> None:
    call = ["estimate", written(tmp_path), "--json", "--clusters", "20", "--picture", str(tmp_path / "curve.svg")]
    result = CliRunner().invoke(app, call, catch_exceptions=False)
    assert json.loads(result.stdout)["estimated"] == 8


@pytest.mark.parametrize(("name", "start"), [("curve.svg", b"<?xml"), ("curve.png", b"\x89PNG")])
def test_picture_is_written_and_repeats(app: typer.Typer, tmp_path: Path, name: str, start: bytes) -> None:
    drawn = []
    for _ in range(2):
        call = ["estimate", written(tmp_path), "--clusters", "20", "--picture", str(tmp_path / name)]
        assert f"picture: {tmp_path / name}" in CliRunner().invoke(app, call).output.replace("\n", "")
        drawn.append((tmp_path / name).read_bytes())
    assert drawn[0].startswith(start) and drawn[0] == drawn[1]


def test_smallest_estimates_can_be_drawn_and_said(tmp_path: Path) -> None:
    from asterism.report.stability import write_picture

    for rows in (np.ones((1, 3)), np.ones((5, 3)), np.eye(2)):
        found: Estimate = estimate(rows, prototypes=True)
        write_picture(found, tmp_path / "curve.png")
        assert cli_estimate.lines(found)[0] == "estimated   1 classes (ppm)"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--method", "guess"], "no such method: 'guess'"),
        (["--method", "macc"], "macc needs prototypes of known classes, and there are none"),
        (["--method", "louvain", "--set", "neighbors=3"], "unknown key 'neighbors'"),
        (["--picture", "curve.jpg"], "no kind of picture: .jpg"),
        (["--participants", "who"], "no array 'who'"),
    ],
)
def test_mistake_at_the_command_line_ends_with_three_lines(
    app: typer.Typer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    what: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["asterism", "estimate", written(tmp_path), *arguments])
    with pytest.raises(SystemExit) as caught:
        main(app)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert what in said and "where:" in said and "fix:" in said
