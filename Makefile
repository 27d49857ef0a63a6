# Two commands for a fresh machine with Python 3.11+, pip and make: `make quickstart`, `make test`.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help quickstart test federation lint types format bench clean

help:
	@echo "make quickstart  install, fetch data, train and compare; writes runs/quickstart/report.html"
	@echo "make test        the whole test suite"
	@echo "make federation  tests of a real federation: kills, strangers, bad replies; half an hour"
	@echo "make lint        style; make format mends it"
	@echo "make types       static types"
	@echo "make bench       speed, against a plain PyTorch loop"
	@echo "make clean       remove the virtual environment and caches (runs are kept)"

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Isonomy needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/developing: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ .venv/installed

quickstart: .venv/installed
	$(BIN)/isonomy compare quickstart --to runs/quickstart --overwrite

test: .venv/developing
	$(BIN)/python -m pytest -n 2

federation: .venv/developing
	$(BIN)/python -m pytest -m 'slow or not slow' tests/federation

lint: .venv/developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/developing
	$(BIN)/mypy

format: .venv/developing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/developing
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
