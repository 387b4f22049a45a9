# Each target makes what it needs from a bare checkout: `make demo`, `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.10 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python requirements/install.py
PINNED := $(INSTALL) --constraint requirements/tested.txt
# By all cores; without what nobody imports, a third. A file that is no Python is no error.
RARE := tests?|testing|alembic|combinatorics|debugpy|distutils|fontTools|jedi|lexers|mypyc?|onnx|_inductor|physics
RARE := /($(RARE)|prompt_toolkit|setuptools|sqlalchemy|tensorboard|wcwidth|werkzeug)/
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '$(RARE)' $(VENV)/lib || true
# DGL's other version, beside the environment's own, for the tests of both.
OTHER_DGL := $(VENV)/dgl-2.1.0
TESTS ?= tests
# Each of the hundreds of processes would compile the package anew where this is set.
export PYTHONDONTWRITEBYTECODE :=
# Files of tests that run at a time: many wait for processes, timeouts and links most of the time.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
DGL_TESTS := tests/compat/test_dgl.py tests/compat/test_graphbolt.py tests/graph/test_dgl_format.py \
  $(patsubst %,tests/partition/test_%.py,building partitioned halo conversion dist_graph)

.PHONY: demo test collected test-dgl1 test-dgl2 test-sockets fuzz faults wheels lint format bench docs tutorials clean

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.10-3.12 found; set PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: setup.py requirements/tested.txt | $(BIN)/python
	$(PINNED) --editable .
	$(COMPILE)
	touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.bench: $(VENV)/.%: $(VENV)/.core
	$(PINNED) --editable .[$*]
	$(COMPILE)
	touch $@

# What `make lint` and `make test` need, at once.
$(VENV)/.all: setup.py requirements/tested.txt | $(BIN)/python
	$(PINNED) --editable .[lint,test]
	$(COMPILE)
	touch $(VENV)/.core $(VENV)/.lint $(VENV)/.test $@

$(OTHER_DGL)/.done: $(VENV)/.core
	$(INSTALL) --no-deps --upgrade --target $(OTHER_DGL) dgl==2.1.0
	touch $@

demo: $(VENV)/.core
	$(BIN)/graph-emb demo

# With both versions of DGL beside each other: those of the other one wait most of their time.
test: $(VENV)/.test $(OTHER_DGL)/.done
	$(MAKE) --no-print-directory --jobs 2 test-dgl1 test-dgl2

# Tests as Python keeps them, once and beside the linters: of a new clone each worker would make its own at the same time.
collected: $(VENV)/.test
	$(BIN)/python -m pytest --collect-only -q $(TESTS) > /dev/null

test-dgl1: $(VENV)/.test
	$(PYTEST) $(TESTS)

# The same claims about DGL, on its other version (Python 3.11 installs both).
test-dgl2: $(VENV)/.test $(OTHER_DGL)/.done
	PYTHONPATH=$(OTHER_DGL) $(PYTEST) -m "not slow" $(DGL_TESTS)

# The tests of several processes, where ranks of a machine exchange through sockets as those of several do.
test-sockets: $(VENV)/.test
	GRAPH_EMB_SHARED_MEMORY=0 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "dist and not slow" \
	  --ignore tests/transport/kvstore --ignore tests/partition --ignore tests/faults $(TESTS)

# Damaged inputs that no run has tried before; `make test` tries 2,000, the same ones each time.
fuzz: $(VENV)/.test
	FUZZ_INPUTS=$${FUZZ_INPUTS:-100000} $(BIN)/python -m pytest -q tests/fuzz

# Every call of the system that a build makes fails once, and each process of a job is killed and stopped; `make test`
# takes one call in twelve and three of the 14 signals.
faults: $(VENV)/.test
	FAULTS_STEP=1 $(BIN)/python -m pytest -q tests/faults

# The wheel in an empty environment of each Python (with pyenv: PYENV_VERSION=3.10.13:3.11.7:3.12.1 make wheels).
wheels: $(VENV)/.test
	$(BIN)/python benchmarks/wheels.py --pythons $${PYTHONS:-python3.10 python3.11 python3.12} --json runs/wheels.json

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 graph_emb partition

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/update.py --json runs/update.json
	$(BIN)/python benchmarks/walks.py --json runs/walks.json
	$(BIN)/python benchmarks/skipgram.py --json runs/skipgram.json
	$(BIN)/python benchmarks/collective.py --json runs/collective.json
	$(BIN)/python benchmarks/lookup.py --json runs/lookup.json
	$(BIN)/python benchmarks/kvstore.py --json runs/kvstore.json
	$(BIN)/python benchmarks/partition_methods.py --json runs/partition.json
	$(BIN)/python benchmarks/partition_build.py --json runs/partition_build.json
	$(BIN)/python benchmarks/partition_streaming.py --json runs/partition_streaming.json
	$(BIN)/python benchmarks/scaling.py --json runs/scaling.json
	$(BIN)/python benchmarks/kill_ranks.py --json runs/kills.json
	$(BIN)/python benchmarks/checkpoint.py --json runs/checkpoint.json
	$(BIN)/python benchmarks/checkpoint_pairs.py
	$(BIN)/python benchmarks/checkpoint_kills.py
	$(BIN)/python benchmarks/kill_resume.py --json runs/resume.json
	$(BIN)/python benchmarks/kge.py --json runs/kge.json

docs: $(VENV)/.docs
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# Runs the notebooks of docs/tutorials and writes their outputs into them; `make tutorials NAMES=ogb-record` one of them.
tutorials: $(VENV)/.test
	$(BIN)/python docs/tutorials/execute.py $(NAMES)

clean:
	rm -rf $(VENV) docs/_build build *.egg-info
