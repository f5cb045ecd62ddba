# Two commands do everything: `make run` and `make test`. Both make .venv when it is missing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Three workers keep two cores busy: tests of real sessions often wait.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help env run test test-slow test-chance mutants lint bench clean

help:           ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

env: $(READY)   ## make the environment in .venv

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "making $(VENV) (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --constraint constraints.txt torch==2.13.0
	@$(PIP) --constraint constraints.txt --editable '.[test]'
	@$(PIP) --no-deps crypten==0.4.1
	@touch $@

run: $(READY)   ## run three parties and the dealer on this machine
	$(BIN)/python launch/run_mpc.py --parties 3

test: $(READY)  ## the whole suite, under 12 minutes on two cores
	$(PYTEST)

test-slow: $(READY)  ## what is too long for every day
	$(PYTEST) -m slow

test-chance: $(READY)  ## the tests whose outcome depends on chance, each with its stated rate
	$(PYTEST) -m 'chance and not slow'

mutants: $(READY) ## break the code on purpose: do tests notice? slow, by hand
	$(BIN)/python -m tests.mutants.run $(ARGS)

lint: $(READY)  ## ruff and mypy
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy --strict accounting protocols

bench: $(READY) ## ours beside stock CrypTen and plaintext
	$(BIN)/python launch/bench.py ops --json results/bench-ops.json

clean:          ## remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
