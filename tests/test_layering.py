"""Modules import downward only, one adapter alone knows Flower, and ``--help`` pays for no heavy import."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = "asterism"

# Lowest first, names relative to the package: a module imports from its own layer and from those before it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "seeds", "config", "files"),
    ("flow",),
    (
        *(
            "data",
            "data.*",
            "metrics",
            "losses",
            "transport",
            "screening",
            "memory",
            "model",
            "worker",
            "backbones",
            "fused",
            "kernels",
        ),
        *("aggregate", "site", "training", "graphs", "companion", "privacy", "privacy.*"),
        *("distances", "forest", "spanning", "prototypes", "centroids", "estimators", "estimators.*", "estimation"),
    ),
    ("federated", "federated.*", "algorithms", "algorithms.*", "evaluation"),
    ("report", "report.*"),
    ("runs", "runs.*", "experiment"),
    ("suite", "suite.*"),
    ("cli", "cli_*", "__main__", "__init__"),
)
FLOWER_ADAPTER = "runs.flower"  # a folder: nothing else imports flwr
HEAVY = frozenset({"torch", "numpy", "scipy", "sklearn", "matplotlib", "pyarrow"})


class Import(NamedTuple):
    """One imported name: ``target`` is dotted, ``eager`` says that importing the module executes it."""

    target: str
    line: int
    eager: bool


def package_sources() -> dict[str, str]:
    """Source text of every module, by its name relative to the package."""
    root = SOURCE / PACKAGE
    return {module_name(path.relative_to(root)): path.read_text("utf-8") for path in root.rglob("*.py")}


def module_name(path: Path) -> str:
    """``data/images.py`` as ``data.images``; a package's ``__init__.py`` as the package."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def layer(module: str) -> int | None:
    """The layer's number, or None where nobody placed the module."""
    for number, patterns in enumerate(LAYERS):
        if any(fnmatchcase(module, pattern) for pattern in patterns):
            return number
    return None


def imports(module: str, modules: Mapping[str, str]) -> Iterator[Import]:
    """Every import of a module, inside functions and ``if TYPE_CHECKING`` too."""
    is_package = any(name.startswith(f"{module}.") for name in modules)
    here = [PACKAGE] if module == "__init__" else [PACKAGE, *module.split(".")]
    folder = here if is_package or module == "__init__" else here[:-1]
    for node, eager in statements(ast.parse(modules[module]), eager=True):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, eager) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{origin}.{alias.name}"
                yield Import(whole if relative(whole) in modules else origin, node.lineno, eager)


def statements(node: ast.AST, *, eager: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, with whether importing the module executes it."""
    for child in ast.iter_child_nodes(node):
        lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        yield child, eager
        yield from statements(child, eager=eager and not lazy)


def relative(target: str) -> str | None:
    """The name inside the package (its root is ``__init__``), or None for a stranger."""
    if target == PACKAGE:
        return "__init__"
    return target.removeprefix(f"{PACKAGE}.") if target.startswith(f"{PACKAGE}.") else None


def complaints(modules: Mapping[str, str]) -> list[str]:
    """One line for every broken rule, and none for a sound package."""
    found = [
        f"{module}: in no layer; place it in LAYERS of tests/test_layering.py"
        for module in sorted(modules)
        if layer(module) is None
    ]
    for module in sorted(modules):
        for imported in imports(module, modules):
            found += complaint(module, imported)
    return found


def complaint(module: str, imported: Import) -> list[str]:
    """What one import breaks, as lines that name the place."""
    place, foreign = f"{module}:{imported.line}", imported.target.partition(".")[0]
    found = []
    inner = relative(imported.target)
    if inner is not None:
        own, other = layer(module), layer(inner)
        if own is not None and other is not None and other > own:
            found.append(f"{place}: imports {imported.target}, which lies above it")
    if foreign == "flwr" and module != FLOWER_ADAPTER and not module.startswith(f"{FLOWER_ADAPTER}."):
        found.append(f"{place}: imports flwr, which only {FLOWER_ADAPTER} may")
    if foreign in HEAVY and imported.eager and fnmatchcase(module, "cli*"):
        found.append(f"{place}: imports {foreign} before a command asks for it")
    return found


def test_every_module_imports_downward() -> None:
    assert complaints(package_sources()) == []


def test_every_module_is_seen() -> None:
    assert {"errors", "seeds", "config", "data", "data.images"} <= set(package_sources())


OFFENDERS = {
    "upward": (
        {"flow": "", "errors": "import asterism.flow"},
        "errors:1: imports asterism.flow, which lies above it",
    ),
    "upward by name": (
        {"runs": "", "runs.store": "", "metrics": "from asterism.runs import store"},
        "metrics:1: imports asterism.runs.store, which lies above it",
    ),
    "upward in a function": (
        {"suite": "", "model": "def grow():\n    from asterism.suite import run\n"},
        "model:2: imports asterism.suite, which lies above it",
    ),
    "upward for types only": (
        {"experiment": "", "flow": "if TYPE_CHECKING:\n    from asterism.experiment import Experiment\n"},
        "flow:2: imports asterism.experiment, which lies above it",
    ),
    "upward relatively": (
        {"runs": "", "data": "", "data.split": "from ..runs import store"},
        "data.split:1: imports asterism.runs, which lies above it",
    ),
    "upward from a package": (
        {"cli": "", "data.split": "", "data": "from .. import cli"},
        "data:1: imports asterism.cli, which lies above it",
    ),
    "the package itself": (
        {"__init__": "", "flow": "import asterism"},
        "flow:1: imports asterism, which lies above it",
    ),
    "flower": (
        {"flow": "def ask():\n    import flwr.server\n"},
        "flow:2: imports flwr, which only runs.flower may",
    ),
    "flower beside its adapter": (
        {"runs.flowers": "import flwr"},
        "runs.flowers:1: imports flwr, which only runs.flower may",
    ),
    "heavy command line": (
        {"cli": "try:\n    import torch.nn\nexcept ImportError:\n    pass\n"},
        "cli:2: imports torch before a command asks for it",
    ),
    "heavy part of the command line": (
        {"cli_run": "class Options:\n    from numpy import pi\n"},
        "cli_run:2: imports numpy before a command asks for it",
    ),
    "unknown": ({"telepathy": ""}, "telepathy: in no layer; place it in LAYERS of tests/test_layering.py"),
}


@pytest.mark.parametrize("name", OFFENDERS)
def test_offender_is_named(name: str) -> None:
    modules, expected = OFFENDERS[name]
    assert complaints(modules) == [expected]


SOUND = {
    "downward": {"errors": "", "flow": "from asterism.errors import AsterismError"},
    "within the layer": {"model": "from asterism import backbones", "backbones": ""},
    "within a package": {
        "data": "from . import split",
        "data.split": "from .images import ImageSet",
        "data.images": "",
    },
    "flower in its adapter": {"runs": "", "runs.flower": "", "runs.flower.fleet": "import flwr"},
    "heavy in a command": {"cli": "def run():\n    import torch\n"},
    "heavy for types only": {"cli": "if TYPE_CHECKING:\n    import numpy\n"},
    "heavy elsewhere": {"losses": "import torch"},
    "a name that only begins alike": {"flow": "import asterism_plugins, flwrx"},
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_package_passes(name: str) -> None:
    assert complaints(SOUND[name]) == []
