# Two commands from a fresh clone: `make demo` and `make test`. Everything stays in .venv and the user cache.
# Needs: Linux, Python 3.11 or newer (PYTHON=... names one), make. Uses uv when it is on PATH.

SHELL := /bin/bash
RUN := .venv/bin
# More for pytest, as in: make test ARGS='tests/unit -k window -x'
ARGS ?=

export PYTHON
# Some environments say that no compiled module be kept: here hundreds of interpreters would compile the same ones each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test coverage test-long test-lowest lint format docs bench release-check changelog lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## make .venv with what the demo needs
	@.ci/setup demo

setup-dev: ## make .venv with the tools for tests and checks too
	@.ci/setup dev

demo: setup ## the main job on a real llama.cpp server and real models, told step by step
	@$(RUN)/queenright demo

test: setup-dev ## the tests, but for the long ones, in two halves at once
	@$(RUN)/python .ci/halves.py short $(ARGS)

coverage: setup-dev ## the same, and what of the code they run; takes half as long again
	@$(RUN)/python .ci/halves.py coverage $(ARGS)

test-long: setup-dev ## the long tests, in two halves at once
	@$(RUN)/python .ci/halves.py long $(ARGS)

test-lowest: ## the unit tests with the lowest versions that pyproject.toml allows
	@.ci/setup lowest
	@.venv-lowest/bin/python -m pytest -q -m 'not long and not process and not engine' $(ARGS)

lint: setup-dev ## ruff, mypy and the import contracts; all of them, whichever fails
	@rc=0; \
	$(RUN)/ruff check --quiet --output-format concise . || rc=1; \
	$(RUN)/ruff format --check --quiet --output-format concise . || { echo 'make format writes these as wanted'; rc=1; }; \
	$(RUN)/mypy || rc=1; \
	$(RUN)/lint-imports --no-logo || rc=1; \
	exit $$rc

format: setup-dev ## let ruff format and fix what it can
	@$(RUN)/ruff check --fix .
	@$(RUN)/ruff format .

docs: setup-dev ## the documentation as a site in build/site, with every link checked
	@NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict -f .ci/mkdocs.yml

release-check: setup-dev ## whether what would be published is whole; TAG=v1.2.3: and is that release
	@$(RUN)/python .ci/release_check.py $(if $(TAG),--tag $(TAG))

changelog: setup-dev ## VERSION=1.2.3: put the fragments of .changes/ into CHANGELOG.md
	@$(RUN)/python .ci/changelog.py $(VERSION)

bench: setup-dev ## ratios of this machine: commands, and recovery against a plain start
	@$(RUN)/python -m chaos.bench $(ARGS)

lock: ## write .ci/lock anew from pyproject.toml (needs uv)
	@.ci/relock

clean: ## remove the environments and every cache of the tools
	@rm -rf .venv .venv-lowest .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* build dist
	@find supervisor workers chaos tests -name __pycache__ -type d -prune -exec rm -rf {} +
