# `make demo` and `make test` need nothing but Python 3.11 or newer with pip; each makes .venv when it is absent.

PYTHON ?= python3
# Arguments for the program a target runs: make demo ARGS=--scripted, make test ARGS="-k pause".
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 10 --timeout 60

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format docs bench clean

help:
	@echo "make demo    the main job, with a real language model on this machine"
	@echo "make test    the tests, except the slow ones"
	@echo "make lint    ruff, pyright, import-linter"
	@echo "make format  let ruff put the code in order"
	@echo "make docs    check links; run the code blocks of the docs"
	@echo "make bench   the benchmarks, beside the peers that are installed"

# A terminal answers the demo's questions itself; without one the demo answers them.
demo: $(VENV)/.installed-demo
	@if [ -t 0 ]; then yes=; else yes=--yes; fi; $(BIN)/python -m examples.catalogue $$yes $(ARGS)

# loadgroup: tests marked xdist_group share a process, so that a model is loaded once.
test: $(VENV)/.installed-dev
	$(BIN)/python scripts/with_postgres.py \
	  $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup -m "not slow" -rs $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	$(BIN)/python scripts/check_docs.py
	$(BIN)/python -m pytest tests/test_docs.py $(ARGS)

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* build dist

$(VENV)/.installed-demo: EXTRAS := local
$(VENV)/.installed-dev: EXTRAS := all,dev
$(VENV)/.installed-bench: EXTRAS := all,dev,bench

# The stamp is newer than pyproject.toml as long as nothing has to be installed again.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@echo "Installing adjourn[$(EXTRAS)] into $(VENV) (once) …"
	@$(PIP) --editable '.[$(EXTRAS)]'
	@touch $@

# Some systems ship venv without ensurepip; the pip that is there can then put itself into the environment.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Adjourn needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(VENV); else \
	  $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(VENV) install --quiet pip; fi || \
	  { rm -rf $(VENV); echo "No environment could be made: $(PYTHON) needs its venv or pip module" >&2; exit 1; }
