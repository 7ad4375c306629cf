"""The printed numbers were typed in whole, and the cells of the paper that contradict each other are these."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest

from asterism.errors import AsterismError
from asterism.suite.paper import names, printed

# Cells whose printed "all" is not the class-count mean of "known" and "novel" (stage, group, row): by how many points.
ILL_FITTING: dict[str, dict[tuple[str, str, str], float]] = {
    "algorithms": {
        ("novel-1", "tiny-imagenet", "scaffold-gal"): 1.04,
        ("novel-1", "imagenet-subset", "scaffold-kmeans"): 2.88,
        ("novel-1", "imagenet-subset", "scaffold-gal"): 1.62,
    },
    "central": {
        ("novel-1", "cifar100", "gal-without-pcl"): 0.8,
        ("novel-1", "tiny-imagenet", "gal-without-pcl"): 0.93,
        ("novel-1", "imagenet-subset", "gal-without-pcl"): 0.82,
    },
    "fine-grained": {
        ("novel-1", "cub200", "gm"): 0.89,
        ("novel-1", "cub200", "opencon"): 0.48,
        ("novel-1", "cub200", "gal"): 0.69,
        ("novel-1", "cars", "autonovel"): 0.77,
        ("novel-1", "cars", "gm"): 0.93,
        ("novel-1", "cars", "incd"): 2.11,
        ("novel-1", "cars", "opencon"): -0.48,
        ("novel-1", "cars", "orchestra"): 1.29,
        ("novel-1", "cars", "gal"): 1.27,
        ("novel-1", "herbarium19", "autonovel"): -0.46,
        ("novel-1", "herbarium19", "gm"): -0.48,
        ("novel-1", "herbarium19", "iic"): -0.48,
        ("novel-1", "herbarium19", "opencon"): 0.39,
        ("novel-1", "herbarium19", "orchestra"): 0.36,
    },
    "forgetting": {
        ("start", "cifar100", "known"): -0.94,
    },
    "heterogeneity": {
        ("novel-1", "cifar100", "orchestra"): -1.36,
        ("novel-1", "tiny-imagenet", "orchestra"): -1.24,
        ("novel-1", "imagenet-subset", "gm"): -1.02,
        ("novel-1", "imagenet-subset", "orchestra"): 0.9,
    },
    "init": {
        ("novel-1", "cifar100", "opencon-init"): -0.86,
        ("novel-1", "imagenet-subset", "orchestra-init"): 1.74,
    },
    "main": {
        ("novel-1", "tiny-imagenet", "orchestra"): -0.43,
        ("novel-1", "tiny-imagenet", "gal-without-ema"): 0.59,
        ("novel-1", "imagenet-subset", "orchestra"): 1.86,
    },
    "participants": {
        ("novel-1", "cifar100/50", "autonovel"): -0.38,
        ("novel-1", "cifar100/50", "orchestra"): -0.62,
        ("novel-1", "cifar100/100", "autonovel"): -0.54,
    },
    "partitions-cifar100": {
        ("novel-1", "cifar100/2025", "incd"): 0.92,
        ("novel-1", "cifar100/2025", "orchestra"): 0.64,
    },
    "partitions-imagenet-subset": {
        ("novel-1", "imagenet-subset/2023", "orchestra"): 0.46,
        ("novel-1", "imagenet-subset/2024", "opencon"): 0.38,
    },
    "partitions-tiny-imagenet": {
        ("novel-1", "tiny-imagenet/2023", "opencon"): 0.65,
        ("novel-1", "tiny-imagenet/2024", "autonovel"): 0.46,
        ("novel-1", "tiny-imagenet/2024", "incd"): 0.63,
    },
    "sensitivity-beta": {
        ("novel-1", "cifar100", "0.10"): -3.06,
        ("novel-1", "cifar100", "0.95"): 0.68,
    },
}


def test_every_table_is_there_with_all_its_cells() -> None:
    cells = {name: len(printed(name).cells) for name in names()}
    assert cells == {
        "algorithms": 18, "central": 30, "class-numbers": 45, "class-numbers-fine-grained": 36, "fine-grained": 21,
        "forgetting": 3, "heterogeneity": 21, "init": 24, "main": 33, "participants": 21, "partitions-cifar100": 24,
        "partitions-imagenet-subset": 24, "partitions-tiny-imagenet": 24, "sensitivity-beta": 5, "sensitivity-eta": 5,
        "two-stages": 54,
    }  # fmt: skip


def test_exactly_these_cells_contradict_each_other() -> None:
    assert {name: found for name in names() if (found := printed(name).ill_fitting())} == ILL_FITTING


def test_what_stands_behind_the_sign_is_a_variance() -> None:
    cell = printed("main").cell("novel-1", "cifar100", "incd")
    assert cell["novel"].mean == 35.2
    assert cell["novel"].deviation == pytest.approx(15.5**0.5)
    assert printed("participants").cell("novel-1", "cifar100/50", "gal")["novel"].deviation is None


def test_rows_that_the_paper_prints_twice_agree() -> None:
    ours = {name: printed(name).cell("novel-1", "cifar100", "gal") for name in ("main", "init")}
    assert ours["main"] == ours["init"]
    two, numbers = printed("two-stages"), printed("class-numbers")
    for estimator in ("macc", "emacs", "ppm"):
        for stage, group, true in (
            ("novel-1", "cifar100", 20),
            ("novel-2", "cifar100", 10),
            ("novel-1", "tiny-imagenet", 30),
        ):
            both = two.cell(stage, group, f"gal-{estimator}"), numbers.cell("novel-1", f"{group}/{true}", estimator)
            assert both[0]["estimated"] == both[1]["estimated"]


@pytest.mark.parametrize("name", ["class-numbers", "class-numbers-fine-grained"])
def test_average_errors_follow_from_the_estimates(name: str) -> None:
    table = printed(name)
    errors: dict[str, list[float]] = {}
    for (_, group, row), cell in table.cells.items():
        true = int(group.partition("/")[2])
        errors.setdefault(row, []).append(100 * abs(cell["estimated"].mean - true) / true)
    assert {row: fmean(found) for row, found in errors.items()} == pytest.approx(table.average_error, abs=0.1)


def test_rows_are_named_alike_in_all_tables() -> None:
    rows = Counter(row for name in names() for _, _, row in printed(name).cells)
    assert {"gal", "autonovel", "gm", "incd", "iic", "opencon", "orchestra"} <= set(rows)


def test_unknown_table_is_refused() -> None:
    with pytest.raises(AsterismError, match="no printed table"):
        printed("mian")
