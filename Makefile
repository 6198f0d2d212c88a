# lipcert: `make demo` shows it at work, `make test` proves it; both start from a bare clone.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-full lint format types docs bench clean
help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 11

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lipcert needs Python 3.11 or newer; use make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

# One stamp per set of packages: `make demo` does not pay for the test tools.
.venv/demo: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP_INSTALL) -e '.[train,attack,report]'
	@touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP_INSTALL) -e '.[dev]'
	@touch .venv/demo $@

demo: .venv/demo ## train, prove, check, attack and report a network on the embedded digits
	$(BIN)/lipcert demo

test: lint types ## lint, types and every test
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-full: lint types ## the same, with the long version of every test
	LIPCERT_FULL=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/dev ## format and lint, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: .venv/dev ## format the code and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: .venv/dev ## mypy, strict on src
	$(BIN)/mypy

docs: .venv/dev ## build the site into docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

bench: .venv/dev ## measure again what results/ holds
	$(BIN)/python benchmarks/optimal.py --out results/optimal.jsonl
	$(BIN)/python benchmarks/cost.py --out results/scaling.json --docs results/speed.md

clean: ## remove the environment and everything built
	rm -rf .venv docs/_build dist build
