"""Every variation against a literal loop over images, and the promises about draws and identity."""

from __future__ import annotations

import colorsys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asterism.data.augment import Draws, augment, plain, quarter_turns, two_views
from asterism.data.settings import Augment
from asterism.seeds import generator

OFF: dict[str, Any] = {"crop": 0, "flip": False, "brightness": 0.0}
EVERYTHING = Augment(crop=3, brightness=0.3, contrast=0.4, saturation=0.5, hue=0.2, grey=0.3)


def rng() -> torch.Generator:
    return generator(7, "test augment")


def batch(count: int = 9, channels: int = 3, height: int = 6, width: int = 6) -> Tensor:
    shape = (count, channels, height, width)
    return torch.randint(0, 256, shape, generator=generator(1, "images"), dtype=torch.uint8)


def draws(count: int) -> list[dict[str, float]]:
    """The numbers that one call of ``augment`` draws, per image and by name."""
    table = torch.rand(len(Draws._fields), count, generator=rng())
    return [dict(zip(Draws._fields, column, strict=True)) for column in table.T.tolist()]


def grey(image: Tensor) -> Tensor:
    return (0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]) if len(image) == 3 else image[0]


def jitter(uniform: float, strength: float) -> float:
    low = max(0.0, 1 - strength)
    return low + (1 + strength - low) * uniform


def turned(image: Tensor, turn: float) -> Tensor:
    result = image.clone()
    for row in range(image.shape[1]):
        for column in range(image.shape[2]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[:, row, column].tolist())
            result[:, row, column] = torch.tensor(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
    return result


def literal(pixels: Tensor, recipe: Augment, drawn: dict[str, float]) -> Tensor:
    """What ``augment`` should make of one image (c, h, w), step by step."""
    channels, height, width = pixels.shape
    margin = recipe.crop
    padded = torch.zeros(channels, height + 2 * margin, width + 2 * margin, dtype=torch.uint8)
    padded[:, margin : margin + height, margin : margin + width] = pixels
    top, left = (int(drawn[name] * (2 * margin + 1)) for name in ("row", "column"))
    image = padded[:, top : top + height, left : left + width] / 255
    if recipe.flip and drawn["flip"] < 0.5:
        image = image.flip(-1)
    image = (image * jitter(drawn["brightness"], recipe.brightness)).clamp(0, 1)
    share = jitter(drawn["contrast"], recipe.contrast)
    image = (share * image + (1 - share) * grey(image).mean()).clamp(0, 1)
    if channels == 1:
        return image
    share = jitter(drawn["saturation"], recipe.saturation)
    image = (share * image + (1 - share) * grey(image)).clamp(0, 1)
    image = turned(image, (2 * drawn["hue"] - 1) * recipe.hue)
    return grey(image).expand(3, -1, -1) if drawn["grey"] < recipe.grey else image


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "recipe",
    [
        Augment(),
        Augment(crop=4, flip=False, brightness=0),
        Augment(crop=0, flip=True, brightness=0),
        Augment(**{**OFF, "brightness": 1.5}),
        Augment(**{**OFF, "contrast": 0.5}),
        Augment(**{**OFF, "saturation": 0.7}),
        Augment(**{**OFF, "hue": 0.5}),
        Augment(**{**OFF, "grey": 0.5}),
        EVERYTHING,
    ],
    ids=["default", "crop", "flip", "brightness", "contrast", "saturation", "hue", "grey", "everything"],
)
def test_batch_equals_a_loop_over_images(recipe: Augment, channels: int) -> None:
    pixels = batch(channels=channels, height=6, width=8)
    expected = [literal(image, recipe, drawn) for image, drawn in zip(pixels, draws(9), strict=True)]
    torch.testing.assert_close(augment(pixels, recipe, rng()), torch.stack(expected), rtol=0, atol=2e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_identity_settings_return_the_pixels_exactly(channels: int) -> None:
    pixels = batch(channels=channels)
    assert torch.equal(augment(pixels, Augment(**OFF), rng()), pixels / 255)
    assert torch.equal(plain(pixels), pixels / 255)


def test_input_is_left_alone_and_output_is_a_float_picture() -> None:
    pixels = batch()
    before = pixels.clone()
    images = augment(pixels, EVERYTHING, rng())
    assert torch.equal(pixels, before)
    assert images.dtype == torch.float32
    assert bool((images >= 0).all() and (images <= 1).all())


def test_same_generator_gives_the_same_bits() -> None:
    assert torch.equal(augment(batch(), EVERYTHING, rng()), augment(batch(), EVERYTHING, rng()))


def test_switching_one_variation_on_leaves_the_others_as_they_were() -> None:
    alone, both = Augment(**{**OFF, "flip": True}), Augment(**{**OFF, "flip": True, "brightness": 0.2})
    factors = augment(batch(), both, rng()).clamp(0.01) / augment(batch(), alone, rng()).clamp(0.01)
    assert torch.equal(augment(batch(), alone, rng()) == 0, augment(batch(), both, rng()) == 0)
    assert ((factors > 0.79) & (factors < 1.21)).all()


def test_colour_settings_do_nothing_to_one_channel() -> None:
    colourful = Augment(**{**OFF, "saturation": 0.9, "hue": 0.5, "grey": 1.0})
    assert torch.equal(augment(batch(channels=1), colourful, rng()), batch(channels=1) / 255)


def test_largest_draw_stays_inside_the_padded_image(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = torch.tensor(1.0).nextafter(torch.tensor(0.0))
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: largest.expand(shape))
    images = augment(batch(height=8, width=8), Augment(**{**OFF, "crop": 4}), rng())
    assert torch.equal(images[:, :, :4, :4], batch(height=8, width=8)[:, :, 4:, 4:] / 255)
    assert not images[:, :, 4:].any() and not images[:, :, :, 4:].any()


def test_two_views_differ_and_the_first_is_the_plain_call() -> None:
    first, second = two_views(batch(), Augment(), rng())
    assert torch.equal(first, augment(batch(), Augment(), rng()))
    assert not torch.equal(first, second)


def test_every_offset_and_both_directions_occur() -> None:
    pixels = torch.zeros(2000, 1, 3, 3, dtype=torch.uint8)
    pixels[:, :, 1, 1], pixels[:, :, 1, 0] = 255, 51
    images = augment(pixels, Augment(**{**OFF, "crop": 1, "flip": True}), rng())
    assert len({tuple(image.flatten().tolist()) for image in images}) == 18


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 5), st.sampled_from([1, 3]))
@settings(deadline=None, max_examples=30)
def test_quarter_turns_equal_rot90_per_image(turns: list[int], side: int, channels: int) -> None:
    images = torch.rand(len(turns), channels, side, side, generator=rng())
    expected = torch.stack([torch.rot90(image, k, (1, 2)) for image, k in zip(images, turns, strict=True)])
    assert torch.equal(quarter_turns(images, torch.tensor(turns)), expected)


def test_quarter_turns_refuse_an_oblong() -> None:
    with pytest.raises(ValueError, match="square"):
        quarter_turns(torch.zeros(1, 3, 4, 5), torch.tensor([1]))


def test_defaults_are_those_the_paper_builds_on() -> None:
    assert Augment().model_dump() == {
        "crop": 4,
        "flip": True,
        "brightness": 63 / 255,
        "contrast": 0,
        "saturation": 0,
        "hue": 0,
        "grey": 0,
    }
