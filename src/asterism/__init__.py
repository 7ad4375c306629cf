"""Asterism: a federation finds, agrees on and learns classes that nobody labelled.

The public names load what they need when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asterism.algorithms import ALGORITHMS as ALGORITHMS
    from asterism.errors import AsterismError as AsterismError
    from asterism.estimation import estimate as estimate
    from asterism.experiment import Experiment as Experiment
    from asterism.experiment import load as load
    from asterism.federated import FEDERATED as FEDERATED
    from asterism.flow import Collect as Collect
    from asterism.flow import Reply as Reply
    from asterism.flow import State as State
    from asterism.flow import Sum as Sum
    from asterism.flow import run as run
    from asterism.report.page import write_report as write_report
    from asterism.runs.execute import execute as execute
    from asterism.runs.execute import new_folder as new_folder
    from asterism.runs.simulate import Simulation as Simulation
    from asterism.runs.simulate import simulate as simulate

_HOME = {
    "ALGORITHMS": "asterism.algorithms",
    "AsterismError": "asterism.errors",
    "Collect": "asterism.flow",
    "Experiment": "asterism.experiment",
    "FEDERATED": "asterism.federated",
    "Reply": "asterism.flow",
    "Simulation": "asterism.runs.simulate",
    "State": "asterism.flow",
    "Sum": "asterism.flow",
    "estimate": "asterism.estimation",
    "execute": "asterism.runs.execute",
    "load": "asterism.experiment",
    "new_folder": "asterism.runs.execute",
    "run": "asterism.flow",
    "simulate": "asterism.runs.simulate",
    "write_report": "asterism.report.page",
}

__version__ = "0.1.0"
__all__ = [*sorted(_HOME), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'asterism' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
