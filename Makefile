# `make run` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= config.toml
# Duration of `make soak`, in minutes.
MINUTES ?= 60
# Number of tests that run side by side: one more than the cores of a small machine, since many tests wait for a service
# or a timeout. If a loaded machine fails some, set TEST_TIME_SCALE (tests/deadlines.py).
WORKERS ?= 3
comma := ,
# A machine with an NVIDIA driver gets the GPU packages too.
GPU := $(shell command -v nvidia-smi)
EXTRAS := server$(if $(GPU),$(comma)gpu)
CONSTRAINTS := constraints-$(if $(GPU),gpu,cpu).txt

SOURCES := $(shell find daemon pipeline kernels client -name '*.py' | sort)
# The stamp's name changes with each new, moved or deleted file: the installed link tree must follow.
STATE := $(shell { echo $(SOURCES) $(EXTRAS); cat pyproject.toml constraints*.txt; } | cksum | cut -d' ' -f1)
# Without --no-compile, pip would write 180 MB of bytecode, most of it never used.
INSTALL := PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-compile --constraint $(CONSTRAINTS) --no-build-isolation

# Some container images forbid bytecode. Each process that a test starts would then compile torch again: importing it
# takes 2.5 s of CPU instead of 1.3, and collecting the tests 7.6 s instead of 3.5.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test check lint types unit bench soak release-check install clean

run: $(VENV)/run-$(STATE)
	$(BIN)/retinad run --config $(CONFIG)

test: check unit

check: lint types

lint: $(VENV)/dev-$(STATE)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/dev-$(STATE)
	$(BIN)/mypy
	$(BIN)/mypy tests .ci/release_check.py $(wildcard examples)

# One thread for each worker: the tensors of tests are too small to gain from more.
unit soak: export OMP_NUM_THREADS := 1

# A file's tests share a worker, and so their module's fixtures: a service or a chaos run each.
unit: $(VENV)/dev-$(STATE)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

bench: $(VENV)/dev-$(STATE)
	$(BIN)/retinad bench
	$(BIN)/python tests/benchmarks/pipeline.py
	$(BIN)/python tests/benchmarks/publish.py

soak: $(VENV)/dev-$(STATE)
	SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m soak -s

release-check: $(VENV)/dev-$(STATE)
	$(BIN)/python .ci/release_check.py

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
	rm -rf $(VENV) build dist retinad.egg-info .mypy_cache .pytest_cache .ruff_cache
