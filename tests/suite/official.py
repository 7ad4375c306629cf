"""Made-up pictures in the layouts in which the benchmarks are published: a few classes, a few images of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

CLASSES, TRAIN, TEST, SIDE = 5, 16, 3, 16


def draw(path: Path, label: int, number: int) -> None:
    """One picture: the fixed pattern of its class under noise of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pattern = np.random.default_rng(label).integers(40, 216, (SIDE // 4, SIDE // 4, 3)).repeat(4, 0).repeat(4, 1)
    noise = 12 * np.random.default_rng([label, number]).standard_normal((SIDE, SIDE, 3))
    Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8)).save(path)


def tiny_imagenet(root: Path) -> None:
    """``train/<id>/images`` beside ``val`` with its annotations."""
    rows = list[str]()
    for label in range(CLASSES):
        id = f"n{label:08}"
        for n in range(TRAIN):
            draw(root / "train" / id / "images" / f"{id}_{n}.JPEG", label, n)
        for n in range(TEST):
            draw(root / "val/images" / f"val_{len(rows)}.JPEG", label, TRAIN + n)
            rows.append(f"val_{len(rows)}.JPEG\t{id}\t0\t0\t9\t9\n")
    (root / "val/val_annotations.txt").write_text("".join(rows))


def folders(root: Path, train: str = "train", test: str = "val") -> None:
    """A folder per class below a folder per part."""
    for label in range(CLASSES):
        for n in range(TRAIN + TEST):
            draw(root / (train if n < TRAIN else test) / f"n{label:08}" / f"{n}.JPEG", label, n)


def herbarium(root: Path) -> None:
    """The reduced images of the competition."""
    folders(root, "small-train", "small-validation")


def cub200(root: Path) -> None:
    """``images`` beside four tables."""
    files = [(label, n, f"{label:03}.bird/{n}.jpg") for label in range(CLASSES) for n in range(TRAIN + TEST)]
    for label, n, file in files:
        draw(root / "images" / file, label, n)
    tables = {
        "images.txt": [f"{i} {file}" for i, (_, _, file) in enumerate(files, 1)],
        "image_class_labels.txt": [f"{i} {label + 1}" for i, (label, _, _) in enumerate(files, 1)],
        "train_test_split.txt": [f"{i} {int(n < TRAIN)}" for i, (_, n, _) in enumerate(files, 1)],
        "classes.txt": [f"{label + 1} {label:03}.bird" for label in range(CLASSES)],
    }
    for name, lines in tables.items():
        (root / name).write_text("\n".join(lines) + "\n")


def cars(root: Path) -> None:
    """``cars_train`` and ``cars_test`` beside Matlab tables."""
    (root / "devkit").mkdir(parents=True)
    names = np.empty((1, CLASSES), dtype=object)
    names[0, :] = [f"Car {label} 2012" for label in range(CLASSES)]
    savemat(root / "devkit/cars_meta.mat", {"class_names": names})
    for folder, table, numbers in (
        ("cars_train", "devkit/cars_train_annos.mat", range(TRAIN)),
        ("cars_test", "cars_test_annos_withlabels.mat", range(TRAIN, TRAIN + TEST)),
    ):
        files = [(label, n, f"{label * 100 + n:05}.jpg") for label in range(CLASSES) for n in numbers]
        for label, n, file in files:
            draw(root / folder / file, label, n)
        savemat(root / table, _annotations([(label + 1, file) for label, _, file in files]))


def _annotations(rows: list[tuple[int, str]]) -> dict[str, Any]:
    kind = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
    return {"annotations": np.array([[(1, number, name) for number, name in rows]], dtype=kind)}


# By dataset: the suite whose column it is, the folder that it is looked for in, and its layout.
OFFICIAL: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "tiny-imagenet": ("main", "tiny-imagenet-200", tiny_imagenet),
    "imagenet-subset": ("main", "imagenet-subset", folders),
    "cub200": ("fine-grained", "CUB_200_2011", cub200),
    "cars": ("fine-grained", "stanford_cars", cars),
    "herbarium19": ("fine-grained", "herbarium_19", herbarium),
}
