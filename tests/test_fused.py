"""The kernels of a GPU against torch's operations, interpreted where there is no GPU, on CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from asterism import fused
from asterism.backbones import as_products
from asterism.model import Architecture, Speed, network
from asterism.seeds import generator
from asterism.training import descend

ROUNDED = 0.008  # a bfloat16 result against a float32 one, relative


def distance(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().float(), wanted.detach().float()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-6))


def maps(name: str, channels: int) -> Tensor:
    """Feature maps with a mean of their own, so many of them that no program is full."""
    drawn = torch.randn(5, channels, 6, 7, generator=generator(3, name)) * 3 + 2
    return drawn.bfloat16().contiguous(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[None]:
    """Triton interprets kernels, which it decides when it is imported and again where they are launched."""
    if not fused.PRESENT:
        pytest.skip("needs Triton: `make kernels` installs it and tests this")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield


@pytest.fixture
def interpreted(interpreter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are taken for maps on the CPU too."""
    monkeypatch.setattr(fused, "fits", lambda bn, x: bn.training)


def bn(channels: int) -> nn.BatchNorm2d:
    made, rng = nn.BatchNorm2d(channels), generator(4, "bn")
    with torch.no_grad():
        made.weight.uniform_(0.5, 2, generator=rng)
        made.bias.normal_(generator=rng)
    made.running_mean = torch.randn(channels, generator=rng)
    return made


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("channels", [64, 128])
def test_normalisation_shortcut_and_relu_are_those_of_torch(
    interpreted: None, channels: int, added: bool, rectified: bool, two: bool
) -> None:
    def all_of(own: bool) -> list[Tensor]:
        norm, x, beside = bn(channels), maps("x", channels), maps("beside", channels)
        if not own:
            x, beside = x.float(), beside.float()
        x.requires_grad_()
        beside.requires_grad_()
        shortcut = beside if added else None
        if own:
            out = fused.forked(norm, x, shortcut, rectified=rectified)
        else:
            plain = norm(x) if shortcut is None else norm(x) + shortcut
            plain = plain.relu() if rectified else plain
            out = plain, plain
        gradients = [maps(f"gradient {i}", channels).to(out[0].dtype) for i in range(1 + two)]
        torch.autograd.backward(out[: 1 + two], gradients)
        learnt = [norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var, norm.num_batches_tracked]
        return [value for value in (out[0], x.grad, beside.grad if added else None, *learnt) if value is not None]

    found, wanted = all_of(True), all_of(False)
    assert len(found) == len(wanted) == 7 + added
    *rounded, weight, bias, mean, var, count = map(distance, found, wanted)
    assert max(rounded) < ROUNDED
    assert max(weight, bias, mean, var) < 1e-5 and count == 0


def test_one_of_two_readers_may_have_nothing_to_say(interpreted: None) -> None:
    norm, x = bn(64), maps("x", 64).requires_grad_()
    first, second = fused.forked(norm, x)
    (alone,) = torch.autograd.grad(second.float().square().sum(), x, retain_graph=True)
    (other,) = torch.autograd.grad(first.float().square().sum(), x)
    assert torch.equal(alone, other) and alone.abs().sum() > 0


def test_what_is_not_a_number_stays_to_be_seen(interpreted: None) -> None:
    x = maps("x", 64)
    x[0, 3, 0, 0] = torch.nan
    out = fused.normalised(bn(64), x)
    assert out[:, 3].isnan().all() and not out[:, 4].isnan().any()


def test_a_step_of_sgd_is_that_of_training_and_leaves_what_is_fixed(interpreted: None) -> None:
    rng = generator(5, "sgd")
    parameters, gradient, velocity = torch.randn(3, 5000, generator=rng)
    fixed = [(4900, 5000), (100, 200)]
    for start, end in fixed:
        velocity[start:end] = 0
    wanted, speed, lr = parameters.clone(), velocity.clone(), torch.tensor(0.05)
    descend(wanted, gradient, speed, lr, 0.9, 5e-4, fixed)
    found, own = parameters.clone(), velocity.clone()
    fused.descend(found, gradient, own, lr, 0.9, 5e-4, fixed)
    assert torch.allclose(found, wanted, atol=1e-6) and torch.allclose(own, speed, atol=1e-6)
    assert all(torch.equal(found[start:end], parameters[start:end]) for start, end in fixed)


@pytest.mark.parametrize(
    ("fixed", "left"),
    [([(0, 7), (2, 4)], [(7, 9)]), ([], [(0, 9)]), ([(3, 5)], [(0, 3), (5, 9)]), ([(0, 5)], [(5, 9)]), ([(0, 9)], [])],
)
def test_what_is_fixed_leaves_the_rest(fixed: list[tuple[int, int]], left: list[tuple[int, int]]) -> None:
    assert list(fused._between(fixed, 9)) == left


def test_without_a_gpu_torch_computes() -> None:
    norm, x = bn(64), maps("x", 64)
    assert not fused.fits(norm, x)
    assert torch.equal(fused.normalised(norm, x, x), (bn(64)(x) + x).relu())


@pytest.mark.parametrize("channels", [3, 4])  # words of 16 bytes do not fit, and do
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_thinning_is_slicing(stride: int, channels: int) -> None:
    x = torch.randn(2, channels, 7, 8, dtype=torch.float64, requires_grad=True)
    assert torch.equal(fused.thinned(x, stride), x[:, :, ::stride, ::stride])
    assert torch.autograd.gradcheck(lambda x: fused.thinned(x, stride), (x,))


def test_the_first_convolution_as_products_is_the_convolution() -> None:
    x, weight = torch.randn(3, 3, 9, 8, dtype=torch.float64), torch.randn(16, 3, 3, 3, dtype=torch.float64)
    weight.requires_grad_()
    for kind in (weight, weight.contiguous(memory_format=torch.channels_last)):
        found, wanted = as_products(x, kind), torch.nn.functional.conv2d(x, kind, padding=1)
        assert torch.allclose(found, wanted)
    weigh = torch.randn_like(wanted)
    (own,) = torch.autograd.grad((found * weigh).sum(), weight)
    (torchs,) = torch.autograd.grad((wanted * weigh).sum(), weight)
    assert torch.allclose(own, torchs)


def test_a_machine_that_makes_no_kernels_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    monkeypatch.setattr(fused, "descend", missing)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    fused.trial.cache_clear()
    assert fused.trial(torch.device("cpu")) == "RuntimeError: Failed to find C compiler."
    fused.trial.cache_clear()


class Map:
    """What ``fits`` looks at of a feature map, as a GPU would have it."""

    def __init__(self, **other: object) -> None:
        self.is_cuda, self.dtype, self.shape, self.last = True, torch.bfloat16, (2, 64, 4, 4), True
        vars(self).update(other)

    def is_contiguous(self, *, memory_format: torch.memory_format) -> bool:
        return self.last and memory_format == torch.channels_last


def fits(*, allowed: bool = True, training: bool = True, **other: object) -> bool:
    with fused.allowed(allowed):
        return fused.fits(bn(64).train(training), Map(**other))  # type: ignore[arg-type]


def test_kernels_are_used_only_where_they_fit_and_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "PRESENT", True)
    assert fits()
    assert not fits(allowed=False)
    assert not fits(training=False)
    for other in ({"is_cuda": False}, {"dtype": torch.float32}, {"shape": (2, 96, 4, 4)}, {"last": False}):
        assert not fits(**other)
    monkeypatch.setattr(fused, "PRESENT", False)
    assert not fits()


@pytest.mark.parametrize("wanted", [False, True])
def test_a_network_allows_what_its_speed_says(wanted: bool) -> None:
    net = network(Architecture(name="small"), (1, 8, 8), 2, 0)
    seen: list[bool] = []
    net.extractor.register_forward_hook(lambda *_: seen.append(fused.ALLOWED.get()))
    net.speed = Speed(fused=wanted)
    net.represent(torch.rand(2, 1, 8, 8))
    assert seen == [wanted] and fused.ALLOWED.get() is False
