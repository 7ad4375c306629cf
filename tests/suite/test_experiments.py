"""Every suite that comes with the project is whole: its rows stand in the paper's table, its settings are accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asterism.algorithms import ALGORITHMS
from asterism.errors import AsterismError
from asterism.estimators import ESTIMATORS
from asterism.suite.identity import Settings, decisive_for_known
from asterism.suite.paper import names, printed
from asterism.suite.plan import Planned, Suite, groups, places, planned, read_suite

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "experiments").glob("*.toml"))
# Rows of ours that the paper has no line for.
EXTRA = {"ppm-exact", "gal-mixture-calibrated"}
METHODS = re.compile(r'algorithm[^{]*\{ name = "([a-z]+)"')
COUNTERS = re.compile(r'estimator[^{]*\{ name = "([a-z-]+)"')


def suites() -> list[Suite]:
    return [read_suite(file) for file in FILES]


def missing(suite: Suite, row: str) -> set[str]:
    """Methods and estimators that a row names and the software does not have yet."""
    text = (ROOT / "experiments" / f"{suite.name}.toml").read_text("utf-8")
    (block,) = (part for part in text.split("[[rows]]")[1:] if f'\nname = "{row}"\n' in part)
    novel = {name for name in METHODS.findall(block) if name not in ("fedprox", "scaffold", "moon")}
    return (novel - set(ALGORITHMS)) | (set(COUNTERS.findall(block)) - set(ESTIMATORS))


@pytest.mark.parametrize("suite", suites(), ids=lambda suite: suite.name)
def test_every_run_is_accepted_or_names_a_method_that_is_to_come(suite: Suite) -> None:
    plans = []
    for place in places(suite):
        if absent := missing(suite, place.row):
            with pytest.raises(AsterismError, match="|".join(absent)):
                planned(suite, place)
        else:
            plans.append(planned(suite, place))
    assert all(plan.experiment.seed == plan.place.seed for plan in plans)
    assert all(plan.known.novel == () for plan in plans)


@pytest.mark.parametrize("suite", [s for s in suites() if s.paper], ids=lambda suite: suite.name)
def test_rows_and_groups_are_those_that_the_paper_prints(suite: Suite) -> None:
    table = printed(suite.paper)
    moments = ["start"] if suite.moment == "start" else list(suite.stages)
    rows = {row.name for row in suite.rows} - EXTRA
    ours = {f"{dataset}/{setting}" if setting else dataset for dataset, setting in groups(suite)}
    if suite.settings and not any("/" in group for _, group, _ in table.cells):
        ours = {group.partition("/")[0] for group in ours}
    cells = {(stage, group, row) for stage in moments for group in ours for row in rows}
    assert cells == set(table.cells)


def test_every_printed_table_has_a_suite() -> None:
    assert {suite.paper for suite in suites() if suite.paper} == set(names())


def test_named_departures_have_a_section() -> None:
    sections = re.findall(r"^## (.+)$", (ROOT / "docs/departures.md").read_text("utf-8"), re.MULTILINE)
    named = {
        departure
        for suite in suites()
        for departure in (
            *suite.departures,
            *(d for choice in (*suite.rows, *suite.settings) for d in choice.departures),
        )
    }
    assert named - set(sections) == set()
    assert named


def plan_of(name: str, row: str, dataset: str = "cifar100") -> Planned:
    suite = read_suite(ROOT / "experiments" / f"{name}.toml")
    place = next(p for p in places(suite, seeds=[2023]) if (p.row, p.dataset) == (row, dataset))
    return planned(suite, place)


def test_main_table_is_the_papers_setting() -> None:
    e = plan_of("main", "gal").experiment
    assert (e.split.known, e.split.novel, e.split.participants, e.federation.clients) == (80, (20,), 10, 5)
    assert (e.known.rounds, e.novel[0].rounds, e.train.local_epochs, e.train.batch) == (30, 30, 10, 256)
    assert (e.known.eta, e.novel[0].discovery.classes, e.split.alpha) == (0.1, 20, 0.1)
    assert plan_of("main", "gal-without-pcl").known.known.eta == 0.0
    assert plan_of("main", "gal-without-init").experiment.novel[0].discovery.initial == "random"


def test_one_known_stage_serves_whatever_the_paper_trained_once_for() -> None:
    def known(name: str, row: str) -> Settings:
        return decisive_for_known(plan_of(name, row))

    main = known("main", "gal")
    assert known("main", "autonovel" if "autonovel" in ALGORITHMS else "gal-without-swl") == main
    assert known("heterogeneity", "gal") == known("participants", "gal") == known("central", "gal") == main
    assert known("algorithms", "fedprox-gal") != main != known("main", "gal-without-pcl")
    assert known("two-stages", "gal-ppm") == known("class-numbers", "ppm") != main


def test_settings_of_the_other_tables() -> None:
    assert plan_of("heterogeneity", "gal").experiment.split.alpha == 0.001
    assert plan_of("participants", "gal").experiment.federation.clients == 20
    assert plan_of("central", "gal").experiment.split.participants == 1
    assert plan_of("partitions-cifar100", "gal").experiment.split.order == "seed"
    two = plan_of("two-stages", "gal-ppm", "tiny-imagenet").experiment
    assert (two.split.known, two.split.novel, len(two.novel)) == (150, (30, 20), 2)
