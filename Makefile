# Two commands for a fresh machine with Python 3.11+, pip and make: `make quickstart`, `make test`.

PYTHON ?= python3
BIN := .venv/bin
ROUNDS ?= 300
SEED ?= 0
SECONDS ?= 60

.PHONY: help quickstart test test-all federation pages soak fuzz tables lint types format docs pictures package bench clean

help:
	@echo "make quickstart  install, download data, search for a fair model; writes runs/quickstart/decision.html"
	@echo "make test        the test suite, without the tests marked slow; prints its time"
	@echo "make test-all    every test but those of pages, including the slow ones"
	@echo "make federation  all tests of a real federation (kills, unknown keys, bad replies); half an hour"
	@echo "make pages       tests of pages in Chromium (needs chromium and chromium-driver)"
	@echo "make soak        a federation of ten, with kills, stalls, a restart and an attacker; ROUNDS=300 SEED=0"
	@echo "make fuzz        run each fuzzer for SECONDS=60; NAMES='csv gate' runs some"
	@echo "make tables      write the tables of docs/ again that are made from results/*.json"
	@echo "make lint        check the style; make format fixes it"
	@echo "make types       check static types"
	@echo "make docs        build the documentation site into site/; open site/index.html"
	@echo "make pictures    draw the pictures of the documentation again, from new runs; a few minutes"
	@echo "make package     build and check the wheel and the source archive in dist/"
	@echo "make bench       measure speed, against a plain PyTorch loop"
	@echo "make clean       remove the virtual environment and caches (runs are kept)"

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Isonomy needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tune]'
	@touch $@

.venv/developing: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ .venv/installed

quickstart: .venv/installed
	$(BIN)/isonomy decide quickstart --to runs/quickstart

test: .venv/developing
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: .venv/developing
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'slow or not slow' --ignore-glob='tests/report/*_in_chromium.py'

federation: .venv/developing
	$(BIN)/python -m pytest -m 'slow or not slow' tests/federation

pages: .venv/developing
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'selenium>=4.20,<5'
	$(BIN)/python -m pytest -m slow tests/report/test_*_in_chromium.py

soak: .venv/developing
	PYTHONPATH=tests $(BIN)/python -m soak --rounds $(ROUNDS) --seed $(SEED)

tables: .venv/developing
	$(BIN)/python -m isonomy.studies.results docs results

fuzz: .venv/developing
	PYTHONPATH=tests $(BIN)/python -m fuzz $(SECONDS) $(NAMES)

lint: .venv/developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/developing
	$(BIN)/mypy

format: .venv/developing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/developing
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is site/index.html."

pictures: .venv/developing
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[docs]'
	$(BIN)/python docs/pictures/make.py

package: .venv/developing
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

bench: .venv/developing
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
