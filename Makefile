# One command: `make` formats, lints, types, checks layers and runs the fast tests.
.PHONY: all format lint test coverage nightly bench ci

RUN = uv run --quiet

all: format lint
	$(RUN) pytest -n auto -m "not slow" tests/unit tests/spec tests/contract

format:
	$(RUN) ruff format --quiet .
	$(RUN) ruff check --quiet --fix-only .

lint:
	$(RUN) ruff check --quiet .
	$(RUN) ruff format --quiet --check .
	$(RUN) mypy
	$(RUN) lint-imports --no-logo 2>/dev/null || $(RUN) lint-imports

test:
	$(RUN) pytest

# Which branches the tests take. Only the processes of the tests are measured: cells, workers and servers of their own are not.
# It doubles the processor time of what it measures (before Python 3.14, branches are traced), so it is a job beside `.ci/run`.
coverage:
	$(RUN) pytest --timeout 600 --cov --cov-report term

# The long versions of what CI runs a sample of.
nightly:
	ONETOOL_NIGHTLY=1 $(RUN) pytest --timeout 3600

# What the documentation says about speed, measured here and now.
# With DATA=folder of the retrieval sets, also how well the search finds, beside the baselines.
bench:
	$(RUN) python benchmarks/run.py
	$(RUN) python benchmarks/search.py $(if $(DATA),--data $(DATA))

ci:
	bash .ci/run
