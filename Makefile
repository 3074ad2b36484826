# Two commands: `make demo` and `make test`. Both build .venv themselves; they need python3 (3.11+), make and a package registry.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

FLOWER := .venv-flower

.PHONY: demo test test-all test-flower test-loggers bench zoo clean help

help:
	@echo "make demo      install and train on MNIST with privacy; the report is runs/demo/report.html"
	@echo "make test      everything CI runs (under 12 minutes on 2 cores)"
	@echo "make test-all  the same and the slow tests"
	@echo "make test-flower  the tests of tacit.flower, in an environment of their own (.venv-flower)"
	@echo "make test-loggers the tests of the loggers, with Weights & Biases and MLflow installed"
	@echo "make bench     the benchmarks (writes docs/benchmarks.md)"
	@echo "make zoo       models of other packages, trained privately (writes docs/zoo.md)"

$(STAMP): pyproject.toml setup.py constraints.txt src/tacit/_kernels.c $(wildcard src/tacit/_*/*.h)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tacit needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=python3.11.")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	rm -rf runs/demo
	$(BIN)/tacit train --out runs/demo

# One thread: tests work on small tensors, where several threads spend their time waiting for one another.
test test-all: export OMP_NUM_THREADS = 1

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p tacit
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: $(STAMP)
	TACIT_EXPLORE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

# flwr wants older versions of some packages than the rest: constraints-flower.txt.
test-flower: export OMP_NUM_THREADS = 1

test-flower:
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt -e ".[dev,flower]"
	$(FLOWER)/bin/mypy -p tacit
	$(FLOWER)/bin/python -m pytest -m "slow or not slow" tests/flower tests/test_journey.py src/tacit/flower

# Weights & Biases and MLflow bring thirty packages; their tests are skipped without them.
test-loggers: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,loggers]"
	$(BIN)/python -m pytest tests/integrations/test_loggers.py

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,bench]"
	$(BIN)/python benchmarks/accounting.py --write
	$(BIN)/python benchmarks/gradients.py --write
	$(BIN)/python benchmarks/randomness.py
	$(BIN)/python benchmarks/collaboration.py
	$(BIN)/python benchmarks/tables.py --write
	$(BIN)/python benchmarks/scale.py --write

zoo: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,zoo]"
	$(BIN)/python benchmarks/zoo.py --public --time --write

clean:
	rm -rf $(VENV) $(FLOWER) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
