# Two commands are all a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EVERYTHING := $(VENV)/.everything
PEERS := .venv-peers
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Nothing that we install reports home.
export FLWR_TELEMETRY_ENABLED := 0
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help setup demo test test-cpus lint types docs bench bench-peers clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# torch goes first and alone: pip then never looks for another build of it.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	@touch $@

# What only tests and the optional parts need: Flower, Ray, Sionna, trackers, linters.
$(EVERYTHING): $(READY)
	$(PIP) -e '.[dev,flower,ray,phy,tracking,notebook,docs]'
	@touch $@

setup: $(EVERYTHING)  ## create .venv with everything installed

demo: $(READY)  ## train the same model over one cell by several rules and write a report
	$(BIN)/signfade demo

lint: $(EVERYTHING)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(EVERYTHING)  ## mypy, strict
	$(BIN)/mypy

test: lint types  ## lint, types, doctests, all tests and the docs site
	$(BIN)/python -m pytest -n 2
	$(MAKE) docs

docs: $(EVERYTHING)  ## the docs site in build/site, without the internet; a broken link or reference fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

test-cpus: $(EVERYTHING)  ## the numerical tests as other CPUs would run them: other last bits
	$(BIN)/python tests/cpus.py

bench: $(READY)  ## speeds, as ratios measured in turn, kept in docs/bench/VERSION.json
	@mkdir -p runs/bench
	$(BIN)/python benchmarks/uplink.py --json runs/bench/uplink.json
	$(BIN)/python benchmarks/uplink.py --scaling --json runs/bench/scaling.json
	$(BIN)/python benchmarks/gradients.py --json runs/bench/cnn.json
	$(BIN)/python benchmarks/gradients.py --model mlp --json runs/bench/mlp.json
	$(BIN)/python benchmarks/gradients.py --model regression --json runs/bench/regression.json
	$(BIN)/python benchmarks/round.py --json runs/bench/round.json
	$(BIN)/python benchmarks/processes.py --json runs/bench/processes.json
	$(BIN)/python benchmarks/history.py

# Simulators that would not share our environment get one of their own; what does not install is left out.
$(PEERS)/.ready: constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check pfl==0.6.0 || \
		echo "pfl did not install: it is left out"
	@touch $@

bench-peers: $(EVERYTHING) $(PEERS)/.ready  ## one round of the same job in Flower's simulation and pfl
	@mkdir -p runs/bench
	$(BIN)/python benchmarks/peers.py --json runs/bench/peers.json

clean:  ## remove everything that make created
	rm -rf $(VENV) $(PEERS) .mypy_cache .pytest_cache .ruff_cache runs
