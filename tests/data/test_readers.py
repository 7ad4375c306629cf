"""Folders, manifests and arrays as people have them: order, classes, parts, and what is said of mistakes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from asterism.data.decode import assemble
from asterism.data.listing import Listing
from asterism.data.readers import arrays, folder, manifest
from asterism.data.settings import Images
from asterism.errors import AsterismError


def draw(path: Path, level: int = 0, side: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (level, level, level)).save(path)


def summary(listing: Listing) -> list[tuple[str, int, bool]]:
    return [(item.id, item.label, item.test) for item in listing.items]


def write_manifest(root: Path, *lines: str) -> Path:
    path = root / "images.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class TestFolder:
    def test_folder_per_class_is_read_in_the_order_of_paths(self, tmp_path: Path) -> None:
        for name in ("zebra/2.png", "ant/b.png", "zebra/10.png", "ant/deep/a.png", "_unlabelled/q.png"):
            draw(tmp_path / name)
        listing = folder.read(tmp_path)
        assert listing.classes == ("ant", "zebra")
        assert summary(listing) == [
            ("_unlabelled/q.png", -1, False),
            ("ant/b.png", 0, False),
            ("ant/deep/a.png", 0, False),
            ("zebra/10.png", 1, False),
            ("zebra/2.png", 1, False),
        ]

    @pytest.mark.parametrize("part", ["test", "val", "validation"])
    def test_parts_are_told_by_their_folders(self, tmp_path: Path, part: str) -> None:
        draw(tmp_path / "train/ant/1.png")
        draw(tmp_path / part / "bee/2.png")
        listing = folder.read(tmp_path)
        assert listing.classes == ("ant", "bee")
        assert summary(listing) == [("train/ant/1.png", 0, False), (f"{part}/bee/2.png", 1, True)]

    def test_test_folder_goes_before_the_validation_folder(self, tmp_path: Path) -> None:
        for part in ("train", "test", "val"):
            draw(tmp_path / part / "ant" / f"{part}.png")
        assert [id for id, _, _ in summary(folder.read(tmp_path))] == ["train/ant/train.png", "test/ant/test.png"]

    def test_a_class_may_be_called_train(self, tmp_path: Path) -> None:
        for name in ("train/1.png", "car/2.png"):
            draw(tmp_path / name)
        assert folder.read(tmp_path).classes == ("car", "train")

    def test_hidden_files_are_passed_over_and_strange_ones_are_not(self, tmp_path: Path) -> None:
        draw(tmp_path / "ant/1.png")
        for name in (".DS_Store", "Thumbs.db", "notes.txt"):
            (tmp_path / "ant" / name).write_text("no image")
        listing = folder.read(tmp_path)
        assert [item.id for item in listing.items] == ["ant/1.png", "ant/notes.txt"]
        with pytest.raises(AsterismError, match="not an image") as error:
            assemble(listing, Images())
        assert error.value.where == str(tmp_path / "ant" / "notes.txt")

    def test_images_without_class_folders_get_a_hint(self, tmp_path: Path) -> None:
        draw(tmp_path / "1.png")
        with pytest.raises(AsterismError, match="no class folders") as error:
            folder.read(tmp_path)
        assert "_unlabelled" in error.value.fix

    def test_empty_class_folders_are_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "ant").mkdir()
        with pytest.raises(AsterismError, match="empty"):
            folder.read(tmp_path)

    def test_unlabelled_images_alone_are_enough(self, tmp_path: Path) -> None:
        draw(tmp_path / "_unlabelled" / "1.png")
        parts = assemble(folder.read(tmp_path), Images())
        assert (parts.train.classes, parts.train.labels.tolist()) == ((), [-1])

    def test_memory_stays_near_the_tensor(self, tmp_path: Path) -> None:
        draw(tmp_path / "ant" / "0.png", side=64)
        for i in range(1, 1500):
            (tmp_path / "ant" / f"{i}.png").hardlink_to(tmp_path / "ant" / "0.png")
        tracemalloc.start()
        try:
            pixels = assemble(folder.read(tmp_path), Images()).train.pixels
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert pixels.numel() <= peak < 1.3 * pixels.numel()


class TestManifest:
    def test_cells_may_be_empty(self, tmp_path: Path) -> None:
        for i in range(4):
            draw(tmp_path / f"{i}.png", level=i)
        path = write_manifest(
            tmp_path,
            "path,label,participant,split,stage",
            "0.png,bee,ward-1,test,1",
            "1.png,ant,,,",
            "2.png,,ward-2,train,2",
            "3.png,bee,,train,",
        )
        parts = assemble(manifest.read(path), Images())
        assert parts.test is not None
        assert (parts.train.ids, parts.train.labels.tolist()) == (["1.png", "2.png", "3.png"], [0, -1, 1])
        assert (parts.train.sites, parts.test.sites) == (("", "ward-2", ""), ("ward-1",))
        assert (parts.test.ids, parts.test.labels.tolist()) == (["0.png"], [1])
        assert parts.train.pixels[:, 0, 0, 0].tolist() == [1, 2, 3]

    def test_path_alone_is_enough(self, tmp_path: Path) -> None:
        draw(tmp_path / "sub/a b.png")
        parts = assemble(manifest.read(write_manifest(tmp_path, "path", "sub/a b.png")), Images())
        assert (parts.train.labels.tolist(), parts.train.sites, parts.test) == ([-1], (), None)

    def test_byte_order_mark_of_a_spreadsheet_is_no_column(self, tmp_path: Path) -> None:
        path = tmp_path / "images.csv"
        path.write_text("path,label\n1.png,ant\n", encoding="utf-8-sig")
        assert manifest.read(path).classes == ("ant",)

    @pytest.mark.parametrize(
        ("lines", "what", "row"),
        [
            (["path,labels", "1.png,ant"], "unknown column 'labels'", "row 1"),
            (["label", "ant"], "'path' is missing", "row 1"),
            (["path,label", "1.png,ant", ",ant"], "path is empty", "row 3"),
            (["path,split", "1.png,valid"], "split is 'valid'", "row 2"),
            (["path,label", "1.png,ant,bee"], "more cells", "row 2"),
            (["path,label"], "names no image", "images.csv"),
            (["path,label", '"1.png,ant'], "not a CSV file", "images.csv"),
        ],
    )
    def test_mistake_is_named_with_its_row(self, tmp_path: Path, lines: list[str], what: str, row: str) -> None:
        with pytest.raises(AsterismError, match=what) as error:
            manifest.read(write_manifest(tmp_path, *lines))
        assert error.value.where.endswith(row)

    def test_missing_file_is_named_with_its_row(self, tmp_path: Path) -> None:
        draw(tmp_path / "1.png")
        path = write_manifest(tmp_path, "path,label", "1.png,ant", "2.png,ant")
        with pytest.raises(AsterismError, match="no such file") as error:
            assemble(manifest.read(path), Images())
        assert error.value.where == f"{path} row 3: 2.png"

    def test_text_in_another_encoding_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "images.csv"
        path.write_bytes("path\nä.png\n".encode("latin-1"))
        with pytest.raises(AsterismError, match="not a CSV file"):
            manifest.read(path)


def save(path: Path, **content: Any) -> Path:
    np.savez(path, **content)
    return path


IMAGES = np.arange(4 * 8 * 9 * 3, dtype=np.uint64).astype(np.uint8).reshape(4, 8, 9, 3)
LABELS = np.array([0, 1, -1, 1])


class TestArrays:
    def test_both_parts_and_names_are_read(self, tmp_path: Path) -> None:
        path = save(
            tmp_path / "a.npz",
            images=IMAGES,
            labels=LABELS,
            classes=np.array(["ant", "bee"]),
            test_images=IMAGES[:1],
            test_labels=LABELS[:1],
        )
        parts = arrays.read(path)
        assert parts.test is not None
        assert torch.equal(parts.train.pixels, torch.from_numpy(IMAGES).permute(0, 3, 1, 2))
        assert parts.train.pixels.is_contiguous()
        assert (parts.train.classes, parts.train.labels.tolist()) == (("ant", "bee"), [0, 1, -1, 1])
        assert (len(parts.test), parts.test.labels.tolist()) == (1, [0])

    @pytest.mark.parametrize("shape", [(4, 8, 9), (4, 8, 9, 1)])
    def test_grey_images_have_one_channel_and_classes_get_names(self, tmp_path: Path, shape: Sequence[int]) -> None:
        parts = arrays.read(save(tmp_path / "a.npz", images=IMAGES[..., 0].reshape(shape), labels=LABELS))
        assert (parts.train.shape, parts.train.classes, parts.test) == ((1, 8, 9), ("class-0", "class-1"), None)

    @pytest.mark.parametrize(
        ("content", "what"),
        [
            ({"images": IMAGES}, "no array 'labels'"),
            ({"images": IMAGES, "labels": LABELS, "test_images": IMAGES}, "no array 'test_labels'"),
            ({"images": IMAGES / 255, "labels": LABELS}, "float64"),
            ({"images": IMAGES[..., :2], "labels": LABELS}, "images are uint8"),
            ({"images": IMAGES, "labels": LABELS[:3]}, "4 images"),
            ({"images": IMAGES, "labels": LABELS, "classes": np.array(["ant"])}, "for 1 classes"),
            ({"images": IMAGES, "labels": LABELS - 1}, "from -2"),
            ({"images": IMAGES, "labels": LABELS.astype(object)}, "not an array file"),
        ],
    )
    def test_mistake_is_named(self, tmp_path: Path, content: dict[str, Any], what: str) -> None:
        with pytest.raises(AsterismError, match=what) as error:
            arrays.read(save(tmp_path / "a.npz", **content))
        assert "a.npz" in error.value.where

    @pytest.mark.parametrize("content", [b"PK\x03\x04 damaged", b"", b"text"])
    def test_file_that_is_no_archive_is_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(AsterismError, match="not an array file"):
            arrays.read(tmp_path / "a.npz")

    def test_single_array_under_a_wrong_name_is_refused(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", IMAGES)
        with pytest.raises(AsterismError, match="a single array"):
            arrays.read((tmp_path / "a.npy").rename(tmp_path / "a.npz"))
