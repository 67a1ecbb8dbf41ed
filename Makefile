# paceline: two commands on a fresh machine are `make race` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
export PYTHONDONTWRITEBYTECODE := # hundreds of processes import the same modules: compile them once
MULTI = $(shell grep -rl --include='test_*.py' 'mark\.multi' tests)

.PHONY: help setup race data accuracy test test-all kills chaos protocol fuzz debian check bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY) ## a virtual environment in .venv with everything that tests need

# The constraints name the torch version that the tests run with; the index decides whether it is a CPU build.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "python3 lacks venv. try: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bert,integrations,dev]'
	@touch $(READY)

race: $(READY) ## race limit, ddp, allreduce and wfbp on this machine: the main job
	$(BIN)/paceline race

test: $(READY) ## the tests, at most 10 minutes on 2 cores
	$(BIN)/python -m pytest -n 2 -m "not multi and not root and not slow"
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "multi and not root and not slow" $(MULTI)

test-all: $(READY) check ## what `make test` leaves out: root, Debian packages, slow ones, format, lint, types, layers
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers,ray]'
	@$(MAKE) --no-print-directory debian
	$(BIN)/python -m pytest -m "root or slow" --durations=12

# Tests marked root say themselves what they miss; this saves the walk to the package manager where it can.
DEBIAN := chromium chromium-driver dataset-fashion-mnist iproute2 openssh-client openssh-server slurm-wlm munge
debian: ## the Debian packages that tests marked root need
	@missing=; for name in $(DEBIAN); do dpkg -s $$name >/dev/null 2>&1 || missing="$$missing $$name"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get install -y -qq $$missing >/dev/null || { apt-get update -qq && apt-get install -y -qq $$missing >/dev/null; }; \
	else echo "tests that need$$missing cannot run. try: apt-get install$$missing (as root)"; fi

KILLS ?= 120
kills: $(READY) ## kill workers, servers and launchers at random moments, and look for what is left (20 minutes; root for labs)
	$(BIN)/python -m tests.kills.campaign --kills $(KILLS) $(if $(SEED),--seed $(SEED))

RECORDS ?= runs/chaos.jsonl
chaos: $(READY) ## kill, join, freeze and leave in elastic jobs, judged by oracles (an hour; a second call goes on)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.elastic.chaos --records $(RECORDS)

protocol: $(READY) ## 100,000 random schedules of faults through the elastic protocol, for shm and for tcp (minutes)
	$(BIN)/python -m tests.elastic.test_protocol 100000

check: $(READY) ## format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

fuzz: $(READY) ## 5,000 seeded cases of damaged input; SEED=N makes a campaign again
	$(BIN)/python -m tests.fuzz.campaign --cases 5000 $(if $(SEED),--seed $(SEED))

data: ## Fashion-MNIST, from Debian's package
	@dpkg -s dataset-fashion-mnist >/dev/null 2>&1 || apt-get install -y -qq dataset-fashion-mnist

accuracy: $(READY) data ## the final accuracy of strategies on Fashion-MNIST (an hour; a second call goes on)
	$(BIN)/python benchmarks/accuracy.py $(ACCURACY)

bench: $(READY) ## the performance claims, each as a ratio against a peer in the same run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]'
	$(BIN)/python benchmarks/allreduce.py
	$(BIN)/python benchmarks/against_ddp.py
	$(BIN)/python benchmarks/exchanges.py
	$(BIN)/python benchmarks/compressors.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/records.py
	$(BIN)/python benchmarks/forecast.py

clean: ## everything that make has made
	rm -rf .venv build dist runs *.egg-info .pytest_cache .mypy_cache .ruff_cache
