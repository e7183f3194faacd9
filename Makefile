# Needs GNU make, git, Python 3.11+ and Java 17+. Everything is installed into $(VENV); nothing outside the checkout is touched.
SHELL := bash
.DEFAULT_GOAL := help

find_python = for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done
PYTHON ?= $(shell $(find_python))
VENV ?= .venv
BIN := $(VENV)/bin
PIP_FLAGS ?= -qq
INSTALL = -m pip install $(PIP_FLAGS) --disable-pip-version-check

# Spark's workers and Dagster's subprocesses find their Python on the PATH.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export SPARK_LOCAL_IP ?= 127.0.0.1
# Else each of some hundred processes that tests start compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

# Three workers for two cores, since tests wait for git, Python and the JVM in turn. One of them runs all tests of Spark,
# so that there is one JVM (`pytest_collection_modifyitems` in tests/conftest.py).
PYTEST = $(BIN)/python -m pytest -n 3 --dist loadgroup
# The packages that hold the promises; the floor is in percent of lines.
PROMISES = dagster_versioned/identity/**,dagster_versioned/storage/**,dagster_versioned/delta/**,dagster_versioned/tables/**,dagster_versioned/publication/**,dagster_versioned/projects/**,dagster_versioned/branches/**
COVERAGE_FLOOR = 95

.PHONY: help
help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: java $(VENV)/.example ## Install, then run the example three times, show its versions, its features, its histories, its checks
	$(BIN)/python -m example_project.tour

.PHONY: ui
ui: java $(VENV)/.example .example/dagster/dagster.yaml ## Open the example in Dagster's UI, with its runs
	@compgen -G '.example/dagster/history/runs/*-*.db' > /dev/null || $(BIN)/python -m example_project
	@[ -e .example/features ] || $(BIN)/python -m example_project.features
	@[ -e .example/history ] || $(BIN)/python -m example_project.history
	@[ -e .example/checked ] || $(BIN)/python -m example_project.checked
	$(BIN)/python -m example_project.governed
	DAGSTER_HOME=$(CURDIR)/.example/dagster $(BIN)/dagster dev -m example_project.definitions -m example_project.features -m example_project.history -m example_project.checked

.PHONY: test
test: java $(VENV)/.dev ## Install with test extras, then everything that CI checks
	@$(MAKE) --no-print-directory -j2 lint docs
	$(PYTEST) -m "not slow"

.PHONY: timings
timings: java $(VENV)/.dev ## The same tests, and a table of what each file of them took
	@set -eo pipefail; report="$$(mktemp)"; trap 'rm -f "$$report"' EXIT; \
	$(PYTEST) -m "not slow" --durations=0 --junitxml="$$report" -o junit_family=xunit1 || failed=$$?; \
	$(BIN)/python .ci/timings.py "$$report"; exit "$${failed:-0}"

.PHONY: coverage
coverage: java $(VENV)/.dev ## The same tests, a quarter slower, and which lines they run; fails below the floor
	$(PYTEST) -m "not slow" --cov --cov-report=
	$(BIN)/coverage report
	$(BIN)/coverage report --fail-under=$(COVERAGE_FLOOR) --include='$(PROMISES)'

.PHONY: test-slow
test-slow: java $(VENV)/.dev azurite ## The tests that `make test` leaves out: crash matrix, races, clusters, the example on S3
	$(PYTEST) -m slow

# Where there is no npm the tests on Azure are skipped, and say so.
.PHONY: azurite
azurite: $(BIN)/python ## Install Azurite, Azure's emulator, into $(VENV)/azurite, where there is npm
	@[ -e $(VENV)/azurite/node_modules/.bin/azurite-blob ] || ! command -v npm > /dev/null || \
		npm install --silent --no-fund --no-audit --prefix $(VENV)/azurite azurite@3

.PHONY: test-matrix
test-matrix: java $(VENV)/.dev ## The tests with each combination of releases (COMBINATIONS="floor newest": with these)
	$(BIN)/python .ci/matrix.py --folder $(VENV)-matrix $(COMBINATIONS)

.PHONY: lint
lint: $(VENV)/.dev ## Lint, format check, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache

.PHONY: docs
docs: $(VENV)/.dev ## Build the site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: screenshots
screenshots: java $(VENV)/.screenshots ## Take docs/images anew; needs Chromium and its driver
	$(BIN)/python docs/screenshots.py

.PHONY: bench
bench: java $(VENV)/.dev ## Run every benchmark in its quick form and tabulate ours/peer
	@set -eo pipefail; log="$$(mktemp)"; trap 'rm -f "$$log"' EXIT; \
	for benchmark in benchmarks/[a-z]*.py; do \
		echo "== $$benchmark"; $(BIN)/python "$$benchmark" --quick | tee -a "$$log"; \
	done; \
	echo; awk '$$1 == "RATIO" {printf "%-40s %s\n", $$2, $$3}' "$$log"

.PHONY: constraints
constraints: ## Rewrite constraints.txt from what is installed in $(VENV)
	@sed '/^#/!d' constraints.txt > constraints.new
	@$(BIN)/python -m pip freeze --all --exclude-editable --exclude pip | grep -E '^[A-Za-z0-9._-]+==[^@]+$$' >> constraints.new
	@mv constraints.new constraints.txt

.PHONY: clean
clean: ## Remove everything that these targets made
	rm -rf $(VENV) $(VENV)-matrix .example site dist .coverage* .pytest_cache .ruff_cache .hypothesis

.PHONY: java
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	major="$$("$$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p')"; \
	[ "$${major:-0}" -ge 17 ] || { echo "Spark needs Java 17 or newer (found: $${major:-none}): install it with" \
		"\`sudo apt-get install openjdk-17-jre-headless\` or \`brew install openjdk@17\`, or set JAVA_HOME to where it is." >&2; exit 1; }

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed: install it, or name it with \`make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)\`." >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The stamps make an installation last until what it was made from changes.
$(VENV)/.%: pyproject.toml constraints.txt hatch_build.py dagster_versioned/identity/bag_lanes.c | $(BIN)/python
	@echo "Installing dagster-versioned[$*] into $(VENV); the first time takes minutes."
	@$(BIN)/python $(INSTALL) --editable '.[$*]' --constraint constraints.txt || { \
		echo "The installation failed; \`make PIP_FLAGS= $(MAKECMDGOALS)\` shows how it went." >&2; exit 1; }
	@touch $@

.example/dagster/dagster.yaml:
	@mkdir -p $(@D)
	@printf 'telemetry: {enabled: false}\nnux: {enabled: false}\n' > $@
