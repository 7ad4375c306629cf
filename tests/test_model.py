"""One flat vector behind every parameter: views stay views, loads are bitwise, heads grow at the end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from asterism.errors import AsterismError
from asterism.model import HEAD, Architecture, Layout, Network, fitted, grow, network
from asterism.seeds import generator
from asterism.worker import Worker
from tests.synthetic import SHAPE, copied, same_bits

SMALL = Architecture(name="small")


def small(rows: int = 4, seed: int = 7) -> Worker:
    return Worker.of(SMALL, SHAPE, rows, seed)


def some_images(count: int = 3) -> Tensor:
    return torch.rand(count, *SHAPE, generator=generator(1, "images"))


def outputs(worker: Worker) -> Tensor:
    with torch.no_grad():
        logits: Tensor = worker.network.eval()(some_images())
    return logits


def grown(worker: Worker, rows: int = 2) -> dict[str, Tensor]:
    """The worker's vectors with further head rows."""
    tensors = worker.take()
    new = torch.randn(rows, worker.layout.features, generator=generator(2, "rows"))
    return {**tensors, "parameters": grow(tensors["parameters"], new)}


def inside(view: Tensor, vector: Tensor) -> bool:
    """Whether ``view`` lies in the memory of ``vector``."""
    start, end = vector.data_ptr(), vector.data_ptr() + vector.nbytes
    return start <= view.data_ptr() < end and view.data_ptr() + view.nbytes <= end


def all_views(worker: Worker) -> bool:
    net = worker.network
    buffers = {name: value for name, value in net.named_buffers() if name in net.state_dict()}
    return all(inside(p, worker.parameters) for p in net.parameters()) and all(
        inside(b, worker.buffers if b.is_floating_point() else worker.counters) for b in buffers.values()
    )


def test_everything_is_a_view_after_building_loading_and_growing() -> None:
    worker = small()
    assert all_views(worker)
    worker.load(small(seed=8).take())
    assert all_views(worker)
    worker.load(grown(worker))
    assert worker.layout.rows == 6 and all_views(worker)
    worker.load(small().take())
    assert worker.layout.rows == 4 and all_views(worker)


@pytest.mark.parametrize("change", ["build", "load", "grow"])
def test_writing_to_a_vector_changes_the_network(change: str) -> None:
    worker = small()
    if change != "build":
        worker.load(small(seed=8).take() if change == "load" else grown(worker))
    before = outputs(worker)
    worker.parameters[-worker.layout.features :] += 1  # the last head row
    after = outputs(worker)
    assert torch.equal(after[:, :-1], before[:, :-1]) and not torch.equal(after[:, -1], before[:, -1])
    worker.parameters.zero_()
    assert torch.equal(outputs(worker), torch.zeros_like(before))
    worker.load(small(seed=9).take())
    before = outputs(worker)
    worker.buffers.mul_(2)
    assert not torch.equal(outputs(worker), before)


def test_training_writes_into_the_vectors() -> None:
    worker = small()
    before = copied({**worker.take(), "gradient": worker.gradient})
    worker.network.train()
    worker.differentiate(worker.network(some_images()).square().sum())
    assert not torch.equal(worker.gradient, before["gradient"])
    assert not torch.equal(worker.buffers, before["buffers"])
    assert worker.counters.tolist() == [1, 1, 1]
    assert torch.equal(worker.parameters, before["parameters"])


def test_load_of_take_is_the_identity_to_the_bit() -> None:
    worker, other = small(), small(seed=8)
    other.buffers.uniform_(0, 1, generator=generator(3, "buffers"))
    other.counters.fill_(17)
    taken = other.take()
    worker.load(taken)
    assert same_bits(worker.take(), taken)
    assert torch.equal(outputs(worker), outputs(other))


def test_take_is_a_copy() -> None:
    worker = small()
    taken = worker.take()
    before = copied(taken)
    for vector in (worker.parameters, worker.buffers, worker.counters):
        vector.add_(1)
    assert same_bits(taken, before)


def test_growing_appends_rows_and_keeps_every_older_bit() -> None:
    worker = small()
    before, logits = worker.take(), outputs(worker)
    tensors = grown(worker)
    worker.load(tensors)
    after = worker.take()
    assert torch.equal(after["parameters"][: before["parameters"].numel()], before["parameters"])
    assert same_bits({k: after[k] for k in ("buffers", "counters")}, {k: before[k] for k in ("buffers", "counters")})
    rows = torch.randn(2, worker.layout.features, generator=generator(2, "rows"))
    assert torch.equal(worker.network.prototypes[4:], rows)
    assert torch.equal(outputs(worker)[:, :4], logits)


def test_the_head_is_last_in_the_vector() -> None:
    worker = small()
    layout = worker.layout
    assert list(layout.parameters)[-1] == HEAD
    assert torch.equal(worker.parameters[layout.extractor_size :].view(4, 64), worker.network.head.weight)
    assert torch.equal(layout.head(worker.parameters), worker.network.prototypes)
    assert inside(layout.head(worker.parameters), worker.parameters)
    assert (layout.rows, layout.features) == (4, 64)
    assert layout.size == worker.parameters.numel() == layout.extractor_size + 4 * 64


def test_layouts_share_an_id_exactly_if_they_are_the_same() -> None:
    shapes: Mapping[str, tuple[int, ...]] = {"a": (2, 3), HEAD: (4, 3)}
    same = [Layout(dict(shapes), {"mean": (3,)}, ("n",)).id for _ in range(2)]
    others = [
        Layout({"b": (2, 3), HEAD: (4, 3)}, {"mean": (3,)}, ("n",)),
        Layout({"a": (3, 2), HEAD: (4, 3)}, {"mean": (3,)}, ("n",)),
        Layout({HEAD: (4, 3), "a": (2, 3)}, {"mean": (3,)}, ("n",)),
        Layout({"a": (2, 3), HEAD: (5, 3)}, {"mean": (3,)}, ("n",)),
        Layout(shapes, {"mean": (4,)}, ("n",)),
        Layout(shapes, {}, ("mean", "n")),
        Layout(shapes, {"mean": (3,)}, ("n", "m")),
    ]
    assert same[0] == same[1]
    assert len({same[0], *(layout.id for layout in others)}) == 1 + len(others)
    assert small().layout.id == small(seed=8).layout.id
    assert small().layout.with_rows(6).id == small(rows=6).layout.id != small().layout.id


def test_same_seed_gives_the_same_weights_and_the_process_wide_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = small().take()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(10)
    assert same_bits(first, small().take())
    assert not torch.equal(first["parameters"], small(seed=8).take()["parameters"])


def test_a_longer_head_begins_with_the_same_extractor() -> None:
    four, six = small(), small(rows=6)
    assert torch.equal(four.parameters[: four.layout.extractor_size], six.parameters[: six.layout.extractor_size])


def test_images_are_standardised_by_the_architecture() -> None:
    architecture = Architecture(name="tests.synthetic:Flat", mean=(0.5, 0.1), std=(0.25, 2.0))
    net = network(architecture, (2, 1, 1), 3, seed=1)
    z = net.represent(torch.tensor([[[[1.0]], [[0.3]]]]))
    torch.testing.assert_close(z, torch.tensor([[2.0, 0.1]]))
    torch.testing.assert_close(net(torch.zeros(1, 2, 1, 1)), torch.tensor([[-2.0, -0.05]]) @ net.prototypes.T)


def test_mean_and_deviation_are_no_state() -> None:
    assert "mean" not in small().network.state_dict()
    assert set(small().layout.buffers) | set(small().layout.counters) <= set(small().network.state_dict())


@pytest.mark.parametrize("key", ["mean", "std"])
@pytest.mark.parametrize("values", [(), (0.5, 0.5, 0.5)])
def test_constants_for_other_channels_are_refused(key: str, values: tuple[float, ...]) -> None:
    architecture = Architecture.model_validate({"name": "small", key: values})
    with pytest.raises(AsterismError, match=f"{len(values)} values for images of 1 channels") as caught:
        network(architecture, SHAPE, 4, seed=1)
    assert caught.value.where == f"model.{key}"


def test_resnet_18_with_a_head_for_80_classes() -> None:
    worker = Worker.of(Architecture(name="resnet18"), (3, 32, 32), 80, seed=1)
    assert worker.layout.extractor_size == 11_168_832
    assert worker.parameters.numel() == 11_168_832 + 80 * 512
    assert worker.buffers.numel() == 2 * 4_800 and worker.counters.numel() == 20


def test_frozen_parameters_of_a_backbone_are_ranges_that_never_move() -> None:
    worker = Worker.of(Architecture(name="tests.synthetic:FrozenStem"), SHAPE, 3, seed=1)
    stem = worker.network.get_submodule("extractor.stem")
    assert [p.grad for p in stem.parameters()] == [None, None]
    size = worker.layout.extractor_size
    assert worker.fixed(0) == [(0, 60)]
    assert worker.fixed(2) == [(0, 60), (size, size + 2 * worker.layout.features)]
    assert torch.equal(torch.cat([p.flatten() for p in stem.parameters()]), worker.parameters[:60])


class Odd(nn.Module):
    """A backbone with a parameter or buffer that cannot lie in the flat vectors."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "double":
            self.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(3 if kind == "counters" else (), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@pytest.mark.parametrize(("kind", "reason"), [("double", "must be float32"), ("counters", "single counters")])
def test_what_fits_no_vector_is_refused(kind: str, reason: str) -> None:
    with pytest.raises(AsterismError, match=reason) as caught:
        Worker(lambda rows: Network(Odd(kind), 64, rows, SMALL), 2)
    assert caught.value.where == "model.name"


def test_a_backbone_without_buffers_has_empty_vectors() -> None:
    worker = Worker.of(Architecture(name="tests.synthetic:Flat"), SHAPE, 2, seed=1)
    assert worker.buffers.shape == worker.counters.shape == (0,)
    assert worker.layout.extractor_size == 0
    worker.load(grown(worker))
    assert worker.layout.rows == 4


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("parameters", lambda vector: vector[:-1]),
        ("parameters", lambda vector: vector[: 10 * 64]),
        ("buffers", lambda vector: vector[:1]),
        ("buffers", lambda vector: vector[:-1]),
        ("counters", lambda vector: vector[:1]),
    ],
)
def test_vectors_of_another_network_are_refused_and_leave_this_one_alone(name: str, change: object) -> None:
    assert callable(change)
    worker = small()
    before, tensors = worker.take(), small(seed=8).take()
    with pytest.raises(ValueError, match=name):
        worker.load({**tensors, name: change(tensors[name])})
    assert same_bits(worker.take(), before)


def test_a_twin_is_kept_and_shares_nothing() -> None:
    worker = small()
    before = worker.take()
    twin = worker.twin("global")
    assert worker.twin("global") is twin and worker.twin("previous") is not twin
    assert same_bits(twin.take(), before)
    twin.parameters.zero_()
    assert same_bits(worker.take(), before)


def test_fitted_pads_with_zeros_and_cuts() -> None:
    vector = torch.arange(1.0, 5.0)
    assert fitted(vector, 4).tolist() == [1, 2, 3, 4]
    assert fitted(vector, 6).tolist() == [1, 2, 3, 4, 0, 0]
    assert fitted(vector, 2).tolist() == [1, 2]
