# make setup   a .venv with everything in it, and the Java libraries fetched once
#              With SPARK=4.1 behind it, this and all below use the newer line of Spark, in a .venv-4.1
# make demo    the whole service on this machine: broker, job, a crash in the middle, the count at the end
# make bench   the benchmarks            make clean
#
# Tests, from the fastest:
# make check              lint, format, types, imports, language, commit messages: seconds
# make unit               what needs neither a broker nor Spark: below a minute
# make test               the checks, and each kind of test: what has to pass before anything lands
# make test ARGS=...      only these, with pytest's own arguments: ARGS="tests/system/test_clock.py -k hour"
# make test-all           the checks and every test but the soak tests
# make soak               what needs longer, and three hours of `benchmarks endurance`
# make coverage           every test but the soak tests, under coverage.py: a table, and htmlcov/

# The first that runs and that pyarrow has a wheel for: a version manager may have a python3.12 on the path that does not.
PYTHON ?= $(shell for python in python3.12 python3.11 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$python && break; done)
# Each line of Spark has an environment of its own. What it does not take from constraints.txt is in constraints-spark-<line>.txt.
SPARK :=
VENV := .venv$(SPARK:%=-%)
PINNED := $(SPARK:%=constraints-spark-%.txt) constraints.txt
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

# More than there are cores: a test of the service waits for due times as long as it computes.
WORKERS ?= 4
# In the order in which tests/collection.py puts them: the longest first, one at a time. A worker that dies ends the run,
# as a failure: pytest-xdist would wait for ever for the tests of the one that replaces it.
PARALLEL := --numprocesses $(WORKERS) --max-worker-restart 0 --dist loadgroup --no-loadscope-reorder
# Tests of texts, which need no worker.
TEXTS := tests/docs/test_pages.py tests/docs/test_messages.py
# The job gives way by this much (`streaming/job/service.py`). Tests beside it must not have ten times its share of a core.
NICE := nice -n 10

.PHONY: setup demo check unit test test-all soak coverage bench clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): pyproject.toml $(PINNED) $(wildcard conf/java/jars/*.xml conf/java/jars/*.sha256)
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@# Debian's Python without its package python3-venv makes an environment without pip, and fails.
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@# The first pin of a package counts.
	awk -F'==' '/^[^#]/ && !pinned[$$1]++' $(PINNED) > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[dev]'
	$(BIN)/delayline jars --s3
	@touch $@

demo: $(STAMP)
	$(BIN)/delayline demo

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --quiet $(TEXTS)
	.ci/commit-messages

unit: $(STAMP)
	$(BIN)/pytest --numprocesses 2 --max-worker-restart 0 --dist loadgroup --no-loadscope-reorder -m "not java and not broker and not spark and not system and not thorough and not soak"

ifdef ARGS
test: $(STAMP)
	$(BIN)/pytest $(ARGS)
else
test: check
	$(NICE) $(BIN)/pytest $(PARALLEL) $(TEXTS:%=--ignore %) -m "not soak and not thorough"
endif

test-all: check
	EXAMPLES=all $(NICE) $(BIN)/pytest $(PARALLEL) $(TEXTS:%=--ignore %) -m "not soak"

soak: $(STAMP)
	EXAMPLES=all $(BIN)/pytest -m soak $(ARGS)
	$(BIN)/python -m benchmarks endurance

coverage: $(STAMP)
	rm -rf .coverage && mkdir .coverage
	EXAMPLES=all $(NICE) $(BIN)/coverage run -m pytest $(PARALLEL) -m "not soak" $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report

bench: $(STAMP)
	$(BIN)/python -m benchmarks

.PHONY: docs
docs: $(STAMP)
	$(BIN)/python docs/generate.py
	$(BIN)/python -m benchmarks.results_page

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
