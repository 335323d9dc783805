# Nothing needs to be installed by hand but Python (3.11 or newer, with venv and pip) and make: each target makes what
# it needs in .venv, once, where this source is installed editable. A stamp file says what is there; a change of
# pyproject.toml makes it anew.

PYTHON  ?= python3
WORKERS ?= 4
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Without its bytecode at hand a launcher compiles itself at each start, and a measurement of it measures the compiler.
unexport PYTHONDONTWRITEBYTECODE
# The examples' configuration files read a variable of this name.
unexport WORKERS

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint format api bench docs clean

help:
	@echo 'make demo    a job loses a worker, recovers, and goes on where it was'
	@echo 'make test    lint, types, import contracts and all tests'
	@echo 'make lint    format, lint, types and import contracts'
	@echo 'make format  format the code, and mend what the linter can mend'
	@echo 'make api     the public API beside that of the last release tag; a part of make test'
	@echo 'make bench   start, detection, restart, memory and tee, side by side with torchrun'
	@echo 'make docs    the pages of docs/ as HTML, strictly'
	@echo 'make clean   remove what the targets made'

demo: $(VENV)/demo.stamp
	$(BIN)/python examples/demo.py

test: lint $(VENV)/test.stamp
	@.ci/tools
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(VENV)/lint.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/lint.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

api: $(VENV)/test.stamp
	$(BIN)/python .ci/api

bench: $(VENV)/test.stamp
	$(BIN)/python -m bench

docs: $(VENV)/docs.stamp
	$(BIN)/sphinx-build --builder html --fail-on-warning --keep-going --nitpicky docs docs/_build/html

clean:
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# pip of 25.1 and newer reads the dependency groups of pyproject.toml; the pip that comes with Python may be older.
$(VENV)/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/package.stamp: $(VENV)/pip.stamp pyproject.toml
	$(PIP) install --editable .
	@touch $@

$(VENV)/demo.stamp $(VENV)/lint.stamp $(VENV)/test.stamp $(VENV)/docs.stamp: $(VENV)/%.stamp: $(VENV)/package.stamp
	$(PIP) install --group $*
	@touch $@
