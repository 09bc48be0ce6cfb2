# Every target sets up what it needs in .venv and works from a clean clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet -c constraints.txt
SOURCES := $(wildcard kernels/*) CMakeLists.txt pyproject.toml constraints.txt
FUZZ_SECONDS ?= 600

.PHONY: help demo test test-slow lint bench fuzz clean
help:
	@echo "make demo   train a federated model with eight methods, show what each bit buys"
	@echo "make test   lint, type-check and run all fast tests"
	@echo "make test-slow | lint | bench | fuzz | clean"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/installed: $(BIN)/python $(SOURCES)
	$(PIP) "torch==2.13.0"
	$(PIP) -e ".[sim,report]"
	@touch $@

$(VENV)/tested: $(VENV)/installed papers/pyproject.toml
	$(PIP) -e ".[sim,report,dev]" -e ./papers
	@touch $@

demo: $(VENV)/installed
	$(BIN)/perbit compare demo

test: lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(VENV)/tested
	$(BIN)/python -m pytest -n 2 -m slow

lint: $(VENV)/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/tested
	$(BIN)/perbit bench --output results/bench.json

fuzz: $(VENV)/tested
	$(BIN)/python tests/fuzz.py --seconds $(FUZZ_SECONDS)

clean:
	rm -rf $(VENV) build papers/build papers/src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
