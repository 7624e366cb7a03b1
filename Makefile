# `make demo` and `make test` do everything on a fresh Debian or Ubuntu machine with Python 3.11+ and make.
# The other targets are for the inner loop; `make help` lists them.

PYTHON ?= python3
PY := .venv/bin/python
PYTEST := .venv/bin/pytest
N ?= 10000
SEED ?= 1
SOAK_S ?= 60

.DEFAULT_GOAL := help
.PHONY: help setup system models cluster-tools images cluster-up cluster-down check lock crds golden demo \
        test test-fast test-wire test-cluster soak sim bench bench-engine bench-router clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## .venv with exact versions, and the small model
	@$(PYTHON) hack/setup.py venv
	@$(PY) hack/models.py

system:
	@$(PYTHON) hack/setup.py system

cluster-tools: system setup ## the Kubernetes binaries, built once into the user's cache
	@$(PY) hack/cluster/tools.py

images: cluster-tools ## engine, operator, router and model images
	@$(PY) hack/images/build.py

cluster-up: cluster-tools ## a real Kubernetes in one network namespace
	@$(PY) hack/cluster/up.py

cluster-down: ## stop it and leave nothing behind
	@$(PY) hack/cluster/down.py

demo: setup ## from nothing to a model that answers through a real Kubernetes
	@$(PY) hack/demo.py

test: setup ## everything that CI runs
	@$(PY) hack/test.py

check: setup ## format, lint, types, import contracts, caps, dependencies, generated files
	@$(PY) hack/check.py

test-fast: setup ## unit, golden, property and simulation tests; no cluster
	@$(PYTEST) tests -m "not cluster and not wire"

test-wire: setup ## real processes over sockets with a real model
	@$(PYTEST) tests -m wire

test-cluster: images ## the tests against a real Kubernetes
	@$(PYTEST) tests -m cluster

soak: setup ## an engine under everything at once: make soak SOAK_S=3600
	@SOAK_S=$(SOAK_S) $(PYTEST) tests/soak -m wire -s

sim: setup ## N seeded operator simulations: make sim N=10000 SEED=1
	@$(PY) tests/sim/run.py --n $(N) --seed $(SEED)

bench: bench-engine bench-router ## figures beside peers, into tests/bench/results

bench-engine: setup
	@$(PYTHON) hack/setup.py engine-peers
	@$(PY) tests/bench/engine.py

bench-router: setup
	@$(PYTHON) hack/setup.py peers
	@$(PY) tests/bench/router.py

crds: setup ## CRDs, their chart copy and the field tables, from the models
	@$(PY) -m forebay.api.crd

golden: setup ## rewrite the golden files; read the diff
	@$(PY) tests/golden/update.py

lock: ## rewrite the lock files from pyproject.toml
	@$(PYTHON) hack/setup.py lock

clean: cluster-down ## stop the cluster and forget .venv and .cache
	rm -rf .venv .cache
