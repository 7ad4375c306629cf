"""Stanford Cars as published: ``cars_train`` and ``cars_test`` beside the Matlab tables of ``devkit``.

Krause et al., 3D object representations for fine-grained categorization, 2013. The labels of the test part
came later, as ``cars_test_annos_withlabels.mat``; without that file the source has no test part. Copies with
a folder per class are read like any other folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asterism.data.listing import Item, Listing
from asterism.errors import AsterismError

TEST_LABELS = "cars_test_annos_withlabels.mat"


def recognises(path: Path) -> bool:
    """Whether the development kit and the training images are here."""
    return (path / "devkit" / "cars_meta.mat").is_file() and (path / "cars_train").is_dir()


def read(root: Path) -> Listing:
    """The images in the order of the official tables, training part first."""
    kit = root / "devkit"
    classes = tuple(str(name) for name in _matrix(kit / "cars_meta.mat", "class_names"))
    items = list(_items(root, kit / "cars_train_annos.mat", "cars_train", len(classes)))
    labelled = next((place / TEST_LABELS for place in (root, kit) if (place / TEST_LABELS).is_file()), None)
    if labelled:
        items += _items(root, labelled, "cars_test", len(classes))
    return Listing(items, len(items), classes)


def _items(root: Path, table: Path, folder: str, classes: int) -> Iterator[Item]:
    for row, annotation in enumerate(_matrix(table, "annotations"), start=1):
        name, number = str(annotation["fname"]), int(annotation["class"])
        if not 1 <= number <= classes:
            raise AsterismError(f"class {number} of {classes}", where=f"{table} row {row}")
        yield Item(f"{folder}/{name}", str(root / folder / name), number - 1, test=folder == "cars_test")


def _matrix(path: Path, name: str) -> Any:
    import numpy as np
    from scipy.io import loadmat

    try:
        return np.atleast_1d(loadmat(path, squeeze_me=True)[name])
    except FileNotFoundError:
        raise AsterismError("a file of the benchmark is missing", where=str(path), fix="unpack it again") from None
    except Exception as error:  # scipy raises many kinds on a damaged file
        raise AsterismError(f"not a table of Stanford Cars: {error}", where=str(path)) from None
