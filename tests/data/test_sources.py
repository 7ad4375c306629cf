"""From settings to a data set: names and paths, layouts told apart, test parts cut, shapes brought together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from asterism.config import validate
from asterism.data.benchmarks import BENCHMARKS, data_root, missing
from asterism.data.images import ImageSet
from asterism.data.settings import Augment, Images
from asterism.data.sources import CHUNK, cut, load
from asterism.errors import AsterismError


def draw(path: Path, level: int = 0, side: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (level, level, level)).save(path)


def image_set(labels: list[int], classes: int = 3) -> ImageSet:
    """Images that carry their own number in their first two pixels."""
    count = len(labels)
    pixels = torch.zeros(count, 1, 8, 8, dtype=torch.uint8)
    numbers = torch.arange(count)
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = numbers % 256, numbers // 256
    names = tuple(f"class-{i}" for i in range(classes))
    return ImageSet(pixels, torch.tensor(labels), [str(i) for i in range(count)], names)


def numbers(images: ImageSet) -> list[int]:
    corner = images.pixels[:, 0, 0, :2].to(torch.int64)
    return (corner[:, 0] + 256 * corner[:, 1]).tolist()


class TestCut:
    @given(st.lists(st.integers(-1, 2), max_size=60), st.floats(0.05, 0.95), st.integers(0, 9))
    def test_every_class_is_shared_out_and_nothing_is_lost(self, labels: list[int], fraction: float, seed: int) -> None:
        train, test = cut(image_set(labels), fraction, seed=seed)
        assert sorted(numbers(train) + numbers(test)) == list(range(len(labels)))
        for part in (train, test):
            assert [int(id) for id in part.ids] == numbers(part) == sorted(numbers(part))
            assert part.labels.tolist() == [labels[i] for i in numbers(part)]
        for name in range(3):
            total, tested = labels.count(name), test.labels.tolist().count(name)
            assert tested == (min(max(1, round(fraction * total)), total - 1) if total > 1 else 0)
        assert -1 not in test.labels

    def test_seed_decides_and_other_classes_do_not(self) -> None:
        labels = [0] * 40 + [1] * 40

        def tested(labels: list[int], seed: int) -> list[int]:
            return [i for i in numbers(cut(image_set(labels), 0.25, seed=seed)[1]) if i < 40]

        assert tested(labels, 3) == tested(labels, 3) == tested([0] * 40 + [2] * 7, 3)
        assert tested(labels, 3) != tested(labels, 4)

    def test_training_images_stay_in_their_memory(self) -> None:
        images = image_set([0] * (3 * CHUNK + 1))
        start = images.pixels.data_ptr()
        train, test = cut(images, 0.5, seed=0)
        assert train.pixels.data_ptr() == start
        assert sorted(numbers(train) + numbers(test)) == list(range(3 * CHUNK + 1))


class TestLoad:
    def test_digits_are_the_default_and_need_no_download(self) -> None:
        first, again, other = (load(Images(), seed=seed).dataset for seed in (1, 1, 2))
        assert (first.name, len(first.train), len(first.test)) == ("digits", 1347, 450)
        assert first.train.ids == again.train.ids != other.train.ids
        assert first.test.labels.bincount().tolist() == [44, 46, 44, 46, 45, 46, 45, 45, 44, 45]

    def test_arrays_are_brought_to_the_size_and_colour_asked_for(self) -> None:
        dataset = load(Images(size=16, colour="rgb"), seed=1).dataset
        assert dataset.train.shape == dataset.test.shape == (3, 16, 16)

    def test_own_test_part_is_kept_and_skipped_images_are_named(self, tmp_path: Path) -> None:
        draw(tmp_path / "birds/train/ant/1.png", level=1)
        draw(tmp_path / "birds/val/ant/2.png", level=2)
        (tmp_path / "birds/train/ant/0.png").write_bytes(b"broken")
        loaded = load(Images(images=str(tmp_path / "birds"), skip_bad=True), seed=0)
        assert loaded.dataset.name == "birds"
        assert (loaded.dataset.train.ids, loaded.dataset.test.ids) == (["train/ant/1.png"], ["val/ant/2.png"])
        assert loaded.skipped == (str(tmp_path / "birds/train/ant/0.png"),)

    def test_both_parts_get_the_channels_that_one_of_them_needs(self, tmp_path: Path) -> None:
        (tmp_path / "train/ant").mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "train/ant/1.png")
        draw(tmp_path / "test/ant/2.png")
        assert load(Images(images=str(tmp_path)), seed=0).dataset.train.shape == (3, 8, 8)

    def test_manifest_and_arrays_are_told_by_their_suffix(self, tmp_path: Path) -> None:
        draw(tmp_path / "1.png")
        (tmp_path / "list.csv").write_text("path,label\n1.png,ant\n1.png,ant\n")
        np.savez(tmp_path / "all.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 0]))
        for name in ("list.csv", "all.npz"):
            dataset = load(Images(images=str(tmp_path / name)), seed=0).dataset
            assert (dataset.name, len(dataset.train), len(dataset.test)) == (name[:-4], 1, 1)

    def test_other_files_are_refused(self, tmp_path: Path) -> None:
        draw(tmp_path / "1.png")
        with pytest.raises(AsterismError, match="not a source of images"):
            load(Images(images=str(tmp_path / "1.png")), seed=0)

    @pytest.mark.parametrize(("name", "hint"), [("cifar10", "'cifar100'"), ("nowhere/at/all", "data list")])
    def test_unknown_name_gets_the_nearest_one(self, name: str, hint: str) -> None:
        with pytest.raises(AsterismError, match="no such benchmark, file or folder") as error:
            load(Images(images=name), seed=0)
        assert hint in error.value.fix


class TestBenchmarks:
    @pytest.mark.parametrize("folder", ["tiny-imagenet/tiny-imagenet-200", "tiny-imagenet-200", "tiny-imagenet"])
    def test_archive_may_lie_as_fetched_or_as_unpacked_by_hand(self, tmp_path: Path, folder: str) -> None:
        for part in ("train/n01/images", "val/images"):
            draw(tmp_path / folder / part / "1.JPEG")
        (tmp_path / folder / "val/val_annotations.txt").write_text("1.JPEG\tn01\t0\t0\t1\t1\n")
        dataset = load(Images(images="tiny-imagenet", root=str(tmp_path)), seed=0).dataset
        assert (dataset.name, dataset.train.classes, len(dataset.test)) == ("tiny-imagenet", ("n01",), 1)

    def test_other_layouts_under_the_name_are_read_as_well(self, tmp_path: Path) -> None:
        for part in ("train", "val"):
            draw(tmp_path / "imagenet-subset" / part / "n01" / "1.JPEG")
        assert len(load(Images(images="imagenet-subset", root=str(tmp_path)), seed=0).dataset.train) == 1

    @pytest.mark.parametrize("name", BENCHMARKS)
    def test_missing_one_says_where_it_belongs_and_how_it_gets_there(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(AsterismError, match="not on this machine") as error:
            load(Images(images=name, root=str(tmp_path)), seed=0)
        assert error.value.where == str(tmp_path / BENCHMARKS[name].folders[0])
        by_hand = BENCHMARKS[name].archive is None
        assert ("lay out" if by_hand else f"asterism data fetch {name}") in error.value.fix
        assert str(error.value).count("\n") == 2

    def test_archives_have_an_address_a_size_and_a_hash(self) -> None:
        archives = [benchmark.archive for benchmark in BENCHMARKS.values() if benchmark.archive]
        assert {archive.file for archive in archives} == {
            "cifar-100-python.tar.gz",
            "tiny-imagenet-200.zip",
            "CUB_200_2011.tgz",
        }
        assert all(archive.bytes > 10**8 and len(archive.md5) == 32 for archive in archives)

    def test_root_is_chosen_by_setting_then_environment_then_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "cache")
        monkeypatch.setenv("ASTERISM_DATA", "environment")
        assert data_root("setting") == Path("setting")
        assert data_root("") == Path("environment")
        monkeypatch.delenv("ASTERISM_DATA")
        assert data_root("") == Path("cache/asterism")
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert data_root("") == Path.home() / ".cache" / "asterism"

    def test_message_names_the_archive_to_put_by_hand(self, tmp_path: Path) -> None:
        assert "cifar-100-python.tar.gz" in missing(BENCHMARKS["cifar100"], tmp_path).fix


class TestSettings:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"size": 7},
            {"colour": "sepia"},
            {"test_fraction": 0},
            {"test_fraction": 1},
            {"images": ""},
            {"augment": {"crop": -1}},
            {"augment": {"brightness": -0.1}},
            {"augment": {"contrast": float("inf")}},
            {"augment": {"hue": 0.6}},
            {"augment": {"grey": 1.1}},
            {"augment": {"blur": 1}},
        ],
        ids=str,
    )
    def test_value_out_of_range_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ValidationError):
            Images.model_validate(wrong)

    def test_mistake_is_named_by_its_dotted_key(self) -> None:
        with pytest.raises(AsterismError) as error:
            validate(Images, {"augment": {"brightnes": 0.1}}, source="run.toml")
        assert (error.value.where, error.value.fix) == ("augment.brightnes in run.toml", "did you mean 'brightness'?")

    def test_defaults_are_digits_with_the_usual_augmentation(self) -> None:
        assert Images() == Images(images="digits", size=None, colour="as-stored", augment=Augment())
