from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console
from torch import Tensor

from asterism.data.images import UNLABELLED, ImageSet
from asterism.data.picture import plain_picture, site_class_picture
from asterism.data.split import FederationSplit, StageSplit, check, load_split, make_split, save, table
from asterism.data.split_settings import Split
from asterism.errors import AsterismError

PARTITIONS = ("class", "client", "client-prior", "iid")


def images(labels: Sequence[int], classes: int, sites: Sequence[str] = ()) -> ImageSet:
    n = len(labels)
    return ImageSet(
        pixels=torch.zeros(n, 1, 2, 2, dtype=torch.uint8),
        labels=torch.tensor(labels, dtype=torch.int64),
        ids=[f"image-{i}.png" for i in range(n)],
        classes=tuple(f"class {c}" for c in range(classes)),
        sites=tuple(sites),
    )


def balanced(classes: int, each: int) -> ImageSet:
    return images([i % classes for i in range(classes * each)], classes)


def settings(**values: object) -> Split:
    return Split.model_validate({"known": 3, "novel": [2, 1], "participants": 4, **values})


def same(one: StageSplit, other: StageSplit) -> bool:
    return (one.name, one.classes, [*one.shares]) == (other.name, other.classes, [*other.shares]) and all(
        torch.equal(share, other.shares[name]) for name, share in one.shares.items()
    )


def moved(split: FederationSplit, stage: int, shares: dict[str, Tensor]) -> FederationSplit:
    """``split`` with some shares of one stage replaced."""
    stages = list(split.stages)
    stages[stage] = replace(stages[stage], shares={**stages[stage].shares, **shares})
    return replace(split, stages=tuple(stages))


@pytest.fixture
def train() -> ImageSet:
    return balanced(classes=7, each=20)


@pytest.fixture
def sited() -> ImageSet:
    labels = [0, 1, 2, 0, 1, 2, UNLABELLED, UNLABELLED]
    return images(labels, 3, ["b-10", "b-2", "b-2", "a", "b-10", "a", "a", "b-2"])


@given(
    labels=st.lists(st.integers(UNLABELLED, 6), max_size=80),
    partition=st.sampled_from(PARTITIONS),
    order=st.sampled_from(["label", "seed"]),
    alpha=st.sampled_from([0.001, 0.1, 100.0]),
    seed=st.integers(0, 50),
)
def test_every_labelled_image_of_a_stage_is_used_once_and_no_other(
    labels: list[int], partition: str, order: str, alpha: float, seed: int
) -> None:
    train = images(labels, 7)
    split = make_split(train, settings(partition=partition, order=order, alpha=alpha), seed)
    check(split, train)
    for stage in split.stages:
        used = torch.cat([*stage.shares.values()]).sort().values
        wanted = {train.classes.index(name) for name in stage.classes}
        assert used.tolist() == [i for i, label in enumerate(labels) if label in wanted]
        assert all(torch.equal(share, share.sort().values) for share in stage.shares.values())
        assert all(share.dtype == torch.int64 for share in stage.shares.values())


@pytest.mark.parametrize("partition", PARTITIONS)
def test_another_stage_leaves_earlier_ones_as_they_were(train: ImageSet, partition: str) -> None:
    few, many = (
        make_split(train, settings(novel=novel, order="seed", partition=partition), 5) for novel in ([2], [2, 1, 1])
    )
    assert [stage.name for stage in many.stages] == ["known", "novel-1", "novel-2", "novel-3"]
    assert all(same(one, other) for one, other in zip(few.stages, many.stages, strict=False))


def test_stages_of_one_size_are_drawn_apart(train: ImageSet) -> None:
    _, first, second = make_split(train, settings(novel=[2, 2]), 5).stages
    assert any((first.shares[name] + 2).tolist() != share.tolist() for name, share in second.shares.items())


def test_same_seed_gives_the_same_split_and_another_seed_another(train: ImageSet) -> None:
    first, again, other = (make_split(train, settings(), seed) for seed in (1, 1, 2))
    assert all(same(one, two) for one, two in zip(first.stages, again.stages, strict=True))
    assert not same(first.stages[0], other.stages[0])


def test_the_split_seed_goes_before_the_seed_of_the_run(train: ImageSet) -> None:
    own, run = make_split(train, settings(seed=7), 1), make_split(train, settings(), 7)
    assert all(same(one, two) for one, two in zip(own.stages, run.stages, strict=True))
    assert own.settings.seed == run.settings.seed == 7


def test_label_order_deals_classes_as_they_come_and_seed_order_shuffles_them(train: ImageSet) -> None:
    plain, drawn = (make_split(train, settings(order=order), 3) for order in ("label", "seed"))
    assert [stage.classes for stage in plain.stages] == [
        ("class 0", "class 1", "class 2"),
        ("class 3", "class 4"),
        ("class 5",),
    ]
    assert [len(stage.classes) for stage in drawn.stages] == [3, 2, 1]
    assert drawn.stages[0].classes != plain.stages[0].classes


def test_participants_are_numbered_with_equal_width(train: ImageSet) -> None:
    assert make_split(train, settings(), 0).participants == ("site-01", "site-02", "site-03", "site-04")
    hundred = make_split(train, settings(participants=100), 0).participants
    assert (hundred[0], hundred[99]) == ("site-001", "site-100")
    assert list(hundred) == sorted(hundred)


@pytest.mark.parametrize("participants", [10, 20, 100])
def test_alpha_of_a_thousandth_runs_through_with_empty_participants(participants: int) -> None:
    train = balanced(classes=20, each=50)
    split = make_split(train, settings(known=16, novel=[4], participants=participants, alpha=0.001), 2023)
    check(split, train)
    assert min(len(share) for share in split.stages[1].shares.values()) == 0


def test_more_classes_than_the_data_has_are_refused(train: ImageSet) -> None:
    with pytest.raises(AsterismError, match="ask for 8 classes, the data has 7") as caught:
        make_split(train, settings(novel=[5]), 0)
    assert caught.value.where == "split.novel"


def test_a_minimum_is_kept_by_redrawing_the_known_stage_alone(train: ImageSet) -> None:
    free = make_split(train, settings(alpha=0.2), 1)
    least = min(len(share) for share in free.stages[0].shares.values())
    floored = make_split(train, settings(alpha=0.2, minimum=least + 1), 1)
    assert min(len(share) for share in floored.stages[0].shares.values()) > least
    assert same(free.stages[1], floored.stages[1])
    check(floored, train)


def test_a_minimum_that_already_holds_changes_nothing(train: ImageSet) -> None:
    free, floored = (make_split(train, settings(partition="iid", minimum=each), 1) for each in (0, 15))
    assert same(free.stages[0], floored.stages[0])


def test_a_minimum_out_of_reach_is_an_error_with_a_way_out(train: ImageSet) -> None:
    with pytest.raises(AsterismError, match="has 15 known images, fewer than 16") as caught:
        make_split(train, settings(partition="iid", minimum=16), 1)
    assert caught.value.where == "split.minimum"
    assert "100 draws" in caught.value.fix


def test_by_site_follows_the_manifest_in_natural_order(sited: ImageSet) -> None:
    split = make_split(sited, settings(known=2, novel=[1], partition="by-site"), 0)
    assert split.participants == ("a", "b-2", "b-10")
    assert {name: share.tolist() for name, share in split.stages[0].shares.items()} == {
        "a": [3],
        "b-2": [1],
        "b-10": [0, 4],
    }


def test_by_site_gives_unlabelled_images_to_the_last_novel_stage(sited: ImageSet) -> None:
    split = make_split(sited, settings(known=1, novel=[1, 1], partition="by-site"), 0)
    assert [stage.shares["a"].tolist() for stage in split.stages] == [[3], [], [5, 6]]
    assert [stage.shares["b-2"].tolist() for stage in split.stages] == [[], [1], [2, 7]]
    check(split, sited)


def test_by_site_leaves_unlabelled_images_unused_without_a_novel_stage(sited: ImageSet) -> None:
    split = make_split(sited, settings(known=3, novel=[], partition="by-site"), 0)
    assert split.stages[0].shares["a"].tolist() == [3, 5]


def test_by_site_holds_participants_to_the_minimum(sited: ImageSet) -> None:
    with pytest.raises(AsterismError, match="has 1 known images, fewer than 2"):
        make_split(sited, settings(known=2, novel=[1], partition="by-site", minimum=2), 0)


def test_by_site_needs_a_participant_for_every_image(train: ImageSet, sited: ImageSet) -> None:
    with pytest.raises(AsterismError, match="name no participants"):
        make_split(train, settings(partition="by-site"), 0)
    gap = replace(sited, sites=("a", "", *sited.sites[2:]))
    with pytest.raises(AsterismError, match="has no participant") as caught:
        make_split(gap, settings(known=3, novel=[], partition="by-site"), 0)
    assert caught.value.where == "image-1.png"


@pytest.mark.parametrize(
    "wrong", [{"known": 0}, {"novel": [0]}, {"alpha": 0}, {"alpha": float("inf")}, {"partition": "dirichlet"}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        settings(**wrong)


def test_table_counts_labelled_images_by_stage_participant_and_class(sited: ImageSet) -> None:
    split = make_split(sited, settings(known=2, novel=[1], partition="by-site"), 0)
    assert table(split, sited.labels, 3).tolist() == [
        [[1, 0, 0], [0, 1, 0], [1, 1, 0]],
        [[0, 0, 1], [0, 0, 1], [0, 0, 0]],
    ]


def test_check_names_an_image_used_twice_and_both_holders(train: ImageSet) -> None:
    split = make_split(train, settings(partition="iid"), 0)
    image = split.stages[0].shares["site-02"][:1]
    extra = torch.cat([split.stages[1].shares["site-03"], image])
    with pytest.raises(AsterismError, match=f"image {int(image)} is used more than once") as caught:
        check(moved(split, 1, {"site-03": extra}), train)
    assert caught.value.where == "known/site-02, novel-1/site-03"


def test_check_names_a_known_image_that_nobody_holds(train: ImageSet) -> None:
    split = make_split(train, settings(partition="iid"), 0)
    lost, *rest = split.stages[0].shares["site-01"].tolist()
    with pytest.raises(AsterismError, match=f"image {lost} is of a known class but not in"):
        check(moved(split, 0, {"site-01": torch.tensor(rest)}), train)


def test_check_names_a_stranger_in_the_known_stage(train: ImageSet) -> None:
    split = make_split(train, settings(partition="iid"), 0)
    unused = 6
    share = torch.cat([split.stages[0].shares["site-04"], torch.tensor([unused])])
    with pytest.raises(AsterismError, match="image 6 is in the known stage but of no known class"):
        check(moved(split, 0, {"site-04": share}), train)


@pytest.mark.parametrize("index", [-1, 140])
def test_check_names_an_index_outside_the_data(train: ImageSet, index: int) -> None:
    split = make_split(train, settings(), 0)
    with pytest.raises(AsterismError, match=f"image {index} is not among the 140 images"):
        check(moved(split, 1, {"site-01": torch.tensor([index])}), train)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_saved_split_comes_back_as_it_was(train: ImageSet, tmp_path: Path, partition: str) -> None:
    split = make_split(train, settings(partition=partition, alpha=0.001), 3)
    save(split, tmp_path / "split.json", train)
    back = load_split(tmp_path / "split.json", train)
    assert (back.participants, back.settings, back.data) == (split.participants, split.settings, split.data)
    assert all(same(one, two) for one, two in zip(back.stages, split.stages, strict=True))
    assert [file.name for file in tmp_path.iterdir()] == ["split.json"]


def test_a_kept_file_goes_before_seed_and_partition(train: ImageSet, tmp_path: Path) -> None:
    kept, path = make_split(train, settings(), 3), tmp_path / "split.json"
    save(kept, path, train)
    used = make_split(train, settings(file=str(path), partition="iid", participants=9), 4)
    assert all(same(one, two) for one, two in zip(kept.stages, used.stages, strict=True))
    with pytest.raises(AsterismError, match=r"novel = \[2\] differ from the split file") as caught:
        make_split(train, settings(file=str(path), novel=[2]), 3)
    assert caught.value.fix == "the file has known = 3 and novel = [2, 1]"


def test_a_full_disk_leaves_the_earlier_file_and_no_other(
    train: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "split.json"
    save(make_split(train, settings(), 3), path, train)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AsterismError, match="cannot write: No space left on device"):
        save(make_split(train, settings(), 4), path, train)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["split.json"]


def test_a_folder_that_cannot_be_made_is_named(train: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    path = tmp_path / "taken" / "split.json"
    with pytest.raises(AsterismError, match="cannot write") as caught:
        save(make_split(train, settings(), 3), path, train)
    assert caught.value.where == str(path)


def test_a_truncated_file_is_refused_at_every_length(train: ImageSet, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    save(make_split(train, settings(), 3), path, train)
    whole = path.read_text().rstrip()
    for length in range(0, len(whole), 97):
        path.write_text(whole[:length])
        with pytest.raises(AsterismError, match="not a split file") as caught:
            load_split(path, train)
        assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (["format"], 2, "format = 2 is not known"),
        (["stages"], [], "stages = [] is refused"),
        (["stages", 0, "name"], "novel-1", "the stages must be known, novel-1, novel-2"),
        (["stages", 1, "classes"], ["class 0", "class 4"], "class 'class 0' is unknown or in two stages"),
        (["stages", 1, "shares", "site-01"], [10**6], "image 1000000 is not among the 140 images"),
        (["stages", 1, "shares", "site-01"], [10**30], "is refused"),
        (["stages", 1, "shares"], {"site-01": []}, "name every participant once"),
        (["participants"], "site-01", "participants = 'site-01' is refused"),
        (["colour"], "red", "unknown key 'colour'"),
    ],
)
def test_a_damaged_file_is_refused_by_name(
    train: ImageSet, tmp_path: Path, keys: list[str | int], value: object, message: str
) -> None:
    path = tmp_path / "split.json"
    save(make_split(train, settings(), 3), path, train)
    content = place = json.loads(path.read_text())
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(AsterismError) as caught:
        load_split(path, train)
    assert message in caught.value.what
    assert str(path) in caught.value.where


def test_a_file_that_is_missing_or_no_table_is_refused(train: ImageSet, tmp_path: Path) -> None:
    with pytest.raises(AsterismError, match="no such split file"):
        load_split(tmp_path / "split.json", train)
    (tmp_path / "split.json").write_text("[1, 2]")
    with pytest.raises(AsterismError, match="holds no table"):
        load_split(tmp_path / "split.json", train)


def test_a_split_for_other_data_is_refused_with_what_differs(train: ImageSet, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    save(make_split(train, settings(), 3), path, train)
    others = {
        "made for 140 images, these are 70": balanced(7, 10),
        "other class names": replace(train, classes=train.classes[::-1]),
        "other labels": replace(train, labels=train.labels.flip(0)),
    }
    for message, other in others.items():
        with pytest.raises(AsterismError, match=message):
            load_split(path, other)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_picture_fits_the_width_and_keeps_totals(width: int) -> None:
    train = balanced(classes=100, each=30)
    split = make_split(train, settings(known=80, novel=[20], participants=12), 0)
    title, _, *rows, scale = plain_picture(split, split.stages[0], train.labels, width=width).splitlines()
    assert title == "known: 80 classes, 2,400 images, 12 participants"
    assert max(len(line) for line in rows) <= width
    assert [row.split()[0] for row in rows] == list(split.participants)
    sizes = [len(share) for share in split.stages[0].shares.values()]
    held = (table(split, train.labels, 100)[0] > 0).sum(axis=1)
    totals = [row.rpartition("│")[2].split() for row in rows]
    assert totals == [[f"{size:,}", str(count)] for size, count in zip(sizes, held, strict=True)]
    assert scale.startswith(
        {40: "one column = 5 classes", 80: "one column = 2 classes"}.get(width, "one column = 1 class,")
    )


def test_picture_shades_by_count_and_shows_even_one_image() -> None:
    labels = [0] * 100 + [1] * 1 + [2] * 50
    train = images(labels, 4, ["only"] * len(labels))
    split = make_split(train, settings(known=4, novel=[], partition="by-site"), 0)
    row = plain_picture(split, split.stages[0], train.labels).splitlines()[2]
    assert row == "only │█░▒ │     151    3"


def test_picture_says_how_many_images_have_no_label(sited: ImageSet) -> None:
    split = make_split(sited, settings(known=2, novel=[1], partition="by-site"), 0)
    title = plain_picture(split, split.stages[1], sited.labels).splitlines()[0]
    assert title == "novel-1: 1 classes, 4 images, 3 participants (2 without a label)"


def test_picture_for_the_terminal_says_the_same_as_the_plain_one(train: ImageSet) -> None:
    split = make_split(train, settings(), 0)
    console = Console(file=StringIO(), width=70, force_terminal=False)
    with console.capture() as captured:
        console.print(site_class_picture(split, split.stages[0], train.labels))
    plain = plain_picture(split, split.stages[0], train.labels, width=70)
    assert [line.rstrip() for line in captured.get().splitlines()] == plain.splitlines()
