"""Every kind of image file ends as uint8 (c, h, w), and every broken one is named."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from asterism.data import decode
from asterism.data.decode import Unreadable, assemble, conform
from asterism.data.images import ImageSet
from asterism.data.listing import Item, Listing, Parts
from asterism.data.settings import Images
from asterism.errors import AsterismError

RED = (255, 0, 0)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def picture(width: int = 8, height: int = 8, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def read(*contents: bytes, **options: Any) -> Parts:
    items = [Item(f"image-{i}", content, 0) for i, content in enumerate(contents)]
    return assemble(Listing(items, len(items), ("thing",)), Images(**options))


def pixel(content: bytes, **options: Any) -> list[int]:
    return [int(value) for value in read(content, **options).train.pixels[0, :, 0, 0]]


MODES: dict[str, tuple[Callable[[], bytes], list[int]]] = {
    "1": (lambda: encoded(Image.new("1", (8, 8), 1)), [255]),
    "L": (lambda: encoded(Image.new("L", (8, 8), 77)), [77]),
    "LA over white": (lambda: encoded(Image.new("LA", (8, 8), (0, 0))), [255]),
    "P": (lambda: encoded(Image.new("RGB", (8, 8), RED).convert("P")), [255, 0, 0]),
    "RGBA over white": (lambda: encoded(Image.new("RGBA", (8, 8), (255, 0, 0, 0))), [255, 255, 255]),
    "RGBA opaque": (lambda: encoded(Image.new("RGBA", (8, 8), (255, 0, 0, 255))), [255, 0, 0]),
    "CMYK": (lambda: encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF"), [255, 0, 0]),
    "I;16": (lambda: encoded(Image.new("I;16", (8, 8), 0x7F80)), [0x7F]),
    "RGB": (lambda: encoded(Image.new("RGB", (8, 8), (1, 2, 3))), [1, 2, 3]),
}


@pytest.mark.parametrize("mode", MODES)
def test_mode_is_converted(mode: str) -> None:
    content, expected = MODES[mode]
    assert pixel(content()) == expected


def test_palette_with_transparency_is_laid_over_white() -> None:
    indexed = Image.new("RGB", (8, 8), RED).convert("P")
    assert pixel(encoded(indexed, transparency=indexed.getpixel((0, 0)))) == [255, 255, 255]


@pytest.mark.parametrize(("colour", "channels"), [("as-stored", 3), ("rgb", 3), ("grey", 1)])
def test_one_coloured_image_makes_all_coloured_unless_told_otherwise(colour: str, channels: int) -> None:
    parts = read(encoded(Image.new("L", (8, 8), 9)), encoded(Image.new("RGB", (8, 8), RED)), colour=colour)
    assert parts.train.shape == (channels, 8, 8)
    assert bool((parts.train.pixels[0] == 9).all())
    assert parts.train.pixels[1, 0, 0, 0] == (255 if channels == 3 else 76)


@pytest.mark.parametrize("stored", [np.float32(0.5), np.int32(70000), np.int32(-1)])
def test_pixels_without_a_range_are_refused(stored: Any) -> None:
    with pytest.raises(AsterismError, match="no fixed range"):
        read(encoded(Image.fromarray(np.full((8, 8), stored)), "TIFF"))


def test_orientation_of_a_camera_is_applied() -> None:
    image = Image.new("L", (10, 8), 0)
    image.paste(255, (0, 0, 10, 4))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    upright = read(encoded(image, exif=exif)).train.pixels[0, 0]
    assert upright.shape == (10, 8)
    assert upright[0].tolist() == [0] * 4 + [255] * 4


@pytest.mark.parametrize("shape", [(20, 8), (8, 20), (9, 8), (16, 16), (8, 8)])
def test_size_is_the_largest_centred_square_resampled(shape: tuple[int, int]) -> None:
    image = picture(*shape)
    side = min(shape)
    left, top = (shape[0] - side) // 2, (shape[1] - side) // 2
    square = image.crop((left, top, left + side, top + side)).resize((8, 8), Image.Resampling.BILINEAR)
    found = read(encoded(image), size=8).train.pixels[0].permute(1, 2, 0).numpy()
    assert np.array_equal(found, np.asarray(square))


def test_sizes_that_differ_are_named_with_their_files_and_the_fix() -> None:
    with pytest.raises(AsterismError) as error:
        read(encoded(picture(8, 9)), encoded(picture(8, 9)), encoded(picture(12, 10)))
    assert "8 × 9 and 12 × 10" in error.value.what
    assert error.value.where == "image-0 and image-2"
    assert "data.size" in error.value.fix


BROKEN = {
    "empty": b"",
    "text": b"not an image at all",
    "truncated": encoded(picture(64, 64))[:-4000],
    "truncated jpeg": encoded(picture(64, 64), "JPEG")[:900],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_image_is_named(kind: str) -> None:
    with pytest.raises(AsterismError, match="cannot read image") as error:
        read(encoded(picture(64, 64)), BROKEN[kind])
    assert error.value.where == "image-1"
    assert "data.skip_bad" in error.value.fix


def test_broken_images_are_skipped_and_named_on_request() -> None:
    sound = [encoded(picture(64, 64, seed)) for seed in range(3)]
    parts = read(BROKEN["text"], sound[0], BROKEN["empty"], sound[1], sound[2], BROKEN["truncated"], skip_bad=True)
    assert parts.skipped == ("image-0", "image-2", "image-5")
    assert parts.train.ids == ["image-1", "image-3", "image-4"]
    assert torch.equal(parts.train.pixels, read(*sound).train.pixels)


def test_nothing_but_broken_images_is_an_error_even_when_skipping() -> None:
    with pytest.raises(AsterismError, match="no readable training image"):
        read(BROKEN["text"], skip_bad=True)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_damaged_bytes_never_end_in_another_error(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "WEBP"]))
    content = bytearray(encoded(picture(), kind))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    item = Item("damaged", bytes(content[: data.draw(st.integers(0, len(content)))]), 0)
    try:
        assert decode.decode(item, channels=3, size=8).shape == (3, 8, 8)
    except Unreadable as reason:
        assert str(reason)


def test_threads_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [encoded(picture(seed=seed)) for seed in range(300)]
    alone = read(*contents)
    monkeypatch.setattr(decode, "WORTH_A_THREAD", 1)
    assert torch.equal(read(*contents).train.pixels, alone.train.pixels)


def test_conform_leaves_what_fits_untouched() -> None:
    images = ImageSet(torch.zeros(2, 1, 8, 9, dtype=torch.uint8), torch.tensor([0, -1]), ["a", "b"], ("x",))
    assert conform(images, Images()) is images
    assert conform(images, Images(colour="grey")) is images


def test_conform_resizes_recolours_and_keeps_the_rest() -> None:
    pixels = torch.full((2, 1, 8, 12), 9, dtype=torch.uint8)
    images = ImageSet(pixels, torch.tensor([0, -1]), ["a", "b"], ("x",), ("hospital", ""))
    found = conform(images, Images(size=16, colour="rgb"))
    assert found.shape == (3, 16, 16)
    assert bool((found.pixels == 9).all())
    assert (found.ids, found.labels.tolist(), found.sites) == (["a", "b"], [0, -1], ("hospital", ""))


def test_memory_stays_near_the_tensor(tmp_path: Path) -> None:
    content = encoded(picture(64, 64), "JPEG")
    (tmp_path / "one.jpg").write_bytes(content)
    items = [Item(str(i), str(tmp_path / "one.jpg"), 0) for i in range(2000)]
    tracemalloc.start()
    try:
        pixels = assemble(Listing(items, 2000, ("thing",)), Images()).train.pixels
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pixels.numel() <= peak < 1.3 * pixels.numel()
