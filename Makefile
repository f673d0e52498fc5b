# make setup   a .venv with everything in it, and the Java libraries fetched once
# make demo    the whole service on this machine: broker, job, a crash in the middle, the count at the end
# make test    lint, types, tests            make bench   the benchmarks            make clean

# The first that runs and that pyarrow has a wheel for: a version manager may have a python3.12 on the path that does not.
PYTHON ?= $(shell for python in python3.12 python3.11 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

.PHONY: setup demo test bench clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(wildcard conf/java/*.xml)
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/delayline jars
	@touch $@

demo: $(STAMP)
	$(BIN)/delayline demo

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@# Two at a time: a test of the service waits for due times and starts of Java as long as it computes.
	$(BIN)/pytest --numprocesses 2 --dist worksteal

bench: $(STAMP)
	$(BIN)/python -m benchmarks

.PHONY: docs
docs: $(STAMP)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
