# Two commands do everything: `make run` and `make test`. Both make .venv when it is missing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LOCKS  := $(addprefix locks/,requirements.txt torch.txt torch-cpu.txt)
# Every package has its version and its hashes in locks/, with all that it needs: nothing is left to resolve.
LOCKED := install --quiet --require-hashes --no-deps
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# uv is quicker, if it is there; `make env UV=` does without.
UV     ?= $(shell command -v uv)
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
          --no-annotate --custom-compile-command 'make lock'
# Three workers keep two cores busy: tests of real sessions often wait.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# The suite starts dozens of processes; with byte code each imports in half the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env peers docs lock release run test test-slow test-engines test-chance mutants lint bench clean

help:           ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

env: $(READY)   ## make the environment in .venv

$(READY): pyproject.toml setup.py protocols/authentication/native.c $(LOCKS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "making $(VENV) (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(LOCKED) --requirement locks/torch-cpu.txt 2>/dev/null || \
	  { echo "no CPU build of torch here: taking the registry's (on Linux with gigabytes of CUDA, which is not used)"; \
	    $(PIP) $(LOCKED) --requirement locks/torch.txt; }
	@$(if $(UV),$(UV) pip $(LOCKED) --python $(BIN)/python --requirement locks/requirements.txt ||) \
	  $(PIP) $(LOCKED) --requirement locks/requirements.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

peers:          ## make .venv-peers, where bench.py finds SPU: it needs another numpy, and Python 3.11
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip --disable-pip-version-check $(LOCKED) --requirement locks/peers.txt

docs:           ## build the documentation as a site in build/site, with mkdocs from .venv-docs
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip --disable-pip-version-check $(LOCKED) --requirement locks/docs.txt
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict

lock:           ## choose the versions in locks/ anew, with uv (locks/torch-cpu.txt is kept by hand)
	@test -n "$(UV)" || { echo "make lock needs uv"; exit 1; }
	$(COMPILE) pyproject.toml --extra test --group engine --no-emit-package torch --output-file locks/requirements.txt
	grep -o 'torch==[0-9.]*' pyproject.toml | \
	  $(COMPILE) --no-config - --constraint locks/requirements.txt --output-file locks/torch.txt
	sed -nE 's/^(flare|mlflow|ray) = \["(.*)"\]$$/\2/p' pyproject.toml | \
	  $(COMPILE) --no-config - --constraint locks/requirements.txt --output-file locks/engines.txt
	$(COMPILE) --no-config --group peers --output-file locks/peers.txt
	$(COMPILE) --no-config --group docs --output-file locks/docs.txt

release: $(READY)  ## wheel, source archive and SBOM (CycloneDX) in dist
	rm -rf build/lib dist
	$(BIN)/python -c 'from setuptools.build_meta import build_sdist, build_wheel as wheel; build_sdist("dist"); wheel("dist")'
	$(BIN)/python locks/sbom.py > dist/secure_sccvfl.cdx.json

run: $(READY)   ## run three parties and the dealer on this machine
	$(BIN)/python launch/run_mpc.py --parties 3

test: $(READY)  ## the whole suite
	$(PYTEST)

test-slow: $(READY)  ## what is too long for every day
	$(PYTEST) -m slow

test-engines: $(READY)  ## install NVIDIA FLARE, Ray and MLflow into .venv, and run the tests that need them
	@$(if $(UV),$(UV) pip $(LOCKED) --python $(BIN)/python --requirement locks/engines.txt ||) \
	  $(PIP) $(LOCKED) --requirement locks/engines.txt
	$(BIN)/python -m pytest -m engines

test-chance: $(READY)  ## the tests whose outcome depends on chance, each with its stated rate
	$(PYTEST) -m 'chance and not slow'

mutants: $(READY) ## break the code on purpose: do tests notice? slow, by hand
	$(BIN)/python -m tests.mutants.run $(ARGS)

lint: $(READY)  ## ruff and mypy
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy --strict --follow-imports silent -p secure_sccvfl.accounting -p secure_sccvfl.protocols

bench: $(READY) ## ours beside stock CrypTen and plaintext
	$(BIN)/python launch/bench.py ops --json results/bench-ops.json

clean:          ## remove the environment and caches
	rm -rf $(VENV) .venv-peers .venv-docs build dist secure_sccvfl/bundled *.egg-info .pytest_cache .mypy_cache .ruff_cache
