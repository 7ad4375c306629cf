"""The app that Flower wants: ``python -m asterism.runs.flower.app FOLDER`` writes it for ``flwr run FOLDER``.

A run of Flower sends an app to every site. Ours holds two imports of what is installed and no code of its own, so
that what runs is what was installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

APP = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "asterism-app"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "asterism"

[tool.flwr.app.components]
serverapp = "asterism_app.server:app"
clientapp = "asterism_app.client:app"

[tool.flwr.app.config]
"""


def write_app(folder: Path) -> None:
    """The app that Flower wants to be given: two imports of what is installed, no code of its own."""
    package = folder / "asterism_app"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(APP, encoding="utf-8")
    (package / "__init__.py").write_text('"""An app without code of its own."""\n', encoding="utf-8")
    for name in ("server", "client"):
        imported = f"from asterism.runs.flower.{name}_app import app as installed"
        text = f'"""What is installed where this runs."""\n\n{imported}\n\napp = installed\n'
        (package / f"{name}.py").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_app(Path(sys.argv[1]))
