# Everything here sets itself up: Python >= 3.11, Java >= 17 and make are all that a machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Processes that share the tests; each has a Spark of its own.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup lock demo demo-kafka demo-cdc check check-types check-texts docs test quick mysql-server soak bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

setup: $(READY) ## the environment in .venv, from the lock file, and the jars that Spark needs

# The last two decide what is prepared for Java.
$(READY): requirements.lock pyproject.toml src/tautochrone/spark/session/java.py src/tautochrone/spark/session/jars.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: install it or set PYTHON=…"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.5"
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@$(BIN)/python -m tautochrone.spark.session.prepare --local
	@touch $@

lock: ## renew requirements.lock from pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.5"
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra dev --extra demo \
	  --custom-compile-command "make lock" pyproject.toml --output-file requirements.lock
	echo "pypaimon" | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --custom-compile-command "make lock" - --output-file tests/support/paimon_reader.lock

demo: setup ## replay real flights through a pipeline, query it while it runs, chart it in ClickHouse, verify it
	@$(BIN)/python -m examples.flights.demo

demo-kafka: setup ## the same through a real Kafka that it starts: JSON, Avro, broken records
	@$(BIN)/python -m examples.flights.demo_kafka

demo-cdc: setup ## capture a PostgreSQL database that it starts, while it is written to; kill, compare
	@$(BIN)/python -m examples.shop.demo

check: setup ## ruff, mypy, import contracts, file sizes, the documentation
	@$(MAKE) --no-print-directory --output-sync -j 2 check-types check-texts

# Takes as long as all that the other one does.
check-types:
	$(BIN)/mypy

check-texts:
	$(BIN)/ruff check src tests examples bench
	$(BIN)/ruff format --check src tests examples bench
	$(BIN)/lint-imports
	$(BIN)/python -m tests.docs.reference --check
	$(BIN)/zensical build --strict --clean

docs: setup ## write the pages made from the code, build the site in .work/site
	$(BIN)/python -m tests.docs.reference
	$(BIN)/zensical build --strict --clean

# Without the bytecode that Python keeps, each `taut` that a test starts compiles 1,800 modules: 2 CPU seconds.
unexport PYTHONDONTWRITEBYTECODE

# Most tests plan queries over few rows: the optimising compiler costs more than it wins, even in the sessions of Spark
# that run for an hour (random views took 158 CPU seconds of a JVM without it, 216 with it). Without it the cache of
# compiled code is 48 MB, and a long session would compile again what was swept from it.
test quick soak: export JAVA_TOOL_OPTIONS = -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m

test: setup ## everything that CI runs
	$(BIN)/pytest -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 50 --durations-min 5

# Schemathesis makes thousands of requests when its files are imported.
quick: setup ## what needs neither Spark nor a server nor much time, and one run of each kind: some minutes
	$(BIN)/pytest -q --ignore tests/metaservice/test_fuzz.py --ignore tests/metaservice/api/test_openapi.py -m "not slow and (quick or not (spark or kafka or crash or server or thorough))" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

mysql-server: setup ## a MySQL server into .venv, from Debian's packages; without one its tests are skipped
	tests/install_mysql_server.sh $(VENV)

soak: setup ## the long forms of the suites
	$(BIN)/pytest

bench: setup ## refreshes, ingestion, idling, checkpoints; parts and sizes by BENCH="--only tpch --scale 1"
	$(BIN)/python -m bench $(BENCH)

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .cache .work
