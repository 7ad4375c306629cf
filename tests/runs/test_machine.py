from __future__ import annotations

import platform
import subprocess
import sys
from typing import Any

import pytest
import torch

from asterism import fused
from asterism.data.split import FederationSplit, Fingerprint, StageSplit
from asterism.errors import AsterismError
from asterism.experiment import Experiment, load
from asterism.flow import State, run
from asterism.model import PLAIN, Speed
from asterism.runs import machine
from asterism.runs.simulate import simulate
from tests.synthetic import same_bits

GPU = torch.device("cuda", 0)
PIXELS = 32 * 32


def demo(**settings: object) -> Experiment:
    return load("demo", {key.replace("__", "."): value for key, value in settings.items()})


def split(images: int) -> FederationSplit:
    """Ten participants with as many images each."""
    names = tuple(f"p{i}" for i in range(10))
    shares = dict.fromkeys(names, torch.zeros(1).expand(images))
    stages = tuple(StageSplit(name, ("a", "b"), shares) for name in ("known", "novel-1"))
    seen = Fingerprint(images=10 * images, classes=("a", "b"), labels="")
    return FederationSplit(names, stages, demo().split, seen)


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton is there and makes kernels, whatever this machine has."""
    monkeypatch.setattr(fused, "PRESENT", True)
    monkeypatch.setattr(fused, "trial", lambda device: "")


def test_exactness_is_the_plain_path_on_any_device() -> None:
    for device in (GPU, torch.device("cpu")):
        assert machine.speed(demo(machine__exact=True), split(10_000_000), device, PIXELS) == PLAIN


def test_a_cpu_takes_the_plain_path() -> None:
    assert machine.speed(demo(), split(10_000_000), torch.device("cpu"), PIXELS) == PLAIN


@pytest.mark.parametrize(("images", "compiled"), [(100, 0), (10_000_000, 32)])
def test_a_gpu_compiles_where_a_run_is_long_enough(images: int, compiled: int) -> None:
    fast = Speed(half=True, fused=True, compiled=compiled, graphs=True, reading=True)
    assert machine.speed(demo(), split(images), GPU, PIXELS) == fast


@pytest.mark.parametrize(("wanted", "compiled"), [("always", 32), ("never", 0)])
def test_compiling_can_be_asked_for_or_forbidden(wanted: str, compiled: int) -> None:
    fast = machine.speed(demo(machine__compile=wanted), split(100_000), GPU, PIXELS)
    assert (fast.compiled, fast.at_rest.compiled > 0) == (compiled, compiled > 0)


def test_what_has_kernels_of_its_own_is_not_compiled() -> None:
    compiled = [
        machine.speed(demo(model__name="resnet18", machine__kernels=kernels), split(10_000_000), GPU, PIXELS).compiled
        for kernels in ("own", "torch")
    ]
    assert compiled == [0, 32]


def test_without_triton_nothing_is_compiled_and_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "PRESENT", False)
    monkeypatch.setattr(fused, "trial", lambda device: "ModuleNotFoundError: No module named 'triton'")
    fast = Speed(half=True, graphs=True, reading=True)
    assert machine.speed(demo(model__name="resnet18"), split(10_000_000), GPU, PIXELS) == fast


def test_a_machine_that_cannot_make_kernels_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "trial", lambda device: "RuntimeError: Failed to find C compiler.")
    with pytest.raises(AsterismError, match=r"no kernels can be made .* Failed to find C compiler") as caught:
        machine.speed(demo(), split(100), GPU, PIXELS)
    assert caught.value.where == "machine.kernels" and 'machine.kernels="torch"' in caught.value.fix
    # What is offered must not need a compiler either, however long the run.
    plain = Speed(half=True, graphs=True, reading=True)
    assert machine.speed(demo(machine__kernels="torch"), split(10_000_000), GPU, PIXELS) == plain


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(AsterismError, match=r"machine\.device"):
        machine.computing_devices("cuda:99")


FAULTS = """
import resource, statistics, torch
from asterism.runs.machine import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 24)  # 64 MiB, which glibc by itself hands back at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
{prepare}
print(int(statistics.median(faults() for _ in range(16))))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep freed memory, or cannot be told")
@pytest.mark.parametrize(("prepare", "most"), [("keep_freed_memory()", 1_000), ("", 1 << 20)])
def test_memory_that_was_freed_is_not_asked_for_again(prepare: str, most: int) -> None:
    # In a process of its own: what other tests left behind decides where the next block lies.
    call = [sys.executable, "-c", FAULTS.format(prepare=prepare)]
    faults = int(subprocess.run(call, capture_output=True, text=True, check=True).stdout)
    assert faults < most and (prepare or faults > 10_000)  # of 16,384 pages


def states(workers: int) -> list[State]:
    """Every state of a short run of both stages."""
    settings: dict[str, Any] = {"known__rounds": 2, "novel__0__rounds": 1, "machine__workers": workers}
    federation = simulate(demo(train__local_epochs=1, machine__device="cpu", **settings))
    found: list[State] = []
    state = run(federation.flow(federation.state), federation.fleet.answer, found.append)
    novel = State("novel-1", 0, state.tensors, state.layout, state.classes)
    found.append(run(federation.flow(novel), federation.fleet.answer, found.append))
    return found


def test_results_do_not_depend_on_how_many_work_at_once() -> None:
    alone, together = states(1), states(3)
    assert len(alone) == len(together) > 3
    for one, other in zip(alone, together, strict=True):
        assert (one.round, one.classes) == (other.round, other.classes)
        assert same_bits(one.tensors, other.tensors)
