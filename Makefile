# `make run` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= config.toml
# How long `make soak` lets everything go wrong around the service.
MINUTES ?= 60
comma := ,
# With a GPU its packages come along.
EXTRAS := server$(if $(shell command -v nvidia-smi),$(comma)gpu)

SOURCES := $(shell find daemon pipeline kernels client -name '*.py' | sort)
# A new, moved or deleted file changes the stamp, since the installed link tree must follow.
STATE := $(shell { echo $(SOURCES) $(EXTRAS); cat pyproject.toml constraints.txt; } | cksum | cut -d' ' -f1)
# Not compiled ahead: that would add 180 MB of bytecode, most of it never used.
INSTALL := PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --no-build-isolation

.PHONY: run test check lint types unit bench soak install clean

run: $(VENV)/run-$(STATE)
	$(BIN)/retinad run --config $(CONFIG)

test: check unit

check: lint types

lint: $(VENV)/dev-$(STATE)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/dev-$(STATE)
	$(BIN)/mypy

unit: $(VENV)/dev-$(STATE)
	$(BIN)/python -m pytest

bench: $(VENV)/dev-$(STATE)
	$(BIN)/retinad bench
	$(BIN)/python tests/benchmarks/pipeline.py
	$(BIN)/python tests/benchmarks/publish.py

soak: $(VENV)/dev-$(STATE)
	SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m soak -s

install: $(VENV)/dev-$(STATE)

$(BIN)/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "retinad needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet pip==26.3 setuptools==84.2.1

$(VENV)/run-$(STATE): | $(BIN)/pip
	$(INSTALL) --editable '.[$(EXTRAS)]'
	touch $@

$(VENV)/dev-$(STATE): | $(BIN)/pip
	$(INSTALL) --editable '.[$(EXTRAS),dev]'
	touch $@

clean:
	rm -rf $(VENV) build retinad.egg-info .mypy_cache .pytest_cache .ruff_cache
