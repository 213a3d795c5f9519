# Needs Python 3.11 or later and make; everything else is installed into .venv.

PYTHON ?= python3
BIN := .venv/bin
MADE := .venv/.made
RUN_TIME := .venv/.run-time
TESTABLE := .venv/.testable
INSTALLED := .venv/.installed
BROWSER := .venv/.browser
COMPILED := .venv/.compiled
LOWEST := build/lowest/.installed
# What is imported is compiled then: that is a small part of what is installed.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
PYTEST := $(BIN)/python -m pytest -n 6 --dist worksteal --durations=15
# Slow tests take minutes. What a hung test prints after two may end the process: it reads the stacks of running threads.
PATIENT := -o faulthandler_timeout=0
# Servers for test-matrix, as paths: those on PATH unless named.
MATRIX_SERVERS ?= $(foreach name,redis-server valkey-server,$(shell command -v $(name) 2>/dev/null))
UV_VERSION := 0.13.8
LOCK = build/lock/bin/uv pip compile --quiet --no-config --upgrade --universal --python-version 3.11 \
  --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header
DEPLOY := build/deploy/.installed
PEERS := build/bench/.installed
NODE := build/node/.installed
NPM := npm --silent --ignore-scripts --no-audit --no-fund

# Packages of a surrounding Python must not be seen in .venv.
unexport PYTHONHOME PYTHONPATH
# Else each of the processes that run tests would compile all of them anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# What a service needs that pins its packages: the producer, the limiter, and the worker behind them.
LOWEST_TESTS := tests/unit/core tests/unit/producer tests/unit/store tests/integration/producer \
  $(filter-out %/test_servers.py,$(wildcard tests/integration/limiter/test_*.py)) tests/integration/server tests/integration/worker tests/integration/store/test_take.py \
  tests/integration/test_rq.py tests/integration/slack/test_sink.py

.PHONY: help demo test test-browser test-slow test-matrix test-lowest test-prometheus check check-deploy bench lock clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(RUN_TIME)  ## Watch 300 events go through the limits to a local stand-in for Slack
	@$(BIN)/python -m dispatcher demo

test:  ## Run the tests on the server that pip brings
	@$(MAKE) --no-print-directory -j2 $(COMPILED) $(NODE)
	$(PYTEST) -m "not slow and not browser"

test-slow: $(TESTABLE)  ## Run the tests that take their time
	$(PYTEST) $(PATIENT) -m "slow and not alone"
	$(PYTEST) $(PATIENT) --hypothesis-profile=long -m "hypothesis and not slow"
	$(PYTEST) $(PATIENT) -n 0 -m alone

test-matrix: $(TESTABLE)  ## Run the server tests on redis-server and valkey-server (MATRIX_SERVERS="path path")
	@test -n "$(strip $(MATRIX_SERVERS))" || { \
	  echo "no redis-server or valkey-server on PATH: install Debian's packages redis-server or valkey-server," >&2; \
	  echo "or name binaries: make test-matrix MATRIX_SERVERS=\"/path/to/redis-server\"" >&2; exit 1; }
	@set -e; for server in $(MATRIX_SERVERS); do \
	  echo "== $$server: $$($$server --version)"; \
	  DISPATCHER_TEST_SERVER="$$server" $(PYTEST) -m "server and not slow and not browser"; \
	done

test-prometheus: $(TESTABLE)  ## Run the tests with Prometheus and Alertmanager themselves, which have to be installed
	@for tool in promtool prometheus prometheus-alertmanager; do command -v $$tool >/dev/null || { \
	  echo "no $$tool on PATH: install Debian's packages prometheus and prometheus-alertmanager" >&2; exit 1; }; done
	$(PYTEST) -n 0 tests/prometheus/check_*.py

test-browser: $(BROWSER)  ## Run the tests of the page in Chromium, which has to be installed
	$(BIN)/python -m pytest -m browser tests/browser

test-lowest: $(LOWEST)  ## Run the tests of producer, limiter and worker on the lowest versions of pyproject.toml
	build/lowest/bin/python -m pytest -n 4 --dist worksteal -m "not slow" $(LOWEST_TESTS)

check: $(INSTALLED)  ## Check format, lint, types and layers
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/python -m tests.docs.typed_samples
	$(BIN)/basedpyright --warnings
	$(BIN)/lint-imports

check-deploy: $(DEPLOY)  ## Check Dockerfile, compose file, Kubernetes manifests and systemd units; needs no Docker engine
	@deploy/check build/deploy/bin

bench: $(INSTALLED) $(PEERS)  ## Measure against other limiters and queues (ONLY="gate storm" ROUNDS=7 CORES=together)
	$(BIN)/python -m benchmarks $(ONLY) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(CORES),--cores $(CORES))

lock:  ## Resolve the dependencies anew into all requirements*.txt
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet uv==$(UV_VERSION)
	$(LOCK) --extra dev --no-emit-package notification-dispatcher --output-file requirements-dev.txt pyproject.toml
	$(LOCK) --constraints requirements-dev.txt --extra test --no-emit-package notification-dispatcher --output-file requirements-test.txt pyproject.toml
	$(LOCK) --constraints requirements-dev.txt --extra serve --output-file requirements.txt pyproject.toml
	$(LOCK) --constraints requirements-dev.txt --extra embedded --output-file requirements-demo.txt pyproject.toml
	$(LOCK) --constraints requirements-dev.txt --group image --output-file deploy/requirements-image.txt
	$(LOCK) --constraints requirements-dev.txt --group test-browser --output-file tests/browser/requirements.txt
	$(LOCK) --group check-deploy --output-file deploy/requirements.txt
	$(LOCK) --constraints requirements-dev.txt --output-file benchmarks/requirements-peers.txt benchmarks/requirements-peers.in
	for folder in benchmarks tests/docs/node; do \
	  $(NPM) update --prefix $$folder --package-lock-only --omit-lockfile-registry-resolved; done

clean:  ## Remove .venv, caches and build output; what the embedded server keeps in .dispatcher stays
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed, %s is %s; name another: make PYTHON=/path/to/python3" % (sys.executable, sys.version.split()[0]))'
	@echo "making .venv: a Python environment of this checkout alone"
	@$(PYTHON) -m venv .venv
	@touch $@

$(RUN_TIME): $(MADE) requirements-demo.txt
	@echo "installing the run-time packages of requirements-demo.txt into it, about 60 MB"
	@$(PIP) --require-hashes -r requirements-demo.txt
	@touch $@

$(TESTABLE): $(MADE) requirements-test.txt pyproject.toml
	@echo "installing what tests need: requirements-test.txt"
	@$(PIP) --require-hashes -r requirements-test.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(INSTALLED): $(TESTABLE) requirements-dev.txt
	@echo "installing what checks need: requirements-dev.txt"
	@$(PIP) --require-hashes -r requirements-dev.txt
	@touch $@

$(BROWSER): $(TESTABLE) tests/browser/requirements.txt
	@echo "installing what drives a browser: tests/browser/requirements.txt"
	@$(PIP) --require-hashes -r tests/browser/requirements.txt
	@touch $@

# Else each of the processes that run the tests would compile all of them, in a new checkout.
$(COMPILED): $(TESTABLE)
	@$(BIN)/python -m pytest --collect-only -qq tests/integration >/dev/null & \
	  $(BIN)/python -m pytest --collect-only -qq $(filter-out tests/integration,$(wildcard tests/*)) >/dev/null; wait
	@touch $@

$(LOWEST): pyproject.toml
	@echo "resolving and installing the lowest versions into build/lowest"
	@$(PYTHON) -m venv build/lowest
	@build/lowest/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@build/lowest/bin/uv pip compile --quiet --no-config --resolution lowest-direct --python-version 3.11 \
	  --extra embedded --group test-lowest --output-file build/lowest/requirements.txt pyproject.toml
	@build/lowest/bin/uv pip install --quiet --no-config --python build/lowest/bin/python -r build/lowest/requirements.txt
	@echo "$(CURDIR)" > "$$(build/lowest/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"
	@touch $@

$(DEPLOY): deploy/requirements.txt
	@$(PYTHON) -m venv build/deploy
	@build/deploy/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(NODE): tests/docs/node/package.json tests/docs/node/package-lock.json
	@rm -rf build/node && mkdir -p build/node && cp tests/docs/node/package*.json build/node
	@if command -v npm >/dev/null; then $(NPM) ci --fetch-retries 1 --fetch-timeout 30000 --prefix build/node || rm -rf build/node/node_modules; fi
	@test -d build/node/node_modules || echo "no package from npm: the recipe for Node is not run" >&2
	@touch $@

$(PEERS): benchmarks/requirements-peers.txt benchmarks/package-lock.json
	@rm -rf build/bench
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --target build/bench -r $<
	@mkdir -p build/bench/node
	@cp benchmarks/package.json benchmarks/package-lock.json build/bench/node
	@if command -v npm >/dev/null; then $(NPM) install --prefix build/bench/node; \
	  else echo "no npm on PATH: the storm runs without BullMQ" >&2; fi
	@touch $@
