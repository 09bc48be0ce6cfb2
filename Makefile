# Every target sets up what it needs in .venv and works from a clean clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt
# Where all packages are pinned by their hashes (tools/lock.py), those are installed and no others; `make LOCK= ...` does without.
TAG := $(shell $(PYTHON) -c "import platform, sys; print(f'{platform.system()}-{platform.machine()}-py3.{sys.version_info.minor}'.lower())")
LOCK := $(wildcard requirements/$(TAG))
HASHED := $(BIN)/python -m pip install --quiet --require-hashes --no-deps
OWN := $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation
SOURCES := $(wildcard kernels/*) CMakeLists.txt pyproject.toml constraints.txt $(wildcard requirements/*/*)
FUZZ_SECONDS ?= 600
MINUTES ?= 30

.PHONY: help demo test test-slow lint docs wheel bench fuzz fuzz-native soak licences clean
help:
	@echo "make demo   train a federated model with nine methods, show what each bit buys"
	@echo "make test   lint, type-check and run all fast tests"
	@echo "make test-slow | lint | docs | wheel | bench | fuzz | fuzz-native | soak | licences | clean"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

ifneq ($(LOCK),)

$(VENV)/installed: $(BIN)/python $(SOURCES)
	$(HASHED) -r $(LOCK)/build.txt
	$(HASHED) --no-build-isolation -r $(LOCK)/run.txt
	$(PIP) "torch==2.13.0"
	$(OWN) -e .
	@touch $@

$(VENV)/tested: $(VENV)/installed papers/pyproject.toml
	$(HASHED) --no-build-isolation -r $(LOCK)/dev.txt
	$(OWN) -e ./papers
	@touch $@

else

$(VENV)/installed: $(BIN)/python $(SOURCES)
	$(PIP) --upgrade pip
	$(PIP) "torch==2.13.0"
	$(PIP) -e ".[sim,report]"
	@touch $@

$(VENV)/tested: $(VENV)/installed papers/pyproject.toml
	$(PIP) -e ".[sim,report,dev]" -e ./papers
	@touch $@

endif

demo: $(VENV)/installed
	$(BIN)/perbit compare demo --fresh

test: lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(VENV)/tested
	$(BIN)/python -m pytest -n 2 -m slow

lint: $(VENV)/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site in build/site; any broken link or stale page fails.
docs: $(VENV)/tested
	$(BIN)/python tools/codec_reference.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# One file that installs without a compiler. Made with Python 3.12 or newer, it serves all later versions.
wheel: $(BIN)/python
	$(PIP) --upgrade pip
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

bench: $(VENV)/tested
	$(BIN)/perbit bench --force --output results/bench.json

fuzz: $(VENV)/tested
	$(BIN)/python tests/fuzz.py --seconds $(FUZZ_SECONDS)

fuzz-native: $(VENV)/tested
	$(BIN)/python tests/native/fuzz.py --seconds $(FUZZ_SECONDS)

soak: $(VENV)/tested
	$(BIN)/python tests/soak.py --minutes $(MINUTES) --output results/soak.json

licences: $(VENV)/tested
	$(BIN)/python tools/licences.py

clean:
	rm -rf $(VENV) build papers/build papers/src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
