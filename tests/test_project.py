"""Habits of the project that a machine can check: sizes, names, docstrings, versions, a cheap ``--help``."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import asterism
from asterism.algorithms import ALGORITHMS
from asterism.experiment import load
from asterism.federated import FEDERATED

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "pyarrow")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {"__pycache__", "_build", "build", "dist", "node_modules"}
BINARY = {".png", ".jpg", ".npy", ".npz", ".safetensors", ".parquet", ".gz", ".zip", ".pt2", ".onnx"}
ABSOLUTE = re.compile(r"(?:^|[^\w.])/(?:home|root|work|tmp|Users|mnt|opt)/")


def project_texts() -> Iterator[Path]:
    """Every text file that belongs to the project: no caches, no environments, no outputs of runs."""
    for folder, below, names in os.walk(ROOT):
        top = Path(folder) == ROOT
        below[:] = [
            name
            for name in below
            if name not in GENERATED
            and (not name.startswith(".") or name == ".ci")
            and not name.endswith(".egg-info")
            and not (top and name in {"runs", "data"})
        ]
        yield from (Path(folder, name) for name in names if Path(name).suffix not in BINARY)


def long_functions(text: str, *, limit: int) -> list[str]:
    """Names of the functions that are longer than ``limit`` lines, docstring not counted."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node, clean=False) is not None
            body = node.body[1:] if documented else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > limit:
                found.append(f"{node.name} ({lines})")
    return found


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_files_are_short() -> None:
    assert {name(path): lines(path) for path in SOURCES if lines(path) > 300} == {}
    assert {name(path): lines(path) for path in TESTS if lines(path) > 400} == {}


def test_functions_are_short() -> None:
    long = {name(path): long_functions(path.read_text("utf-8"), limit=60) for path in SOURCES}
    assert {path: found for path, found in long.items() if found} == {}


def test_length_of_a_function_leaves_out_its_docstring() -> None:
    body = "".join(f"    {i}\n" for i in range(5))
    assert long_functions(f'def short():\n    """One.\n\n    Three.\n    """\n{body}', limit=5) == []
    assert long_functions(f"class A:\n  async def long(self):\n{body}", limit=4) == ["long (5)"]
    assert long_functions('def empty():\n    """Nothing else."""', limit=0) == []


def test_every_module_says_what_it_is() -> None:
    silent = [name(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert silent == []


def test_no_module_is_named_for_leftovers() -> None:
    leftovers = {"utils", "util", "helpers", "helper", "misc", "common", "manager"}
    assert [name(path) for path in SOURCES if leftovers & {path.stem, *path.parent.parts[-1:]}] == []


def test_no_file_names_a_folder_of_one_machine() -> None:
    found = [
        f"{name(path)}:{number}"
        for path in project_texts()
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1)
        if ABSOLUTE.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "absolute"),
    [
        ("cd |home|someone", True),
        ('"|tmp|run"', True),
        ("|root|notes", True),
        ("see docs|home|page", False),
        (".|work|out", False),
        ("#!|usr|bin|env bash", False),
    ],
)
def test_absolute_path_is_told_from_a_relative_one(line: str, absolute: bool) -> None:
    assert bool(ABSOLUTE.search(line.replace("|", "/"))) is absolute


def test_the_project_files_are_read() -> None:
    assert {"README.md", "Makefile", ".ci/run", "docs/conf.py", "src/asterism/errors.py"} <= {
        name(path) for path in project_texts()
    }


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    _, unreleased, entries = (ROOT / "CHANGELOG.md").read_text("utf-8").partition("\n## [Unreleased]\n")
    newest = re.search(r"\d+\.\d+\.\d+", entries)
    assert unreleased, "CHANGELOG.md has no section [Unreleased]"
    assert citation and newest
    assert (citation[1], newest[0], asterism.__version__) == (version, version, version)


def test_constraints_pin_exact_versions_of_registry_packages() -> None:
    rows = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [row.split("#")[0].strip() for row in rows if not row.startswith("#")]
    assert pins[0].startswith("torch==")
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", pin)] == []


def test_every_public_name_can_be_had() -> None:
    promised = [*asterism.__all__]
    assert len(promised) == len(set(promised))
    assert [attribute for attribute in promised if not hasattr(asterism, attribute)] == []


def test_the_package_holds_no_public_name_beside_the_promised_ones() -> None:
    held = {attribute for attribute, value in vars(asterism).items() if is_public(attribute, value)}
    assert held - set(asterism.__all__) == set()


def test_type_checkers_see_the_promised_names() -> None:
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse((ROOT / "src/asterism/__init__.py").read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asterism.")
        for alias in node.names
    }
    assert imported == set(asterism.__all__) - {"__version__"}


def is_public(attribute: str, value: object) -> bool:
    """Whether a reader would take the attribute for part of the package: no module, no stranger."""
    if attribute.startswith("_") or attribute == "TYPE_CHECKING" or isinstance(value, ModuleType):
        return False
    return str(getattr(value, "__module__", "asterism")).startswith("asterism")


def test_the_command_line_imports_nothing_heavy() -> None:
    # Asked of sys.modules, not of a clock, so it cannot flake; bench/startup.py measures the time itself.
    program = f"import sys, asterism.cli; print(*[name for name in {HEAVY} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout.split(), answer.stderr) == (0, [], "")


def examples(language: str) -> list[tuple[str, str]]:
    """Code blocks of the README and the documentation, as (page and number, text)."""
    blocks = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        (f"{name(page)}#{number}", block)
        for page in PAGES
        for number, block in enumerate(blocks.findall(page.read_text("utf-8")), start=1)
    ]


@pytest.mark.parametrize(("place", "code"), examples("python"), ids=lambda value: value.partition("\n")[0])
def test_python_example_runs(place: str, code: str) -> None:
    exec(compile(code, place, "exec"), {"__name__": "example"})


@pytest.mark.parametrize(("place", "text"), examples("toml"), ids=lambda value: value.partition("\n")[0])
def test_configuration_example_is_accepted(place: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "example.toml"
    file.write_text(text, encoding="utf-8")
    assert load(file).name == "my-run"


def test_settings_named_in_the_documentation_exist() -> None:
    experiment = load("demo", ["novel=[{}]"])
    sections = "|".join(type(experiment).model_fields)
    named = {
        key
        for page in PAGES
        for key in re.findall(rf"`((?:{sections})(?:\.[a-z_0-9]+)+)(?: = [^`]*)?`", page.read_text("utf-8"))
        if not key.endswith((".py", ".toml", ".json", ".jsonl"))
    }
    assert {key for key in named if not has_setting(experiment, key.split("."))} == set()
    assert "train.momentum" in named


def has_setting(section: object, keys: list[str]) -> bool:
    """Whether a dotted key leads somewhere; the settings of any FL algorithm and of any method count."""
    for position, key in enumerate(keys):
        if keys[:position] == ["federation", "algorithm"]:
            return any(key in algorithm.params.model_fields for algorithm in FEDERATED.values())
        if keys[:position] == ["novel", "0", "algorithm"]:
            return any(key in algorithm.params.model_fields for algorithm in ALGORITHMS.values())
        if key.isdigit() and isinstance(section, tuple):
            section = section[int(key)]
        elif hasattr(section, key):
            section = getattr(section, key)
        else:
            return False
    return True
