# make run    the demonstration: five methods, five seeds, on digits
# make test   style, types, and the fast tests
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: run test test-slow bench clean

run: $(READY)
	$(BIN)/rwalk run

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow -s

bench: $(READY)
	$(BIN)/python -m benchmarks

# Installed once; again only when what to install has changed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rwalk needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
