# Every target sets up what it needs by itself; `make setup` alone is never necessary.
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# one thread per process: clusterfl works in parallel across clients, not inside a matrix product
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo picture test test-flower faults lint docs listing

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	touch $@

# the table of the README, and runs/demo/report.html; under two minutes on two cores
demo: $(READY)
	$(BIN)/clusterfl compare --methods local,fedavg,ifca,kin,md-icfl --seeds 0-2 --out runs/demo --force --report

# the pictures of README and docs/report.md, as a browser shows the reports (needs chromium)
picture: demo
	$(BIN)/clusterfl run --set method.name=ifca --set method.start=random-partition --out runs/ifca --force --report --quiet
	$(BIN)/python examples/own_table.py --out runs/own
	$(BIN)/python -m tests.report.pictures

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

# federations of real processes on this machine: methods on four nodes, deaths, nodes and models that come and go
test-flower: $(READY)
	$(BIN)/python -m pytest -m slow --durations=0 --durations-min=5 tests/flower

# every row of docs/faults.md in full: 6 to 7 minutes on two idle cores with 33 methods
faults: $(READY)
	$(BIN)/python -m tests.faults

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# what `clusterfl methods`, `models` and `datasets` say without loading PyTorch; after a change to any of them
listing: $(READY)
	$(BIN)/python -m clusterfl.commands.about

# the site into site/, strictly; it opens from disk
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	cd docs && cp --parents *.md methods/*.md ../site  # as they were written: llms.txt lists them
