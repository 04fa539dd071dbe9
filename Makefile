# Every target makes its own virtual environment when there is none, and is quick the second time.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready

.DEFAULT_GOAL := help
.PHONY: help demo test model servers lint format bench serve clean

help:           ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

demo: $(READY)  ## prove the point: a paused holder's write is refused
	$(BIN)/fencegate demo --all --embedded

test: $(READY)  ## the whole test suite
	@$(BIN)/python tests/install_servers.py --in-ci
	@$(BIN)/python -m compileall -q fencegate lockservice adapters demo # once, and not in each of a thousand processes
	$(BIN)/python -m pytest -n 7 --no-loadscope-reorder

model: $(READY) ## look at every order of the protocol's steps, and at what each bug in it leads to (needs spin and a C compiler)
	@$(BIN)/python -m tests.model

servers: $(READY) ## install the Debian servers that tests need, as root (else those tests are skipped)
	@$(BIN)/python tests/install_servers.py

lint: $(READY)  ## style, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH_READY) ## measure against peers, side by side, and print the ratios
	$(BIN)/python -m bench

serve: $(READY) ## a lock service and gateway on 127.0.0.1:7420
	$(BIN)/fencegate serve

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@

clean:          ## forget the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
