"""A plan tells runs, images, minutes and memory, and what is done or shared costs nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.errors import AsterismError
from asterism.suite.calibrate import calibrated
from asterism.suite.cost import Forecast, Rates, forecast, images_per_stage, rates
from asterism.suite.footprint import activations, parameters
from asterism.suite.plan import Suite, places, planned, read_suite
from asterism.suite.records import Found, read_records
from tests.suite.conftest import FAILING, TINY, make, read
from tests.suite.test_experiments import ROOT
from tests.suite.test_table import record

NOTHING = Found(())


def plan_of(suite: Suite, folder: Path, found: Found = NOTHING, measured: Rates | None = None) -> Forecast:
    return forecast(suite, places(suite), found, folder / "work", measured or Rates(given=1e5))


def test_main_table_of_cifar100_is_six_and_one_and_a_half_million_images(tmp_path: Path) -> None:
    suite = read_suite(ROOT / "experiments/main.toml")
    plan = planned(suite, next(p for p in places(suite) if p.row == "gal"))
    assert images_per_stage(plan.experiment, 500) == [6_000_000, 1_500_000]
    gal = places(suite, only=["gal", "gal-without-swl", "gal-without-pcl"], datasets=["cifar100"], seeds=[2023])
    told = forecast(suite, gal, NOTHING, tmp_path, Rates(given=75_000)).as_json()
    assert (told["runs"], told["known_stages"]) == (3, 2)
    assert told["images"] == 2 * 6_000_000 + 3 * 1_500_000
    assert told["minutes"] == pytest.approx(((12e6 + 1.1 * 4.5e6) / 75_000 + 5 * 3) / 60, abs=0.01)
    assert 5e9 < told["memory"] < 40e9


def test_kmeans_trains_on_nothing() -> None:
    suite = read_suite(ROOT / "experiments/algorithms.toml")
    plan = planned(suite, next(p for p in places(suite) if p.row == "scaffold-kmeans"))
    assert images_per_stage(plan.experiment, 500) == [6_000_000, 0]
    assert Rates().seconds(plan.experiment, "cifar100", "kmeans", 0) == 0


def test_images_of_a_plan_are_those_that_are_trained(tiny: Suite, tmp_path: Path) -> None:
    told = [plan_of(tiny, tmp_path).as_json()["images"]]
    make(tiny, tmp_path, seeds=(2023, 2024))
    records = read_records(tmp_path / "results").records
    known = {r.origin: r.stages[0].images for r in records}
    trained = sum(known.values()) + sum(r.stages[1].images for r in records)
    assert told[0] == pytest.approx(trained, rel=0.3)


def test_minutes_of_a_plan_are_within_a_third_of_what_it_takes(tiny: Suite, tmp_path: Path) -> None:
    (gal, *_) = (p for p in places(tiny) if p.row == "gal")
    made = [record(tiny, p, 40.0) for p in places(tiny, seeds=[2023])]
    measured = rates(made)
    assert measured.images == {("cifar100", "known"): 100.0, ("cifar100", "gal"): 100.0}
    assert measured.overhead == {"cifar100": 10.0}
    images = images_per_stage(planned(tiny, gal).experiment, 135)
    told = forecast(tiny, places(tiny, seeds=[2024]), Found(tuple(made)), tmp_path, measured)
    assert told.minutes * 60 == pytest.approx(images[0] / 100 + 10 + 2 * (images[1] / 100 + 10))


def test_done_and_shared_parts_cost_nothing(tiny: Suite, tmp_path: Path) -> None:
    before = plan_of(tiny, tmp_path).as_json()
    assert (before["runs"], before["known_stages"], before["kept"]) == (4, 2, 0)
    make(tiny, tmp_path)
    after = plan_of(tiny, tmp_path, read_records(tmp_path / "results")).as_json()
    assert (after["runs"], after["known_stages"], after["kept"]) == (2, 1, 2)


def test_refused_settings_are_told_in_the_plan(tmp_path: Path) -> None:
    told = plan_of(read(tmp_path, TINY + FAILING), tmp_path)
    assert list(told.refused) == ["cifar100 refused seed 2023", "cifar100 refused seed 2024"]


def test_without_any_rate_the_plan_asks_for_one(tiny: Suite, tmp_path: Path) -> None:
    with pytest.raises(AsterismError, match="no measured rate") as error:
        plan_of(tiny, tmp_path, measured=Rates())
    assert "--calibrate" in error.value.fix


def test_calibration_measures_each_method_once(tiny: Suite) -> None:
    found = calibrated(tiny, places(tiny), Rates())
    assert found.images.keys() == {("cifar100", "known"), ("cifar100", "gal")}
    assert all(rate > 0 for rate in found.images.values())


def test_footprint_of_resnet18() -> None:
    suite = read_suite(ROOT / "experiments/main.toml")
    model = planned(suite, places(suite, only=["gal"], datasets=["cifar100"])[0]).experiment.model
    assert parameters(model, (3, 32, 32), 80) == pytest.approx(11.2e6, rel=0.02)
    assert 1e6 < activations(model, (3, 32, 32)) < 3e6
