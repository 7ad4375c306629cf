# Every job of the project; `make` lists them. `check` is exactly what CI runs (.ci/run).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
OUT ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint fmt docs slow kernels test-federation bench

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(DEV) ## everything for development into .venv, once

demo: $(CORE) ## a whole run on scikit-learn's digits, on the CPU; OUT=folder says where to
	$(BIN)/asterism run demo $(if $(OUT),--out "$(OUT)")

# One thread a worker: pytest -n 2 already fills two cores, and K-means repeats only at a fixed thread count.
test: $(DEV) ## the fast tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not slow and not federation"

# The tests come last, so that their summary ends a good run: the fast ones, then a short federation of real processes.
check: $(DEV) ## all that CI checks: lint, docs, the README's commands, the fast tests
	$(MAKE) lint
	$(MAKE) docs
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	  $(MAKE) setup && $(MAKE) demo OUT="$$folder/demo" && \
	  { find "$$folder" -name report.html | grep -q . || { echo "the demo left no report.html" >&2; exit 1; }; }
	$(MAKE) test
	$(MAKE) kernels
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "federation and not slow"

lint: $(DEV) ## formatting, lint rules and types; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict

fmt: $(DEV) ## format, and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DEV) ## the documentation into docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

slow: $(DEV) ## the tests that take minutes
	$(BIN)/pytest -m "slow and not federation"

kernels: $(DEV) ## a GPU's kernels in Triton's interpreter, on the CPU; installs Triton (1 GB)
	$(INSTALL) --editable ".[kernels]"
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 tests/test_fused.py

test-federation: $(DEV) ## servers and sites as real processes on loopback, killed and cut on the way; minutes
	OMP_NUM_THREADS=1 $(BIN)/pytest -m federation

bench: $(DEV) ## what a CPU can measure in ten minutes, into results/bench, and the picture in the docs
	$(BIN)/python -m bench.startup
	$(BIN)/python -m bench.peers --repeats 3
	$(BIN)/python -m bench.plot
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.many_participants
	$(BIN)/python -m bench.tree --counts 1000 --counts 10000
	$(BIN)/python -m bench.screening

# Two stamps: the demo needs the core only, so a newcomer does not wait for the linters and Sphinx.
$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(DEV): $(CORE)
	$(INSTALL) --editable ".[dev]"
	touch $@
