"""A local step that comes again, captured once as a CUDA graph and replayed from then on.

A graph repeats kernels on fixed addresses without a word from Python, so whatever differs from one replay to the next
lies in tensors that are written before it: the chosen rows, the model, what is held for the step. Generators are
registered with the graph, so that a replay draws what the step would have drawn.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# Compiling and capturing are one participant's at a time: both keep state that a whole process shares.
PREPARING = threading.Lock()
MOST = 64  # graphs of one program; as many batch sizes are rare, and each costs some megabytes


class Replayed:
    """Runs a program; batches of a size that comes again are captured and replayed.

    The first batch of a size runs as it is, which is also the warm-up that capturing asks for; if it is of the size
    ``searched``, cuDNN tries its algorithms on it.
    """

    def __init__(
        self, program: Callable[[Tensor], None], generators: Iterable[torch.Generator], searched: int = 0
    ) -> None:
        self._program, self._generators, self._searched = program, tuple(generators), searched
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor] | None] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, chosen: Tensor) -> None:
        """One step on the images at these rows."""
        size = len(chosen)
        if size not in self._graphs:
            # What is found is kept by cuDNN and captured; for a left-over of an epoch the search would cost too much.
            with PREPARING, searching(size == self._searched):
                self._program(chosen)
            if len(self._graphs) < MOST:
                self._graphs[size] = None
            return
        graph, rows = self._graphs[size] or self._capture(chosen)
        rows.copy_(chosen)
        graph.replay()

    def _capture(self, chosen: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph, rows = torch.cuda.CUDAGraph(), chosen.clone()
        for generator in self._generators:
            graph.register_generator_state(generator)
        # Graphs of one program never run at once, so they may share their memory. A worker's own stream, and not the
        # one that torch would take for all: cuBLAS keeps a workspace for each stream, and what is captured keeps it,
        # so graphs of several workers would write into each other's products.
        own = torch.cuda.current_stream()
        stream = None if own == torch.cuda.default_stream() else own
        captured = torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local")
        with PREPARING, uncollected(), captured:
            self._program(rows)
        self._graphs[len(chosen)] = graph, rows
        return graph, rows


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected: a graph that nobody needs any more, freed now, would break off the capture."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def searching(wanted: bool) -> Iterator[None]:
    """Convolutions of shapes that cuDNN has not met yet are computed in every way it knows, and the fastest kept."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = wanted
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
