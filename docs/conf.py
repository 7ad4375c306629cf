"""Sphinx settings: Markdown pages by MyST, the reference of the modules from their docstrings."""

from __future__ import annotations

import tomllib
from pathlib import Path

_project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]

project = "Asterism"
author = "The Asterism authors"
copyright = author
version = release = _project["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
# A dataclass's fields and a model's settings are described by their class; repeating each by name is noise.
autodoc_class_signature = "separated"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"Asterism {release}"
html_show_sphinx = False
