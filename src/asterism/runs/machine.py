"""What a run computes on, and how fast it may: the device, and the fast path of a GPU."""

from __future__ import annotations

import ctypes
import os

import torch

from asterism import fused
from asterism.backbones import FUSED
from asterism.data.split import FederationSplit
from asterism.errors import AsterismError
from asterism.experiment import Experiment
from asterism.model import PLAIN, READING, Speed

# Compiling ResNet-18 took 28 s on an H200 and saved about 5 µs an image of 32×32 pixels (docs/decisions/009).
WORTH_COMPILING = 4_000_000 * 32 * 32  # pixels
AT_ONCE = 5  # participants on one GPU: each on a stream of its own fills the gaps of the others
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGEST = -1, -3, 1 << 30  # of mallopt(3)


def computing_devices(name: str) -> list[torch.device]:
    """The devices called ``name``; "cuda" is every GPU, and "auto" too where there are any, else the CPU."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return [_device("cpu" if name == "auto" else name)]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise AsterismError(
            f"cannot compute on {name!r}: {reason}", where="machine.device", fix='"cpu" or "auto"'
        ) from None
    return device


def prepared(experiment: Experiment) -> list[torch.device]:
    """The device of each worker of a run, the server's first; this process is set up for them."""
    machine = experiment.machine
    if machine.exact:  # cuBLAS reads it when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    devices = computing_devices(machine.device)
    if machine.threads:
        torch.set_num_threads(machine.threads)
    keep_freed_memory()
    on_gpu = devices[0].type == "cuda"
    if on_gpu:
        torch.cuda.set_device(devices[0])  # on which kernels of our own are launched, outside of a worker's turn
        torch.use_deterministic_algorithms(machine.exact)
        torch.backends.cudnn.deterministic = machine.exact
        torch.backends.cudnn.allow_tf32 = not machine.exact
    workers = machine.workers or (AT_ONCE * len(devices) if on_gpu else 1)
    return [devices[i % len(devices)] for i in range(min(workers, experiment.federation.clients))]


def keep_freed_memory() -> None:
    """Tensors are made of memory that earlier ones left, where the C library is glibc.

    By itself it gives every block of more than 32 MiB back and asks for new pages the next time, whose faults cost
    several times what copying a model costs, and a quarter of a training step (docs/scaling.md).
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST)
        library.mallopt(M_TRIM_THRESHOLD, LARGEST)


def speed(experiment: Experiment, split: FederationSplit, device: torch.device, pixels: int) -> Speed:
    """How networks compute: on a CPU, and where exactness is asked for, the plain path.

    ``pixels`` are those of one image.
    """
    machine, batch = experiment.machine, experiment.train.batch
    if machine.exact or device.type != "cuda":
        return PLAIN
    own = machine.kernels == "own" and fused.PRESENT
    if own and (reason := fused.trial(device)):
        raise AsterismError(
            f"no kernels can be made for {device}: {reason}", where="machine.kernels",
            fix='install what is missing (Triton needs a C compiler), or take machine.kernels="torch", which is slower',
        )  # fmt: skip
    compile = machine.compile == "always" or (
        machine.compile == "auto"
        and not (own and experiment.model.name in FUSED)  # what has kernels of its own is as fast without
        and planned_images(experiment, split) * pixels >= WORTH_COMPILING
        and not fused.trial(device)  # torch's compiler needs what our kernels need
    )
    # Compiling what is only read takes seconds too, and saves some hundredths of one a round.
    read = READING if machine.compile == "always" else 0
    return Speed(half=True, fused=own, compiled=batch if compile else 0, graphs=True, reading=True, read=read)


def planned_images(experiment: Experiment, split: FederationSplit) -> int:
    """About how many images a run trains on, epochs and rounds counted."""
    rounds = [experiment.known.rounds, *(novel.rounds for novel in experiment.novel)]
    held = [sum(len(rows) for rows in stage.shares.values()) for stage in split.stages[: len(rounds)]]
    drawn = experiment.federation.clients / len(split.participants) * experiment.train.local_epochs
    return round(drawn * sum(count * images for count, images in zip(rounds, held, strict=True)))
