from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from asterism.algorithms.autonovel import AutoNovel
from asterism.algorithms.gal import Gal
from asterism.errors import AsterismError
from asterism.estimators import Ppm
from asterism.experiment import Experiment, builtin_names, dump, load

PAPER = {  # known classes, novel classes by stage, network: the paper's appendix and its tables
    "cifar100": (80, (20,), "resnet18"),
    "cifar100-two-stage": (70, (20, 10), "resnet18"),
    "tiny-imagenet": (180, (20,), "resnet18"),
    "imagenet-subset": (80, (20,), "resnet34"),
    "cub200": (160, (20,), "resnet34"),
    "cars": (130, (20,), "resnet34"),
    "herbarium19": (600, (83,), "resnet34"),
}


def test_every_builtin_is_listed() -> None:
    assert builtin_names() == sorted([*PAPER, "demo"])


@pytest.mark.parametrize("name", builtin_names())
def test_dumped_configuration_loads_as_the_same_experiment(name: str) -> None:
    experiment = load(name)
    assert Experiment.model_validate(tomllib.loads(dump(experiment))) == experiment


@pytest.mark.parametrize("name", PAPER)
def test_builtins_have_the_papers_settings(name: str) -> None:
    e = load(name)
    assert (e.split.known, e.split.novel, e.model.name) == PAPER[name]
    assert (e.split.participants, e.federation.clients, e.split.alpha) == (10, 5, 0.1)
    assert (e.known.rounds, e.train.local_epochs, e.train.batch, e.train.lr) == (30, 10, 256, 0.05)
    assert (e.known.eta, e.known.tau, e.seeds) == (0.1, 0.07, (2023, 2024, 2025))
    assert len(e.novel) == len(e.split.novel)
    for novel in e.novel:
        gal, discovery, screening = novel.algorithm, novel.discovery, novel.screening
        assert isinstance(gal, Gal)
        assert (novel.rounds, gal.tau, gal.beta) == (30, 0.07, 0.99)
        assert discovery.estimator == Ppm(steps=50)
        assert (screening.threshold, screening.filter) == (0.5, False)


def test_overrides_reach_list_items_and_may_be_a_mapping() -> None:
    assert load("cifar100", ["novel.0.algorithm.name=gal", "known.rounds=4", "seed=7"]).known.rounds == 4
    assert load("cifar100", {"known.rounds": 4, "model.name": "small"}).model.name == "small"


def test_more_novel_stages_than_classes_for_them_are_refused() -> None:
    with pytest.raises(AsterismError, match="2 novel stages"):
        load("cifar100", ["novel=[{rounds=1},{rounds=2}]"])


def test_quorum_that_can_never_be_met_is_refused() -> None:
    with pytest.raises(AsterismError, match=r"quorum = 6 can never"):
        load("cifar100", ["federation.quorum=6"])


def test_unknown_configuration_lists_the_known_ones() -> None:
    with pytest.raises(AsterismError, match="cifar100-two-stage"):
        load("cifar10")


def test_path_of_a_file_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\n[split]\nknown = 3\n')
    assert load(tmp_path / "mine.toml").name == "mine"


@pytest.mark.parametrize("name", ["../up", "", "a b", "-x"])
def test_name_that_could_not_be_a_folder_is_refused(name: str) -> None:
    with pytest.raises(AsterismError):
        load("demo", {"name": name})


def test_another_algorithm_begins_with_its_own_defaults() -> None:
    novel = load("cifar100", ["novel.0.algorithm.name=autonovel", "novel.0.algorithm.preset=full"]).novel[0]
    assert isinstance(novel.algorithm, AutoNovel)
    assert novel.algorithm.consistency == 50
    same = load("cifar100", ["novel.0.algorithm.name=gal"]).novel[0].algorithm
    assert isinstance(same, Gal) and same.tau == 0.07


def test_a_method_for_one_stage_is_refused_for_two() -> None:
    with pytest.raises(AsterismError, match="autonovel is defined for one novel stage; for several take gal, kmeans"):
        load("cifar100-two-stage", ["novel.1.algorithm.name=autonovel"])
