"""A real site's own images: folders, names that are the contract, new images that come in while the run lasts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asterism.errors import AsterismError
from asterism.model import Architecture
from asterism.runs.sites.contract import Contract
from asterism.runs.sites.local_images import LocalImages

CONTRACT = Contract(
    run="run", classes=("cat", "dog"), shape=(1, 8, 8), model=Architecture(name="small"), rows=2, seed=1, layout="x"
)


def picture(root: Path, *names: str) -> None:
    for name in names:
        file = root / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(len(name)).integers(0, 255, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    picture(tmp_path / "images", *(f"{name}/{i}" for name in ("dog", "cat", "_unlabelled") for i in range(8)))
    return tmp_path


def images(root: Path) -> LocalImages:
    return LocalImages(CONTRACT.images(str(root / "images")), CONTRACT, root / "kept.json")


def names(local: LocalImages, stage: str) -> Sequence[str]:
    return [local.images.ids[i] for i in local.share(stage).indices.tolist()]


def test_classes_have_the_federations_positions_and_tests_are_held_out(root: Path) -> None:
    local = images(root)
    known, tested = local.share("known"), local.share("test:2")
    assert (len(known), len(tested)) == (12, 4)
    for share in (known, tested):
        for i in share.indices.tolist():
            assert local.images.ids[i].startswith(CONTRACT.classes[int(share.targets[i])])
    assert not set(known.indices.tolist()) & set(tested.indices.tolist())


def test_new_unlabelled_images_join_the_stage_that_looks_next_and_no_row_ever_moves(root: Path) -> None:
    local = images(root)
    assert local.waiting("novel-1") == 8
    first = names(local, "novel-1")
    picture(root / "images", "_unlabelled/0-comes-first-by-name", "_unlabelled/99")
    again = images(root)  # the site was restarted
    assert names(again, "novel-1") == first
    assert again.waiting("novel-1") == 10
    learned, rows = names(again, "novel-1"), again.share("novel-1").indices.tolist()
    picture(root / "images", "_unlabelled/5-later")
    assert again.waiting("novel-2") == 1
    assert (names(again, "novel-1"), again.share("novel-1").indices.tolist()) == (learned, rows)


def test_image_that_a_stage_learned_from_must_not_go(root: Path) -> None:
    images(root)
    (root / "images" / "cat" / "3.png").unlink()
    with pytest.raises(AsterismError, match="is gone"):
        images(root)


def test_class_that_the_federation_does_not_know_is_named_with_the_nearest(root: Path) -> None:
    picture(root / "images", "cats/0")
    with pytest.raises(AsterismError, match="'cats' is not one of the federation's 2 classes") as caught:
        images(root)
    assert "calls it 'cat'?" in caught.value.fix


def test_images_of_another_shape_are_refused(root: Path) -> None:
    with pytest.raises(AsterismError, match="the federation's are"):
        LocalImages(
            CONTRACT.images(str(root / "images")), CONTRACT.model_copy(update={"shape": (3, 8, 8)}), root / "kept.json"
        )
