"""What the doctor finds, on images with one ailment each."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asterism.data.doctor import Finding, examine
from asterism.data.settings import Images


def draw(path: Path, seed: int, side: int = 8, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(path)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """Two classes of twelve different images, and two test images."""
    for i in range(24):
        draw(tmp_path / "train" / ("ant", "bee")[i % 2] / f"{i}.png", seed=i)
    draw(tmp_path / "test/ant/100.png", seed=100)
    draw(tmp_path / "test/bee/101.png", seed=101)
    return tmp_path


def trouble(folder: Path, **options: object) -> list[Finding]:
    return [f for f in examine(Images.model_validate({"images": str(folder), **options})) if f.level != "ok"]


def test_sound_images_have_nothing_wrong(sound: Path) -> None:
    findings = examine(Images(images=str(sound)), clusters=2)
    assert {finding.level for finding in findings} == {"ok"}
    said = [finding.what for finding in findings]
    assert said[:4] == [
        "24 training and 2 test images can be read",
        "sizes: 8 × 8 (26)",
        "colour modes: RGB (26)",
        "2 classes with 12 to 12 training images each",
    ]
    assert said[-2] == "enough images for 2 clusters at every site"


def test_benchmark_in_memory_is_examined_too() -> None:
    said = [finding.what for finding in examine(Images()) if finding.level == "ok"]
    assert said[0] == "1797 training and 0 test images can be read"
    assert "10 classes with 174 to 183 training images each" in said


def test_broken_images_are_named_with_the_reason(sound: Path) -> None:
    (sound / "train/ant/0.png").write_bytes(b"broken")
    (sound / "train/ant/2.png").write_bytes((sound / "train/ant/2.png").read_bytes()[:-40])
    (found,) = trouble(sound)
    assert (found.level, found.what) == ("error", "2 of 26 images cannot be read")
    assert f"{sound / 'train/ant/0.png'} (not an image in a known format)" in found.where
    assert "2.png" in found.where
    assert [finding.level for finding in trouble(sound, skip_bad=True)] == ["warning"]


def test_long_lists_are_cut(sound: Path) -> None:
    for i in range(0, 24, 2):
        (sound / f"train/ant/{i}.png").write_bytes(b"broken %d" % i)
    assert trouble(sound)[0].where.endswith(" and 7 more")


def test_different_sizes_are_an_error_until_a_size_is_set(sound: Path) -> None:
    draw(sound / "train/ant/50.png", seed=50, side=16)
    (found,) = trouble(sound)
    assert (found.level, found.what) == ("error", "2 different sizes: 8 × 8 (26), 16 × 16 (1)")
    assert "data.size" in found.fix
    assert trouble(sound, size=8) == []


def test_colour_modes_are_counted(sound: Path) -> None:
    draw(sound / "train/ant/50.png", seed=50, mode="L")
    assert "colour modes: RGB (26), L (1)" in [f.what for f in examine(Images(images=str(sound)))]


def test_thin_classes_are_named(sound: Path) -> None:
    draw(sound / "train/wasp/1.png", seed=200)
    (found,) = trouble(sound)
    assert (found.level, found.where) == ("warning", "wasp (1)")
    assert found.what == "classes with fewer than 10 training images: 1"


def test_copies_are_named_and_those_in_both_parts_apart(sound: Path) -> None:
    draw(sound / "train/ant/copy.png", seed=1)
    draw(sound / "test/bee/leak.png", seed=3)
    copies, leaks = trouble(sound)
    assert copies.where == "train/ant/copy.png = train/bee/1.png, train/bee/3.png = test/bee/leak.png"
    assert (leaks.what, leaks.where) == (
        "images in both the training and the test part: 1",
        "train/bee/3.png = test/bee/leak.png",
    )


@pytest.mark.parametrize(("clusters", "participants", "level"), [(4, 1, "ok"), (5, 1, "warning"), (2, 3, "warning")])
def test_fewer_than_five_images_to_a_prototype_is_a_warning(
    sound: Path, clusters: int, participants: int, level: str
) -> None:
    findings = examine(Images(images=str(sound)), clusters=clusters, participants=participants)
    assert findings[-2].level == level
    assert "clusters" in findings[-2].what


def test_sites_of_a_manifest_are_judged_one_by_one(tmp_path: Path) -> None:
    rows = ["path,participant"]
    for i in range(16):
        draw(tmp_path / f"{i}.png", seed=i)
        rows.append(f"{i}.png,{'large' if i < 12 else 'small'}")
    (tmp_path / "all.csv").write_text("\n".join(rows))
    findings = examine(Images(images=str(tmp_path / "all.csv")), clusters=2)
    assert [f.where for f in findings if f.level == "warning"] == ["small (4 images)"]
    assert "16 training images without a label" in [f.what for f in findings]


def test_source_that_cannot_be_opened_is_a_finding(tmp_path: Path) -> None:
    (found,) = trouble(tmp_path / "nowhere")
    assert (found.level, found.what) == ("error", "no such benchmark, file or folder")
    assert found.fix


def test_full_disk_is_a_warning(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 10, 0))
    (found,) = trouble(sound)
    assert (found.level, found.fix) == ("warning", "free some disk space")
