"""Benchmarks in the layouts of their official archives, on tiny made-up data."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from asterism.data.decode import assemble
from asterism.data.readers import cars, cifar100, cub200, digits, tiny_imagenet
from asterism.data.settings import Images
from asterism.errors import AsterismError


def draw(path: Path, side: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), "red").save(path, "JPEG")


def summary(listing: Any) -> list[tuple[str, int, bool]]:
    return [(item.id, item.label, item.test) for item in listing.items]


def python2_string(text: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(text)) + text


def python2_array(data: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """An array as Python 2 pickled it: names of NumPy 1, bytes as plain strings."""
    rows, columns = (struct.pack("<i", size) for size in data.shape)
    kind = b"cnumpy\ndtype\n" + python2_string(b"u1") + b"K\x00K\x01\x87R(K\x03" + python2_string(b"|")
    kind += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + python2_string(b"b") + b"\x87R"
    return (
        start + b"(K\x01J" + rows + b"J" + columns + b"\x86" + kind + b"\x89" + python2_string(data.tobytes()) + b"tb"
    )


def python2_dict(**fields: bytes) -> bytes:
    return b"\x80\x02}(" + b"".join(python2_string(k.encode()) + v for k, v in fields.items()) + b"u."


def python2_list(values: list[bytes]) -> bytes:
    return b"](" + b"".join(values) + b"e"


def cifar_folder(root: Path, **changed: bytes) -> Path:
    count = 3
    data = np.random.default_rng(0).integers(0, 256, (count, 3072), dtype=np.uint8)
    fields = {
        "data": python2_array(data),
        "fine_labels": python2_list([b"K" + bytes([i % 2]) for i in range(count)]),
        "filenames": python2_list([python2_string(b"image_%d.png" % i) for i in range(count)]),
    }
    names = python2_list([python2_string(b"apple"), python2_string(b"bear")])
    (root / "meta").write_bytes(python2_dict(fine_label_names=names))
    for part in ("train", "test"):
        (root / part).write_bytes(python2_dict(**{**fields, **changed}))
    return root


class TestCifar100:
    def test_official_layout_is_read(self, tmp_path: Path) -> None:
        parts = cifar100.read(cifar_folder(tmp_path))
        expected = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8).reshape(3, 3, 32, 32)
        assert parts.test is not None
        assert torch.equal(parts.train.pixels, torch.from_numpy(expected))
        assert (parts.train.classes, parts.train.labels.tolist()) == (("apple", "bear"), [0, 1, 0])
        assert parts.test.ids == ["image_0.png", "image_1.png", "image_2.png"]

    def test_what_todays_python_writes_is_read_too(self, tmp_path: Path) -> None:
        cifar_folder(tmp_path)
        content = {b"data": np.ones((1, 3072), np.uint8), "fine_labels": [1], "filenames": [b"a.png"]}
        (tmp_path / "train").write_bytes(pickle.dumps(content, protocol=2))
        assert bool((cifar100.read(tmp_path).train.pixels == 1).all())

    @pytest.mark.parametrize("program", [b"cos\nsystem\n", b"cbuiltins\neval\n", b"cnumpy\nload\n"])
    def test_a_file_that_would_run_a_program_is_refused_unrun(self, tmp_path: Path, program: bytes) -> None:
        cifar_folder(tmp_path)
        mark = tmp_path / "was-run"
        (tmp_path / "train").write_bytes(b"\x80\x02" + program + python2_string(b"touch %s" % bytes(mark)) + b"\x85R.")
        with pytest.raises(AsterismError, match="it names") as error:
            cifar100.read(tmp_path)
        assert error.value.where == str(tmp_path / "train")
        assert not mark.exists()

    def test_no_codec_but_the_needed_one_is_run(self, tmp_path: Path) -> None:
        cifar_folder(tmp_path)
        call = b"c_codecs\nencode\n" + b"X\x01\x00\x00\x00a" + b"X\x05\x00\x00\x00rot13" + b"\x86R."
        (tmp_path / "meta").write_bytes(b"\x80\x02" + call)
        with pytest.raises(AsterismError, match="rot13"):
            cifar100.read(tmp_path)

    @pytest.mark.parametrize(
        ("changed", "what"),
        [
            ({"data": python2_list([])}, "disagree"),
            ({"fine_labels": python2_list([b"K\x00"] * 2)}, "disagree"),
            ({"fine_labels": python2_list([b"K\x05"] * 3)}, "disagree"),
            ({"filenames": b"N"}, "no 'filenames'"),
        ],
    )
    def test_parts_that_do_not_fit_are_refused(self, tmp_path: Path, changed: dict[str, bytes], what: str) -> None:
        with pytest.raises(AsterismError, match=what):
            cifar100.read(cifar_folder(tmp_path, **changed))

    def test_truncated_file_is_named(self, tmp_path: Path) -> None:
        cifar_folder(tmp_path)
        (tmp_path / "test").write_bytes((tmp_path / "test").read_bytes()[:500])
        with pytest.raises(AsterismError, match="not a file of CIFAR-100") as error:
            cifar100.read(tmp_path)
        assert error.value.where == str(tmp_path / "test")


def tiny_imagenet_folder(root: Path) -> Path:
    for id in ("n02", "n01", "n03"):
        draw(root / "train" / id / "images" / f"{id}_0.JPEG")
        (root / "train" / id / f"{id}_boxes.txt").write_text("not an image")
    draw(root / "val/images/val_0.JPEG")
    (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn03\t0\t32\t44\t62\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tcrane\nn03\tcrane\nn99\tnothing\n")
    return root


class TestTinyImageNet:
    def test_official_layout_is_read(self, tmp_path: Path) -> None:
        root = tiny_imagenet_folder(tmp_path)
        listing = tiny_imagenet.read(root)
        assert tiny_imagenet.recognises(root)
        assert listing.classes == ("goldfish, Carassius auratus", "crane (n02)", "crane (n03)")
        train = [("n01_0.JPEG", 0, False), ("n02_0.JPEG", 1, False), ("n03_0.JPEG", 2, False)]
        assert summary(listing) == [*train, ("val_0.JPEG", 2, True)]
        assert assemble(listing, Images()).train.shape == (3, 8, 8)

    def test_without_words_the_ids_are_the_names(self, tmp_path: Path) -> None:
        (tiny_imagenet_folder(tmp_path) / "words.txt").unlink()
        assert tiny_imagenet.read(tmp_path).classes == ("n01", "n02", "n03")

    @pytest.mark.parametrize(("line", "what"), [("v.JPEG\tn77\t0", "n77"), ("v.JPEG n01", "3 columns")])
    def test_damaged_annotations_are_named_with_their_row(self, tmp_path: Path, line: str, what: str) -> None:
        table = tiny_imagenet_folder(tmp_path) / "val/val_annotations.txt"
        table.write_text(table.read_text() + line + "\n")
        with pytest.raises(AsterismError, match=what) as error:
            tiny_imagenet.read(tmp_path)
        assert error.value.where == f"{table} row 2"


def cub_folder(root: Path) -> Path:
    tables = {
        "images.txt": ["1 001.Albatross/a 1.jpg", "2 002.Auklet/b.jpg", "3 001.Albatross/c.jpg"],
        "image_class_labels.txt": ["1 1", "2 2", "3 1"],
        "train_test_split.txt": ["1 0", "2 1", "3 1"],
        "classes.txt": ["1 001.Albatross", "2 002.Auklet"],
    }
    for name, lines in tables.items():
        (root / name).write_text("\n".join(lines) + "\n")
    for line in tables["images.txt"]:
        draw(root / "images" / line.split(maxsplit=1)[1])
    return root


class TestCub200:
    def test_official_layout_is_read(self, tmp_path: Path) -> None:
        listing = cub200.read(cub_folder(tmp_path))
        assert listing.classes == ("001.Albatross", "002.Auklet")
        train = [("002.Auklet/b.jpg", 1, False), ("001.Albatross/c.jpg", 0, False)]
        assert summary(listing) == [*train, ("001.Albatross/a 1.jpg", 0, True)]
        assert len(assemble(listing, Images(size=8)).train) == 2

    def test_image_without_a_class_is_named(self, tmp_path: Path) -> None:
        (cub_folder(tmp_path) / "image_class_labels.txt").write_text("1 1\n2 2\n")
        with pytest.raises(AsterismError, match="image 3 has no class"):
            cub200.read(tmp_path)

    def test_missing_table_is_named(self, tmp_path: Path) -> None:
        (cub_folder(tmp_path) / "classes.txt").unlink()
        with pytest.raises(AsterismError, match="missing") as error:
            cub200.read(tmp_path)
        assert error.value.where == str(tmp_path / "classes.txt")


def car_table(*rows: tuple[int, str]) -> dict[str, Any]:
    kind = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
    return {"annotations": np.array([[(1, number, name) for number, name in rows]], dtype=kind)}


def cars_folder(root: Path, *, labelled: bool = True) -> Path:
    (root / "devkit").mkdir(parents=True)
    names = np.empty((1, 2), dtype=object)
    names[0, :] = ["Acura TL 2012", "BMW M3 2012"]
    savemat(root / "devkit/cars_meta.mat", {"class_names": names})
    savemat(root / "devkit/cars_train_annos.mat", car_table((2, "00001.jpg"), (1, "00002.jpg")))
    if labelled:
        savemat(root / "cars_test_annos_withlabels.mat", car_table((2, "00001.jpg")))
    for name in ("cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg"):
        draw(root / name)
    return root


class TestCars:
    def test_official_layout_is_read(self, tmp_path: Path) -> None:
        listing = cars.read(cars_folder(tmp_path))
        assert listing.classes == ("Acura TL 2012", "BMW M3 2012")
        train = [("cars_train/00001.jpg", 1, False), ("cars_train/00002.jpg", 0, False)]
        assert summary(listing) == [*train, ("cars_test/00001.jpg", 1, True)]
        assert len(assemble(listing, Images()).train) == 2

    def test_without_test_labels_there_is_no_test_part(self, tmp_path: Path) -> None:
        assert not any(item.test for item in cars.read(cars_folder(tmp_path, labelled=False)).items)

    def test_damaged_table_is_named(self, tmp_path: Path) -> None:
        table = cars_folder(tmp_path) / "devkit/cars_train_annos.mat"
        table.write_bytes(b"damaged")
        with pytest.raises(AsterismError, match="not a table") as error:
            cars.read(tmp_path)
        assert error.value.where == str(table)

    def test_class_out_of_range_is_named_with_its_row(self, tmp_path: Path) -> None:
        table = cars_folder(tmp_path) / "devkit/cars_train_annos.mat"
        savemat(table, car_table((1, "00001.jpg"), (3, "00002.jpg")))
        with pytest.raises(AsterismError, match="class 3 of 2") as error:
            cars.read(tmp_path)
        assert error.value.where == f"{table} row 2"


def test_digits_fill_the_whole_range_of_grey() -> None:
    parts = digits.read()
    assert (len(parts.train), parts.train.shape, parts.test) == (1797, (1, 8, 8), None)
    assert parts.train.classes[3] == "three"
    pixels, labels = parts.train.pixels, parts.train.labels
    assert (int(pixels.min()), int(pixels.max()), int(labels[3])) == (0, 255, 3)
