# `make` formats the code, runs the static checks and the fast unit tests.
.PHONY: all format lint test coverage nightly bench ci

RUN = uv run --quiet

all: format lint
	$(RUN) pytest -m "not slow" tests/unit

format:
	$(RUN) ruff format --quiet .
	$(RUN) ruff check --quiet --fix-only .

lint:
	$(RUN) ruff check --quiet .
	$(RUN) ruff format --quiet --check .
	$(RUN) mypy
	$(RUN) lint-imports
	$(RUN) python tests/style/check.py
	$(RUN) python tests/style/measures.py
	$(RUN) codespell

test:
	$(RUN) pytest

# Branch coverage of the test processes; cells, workers and servers in their own processes are not measured.
# Before Python 3.14 branch coverage doubles the processor time, so CI runs it as a separate job.
coverage:
	$(RUN) pytest --timeout 600 --cov --cov-report term

# The long versions of tests that CI samples.
nightly:
	ONETOOL_NIGHTLY=1 $(RUN) pytest --timeout 3600

# Measure the numbers of docs/performance.md. DATA=DIRECTORY with retrieval sets also measures the quality of the search.
bench:
	$(RUN) python benchmarks/run.py
	$(RUN) python benchmarks/search.py $(if $(DATA),--data $(DATA))

ci:
	bash .ci/run
