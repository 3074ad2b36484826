# Two commands: `make demo` and `make test`. Both build .venv themselves; they need python3 (3.11+), make and a package registry.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

FLOWER := .venv-flower
ZOO := .venv-zoo

# The lowest torch that is supported, and the newest; and which tests they run.
TORCH_VERSIONS ?= 2.11.0 2.15.0
TORCH_TESTS ?= tests/gradients

.PHONY: demo test test-all test-flower test-torch test-loggers test-matrix docs dist bench zoo clean help

help:
	@echo "make demo      install and train on MNIST with privacy; the report is runs/demo/report.html"
	@echo "make test      everything CI runs (under 12 minutes on 2 cores)"
	@echo "make test-all  the same and the slow tests"
	@echo "make test-flower  the tests of tacit.flower, in an environment of their own (.venv-flower)"
	@echo "make test-torch   the engine's tests with the lowest and the newest torch (TORCH_VERSIONS), each in its environment"
	@echo "make test-loggers the tests of the loggers, with Weights & Biases and MLflow installed"
	@echo "make test-matrix  the tests of every room but the slowest with each Python that is installed (PYTHONS), then test-torch"
	@echo "make dist      sdist and wheel in dist, with the compiled kernels or not at all"
	@echo "make docs      the documentation as a site (build/site/index.html)"
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

# constraints.txt pins one torch, and packages that go with it alone: these lines are left out.
test-torch: $(addprefix test-torch-,$(TORCH_VERSIONS))

test-torch-%: export OMP_NUM_THREADS = 1

test-torch-%: .venv-torch-%/.installed
	.venv-torch-$*/bin/python -c 'import torch; assert torch.__version__.split("+")[0] == "$*", torch.__version__'
	.venv-torch-$*/bin/python -m pytest $(TORCH_TESTS)

.PRECIOUS: .venv-torch-%/.installed

.venv-torch-%/.installed: pyproject.toml setup.py constraints.txt
	test -x .venv-torch-$*/bin/python || $(PYTHON) -m venv .venv-torch-$*
	grep -vE '^torch(vision|-geometric)?==' constraints.txt > .venv-torch-$*/constraints.txt
	.venv-torch-$*/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-torch-$*/constraints.txt "torch==$*" -e ".[dev]"
	touch $@

# Weights & Biases and MLflow bring thirty packages; their tests are skipped without them.
test-loggers: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,loggers]"
	$(BIN)/python -m pytest tests/integrations/test_loggers.py

# Each Python that is there, in an environment of its own.
PYTHONS ?= 3.11 3.12 3.13 3.14
MATRIX_TESTS ?= tests/ledger tests/accounting tests/mechanisms tests/sampling tests/kernels tests/training

test-matrix: export OMP_NUM_THREADS = 1

test-matrix:
	for version in $(PYTHONS); do \
	  command -v python$$version >/dev/null && python$$version -c '' 2>/dev/null || { echo "python$$version is not installed: left out"; continue; }; \
	  test -x .venv-python-$$version/bin/python || python$$version -m venv .venv-python-$$version || exit 1; \
	  .venv-python-$$version/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" || exit 1; \
	  .venv-python-$$version/bin/python -m pytest $(MATRIX_TESTS) || exit 1; \
	done
	$(MAKE) test-torch

# A wheel without the kernels would be a slower library under the same name.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build
	TACIT_REQUIRE_KERNELS=1 $(BIN)/python -m build
	$(BIN)/python -c 'import glob, zipfile; names = zipfile.ZipFile(glob.glob("dist/*.whl")[0]).namelist(); \
	  assert any("_kernels" in name and name.endswith((".so", ".pyd")) for name in names), "no kernels in the wheel"; \
	  assert not any(name.endswith((".c", ".h")) for name in names), "C sources in the wheel"'

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,bench]"
	$(BIN)/python benchmarks/accounting.py --write
	$(BIN)/python benchmarks/gradients.py --write
	$(BIN)/python benchmarks/randomness.py
	$(BIN)/python benchmarks/collaboration.py
	$(BIN)/python benchmarks/tables.py --write
	$(BIN)/python benchmarks/scale.py --write

# An environment of its own: builds of torchvision for CUDA lack operators beside a CPU torch, without which the image
# classes of transformers cannot be imported. The zoo's workers declare these operators; the tests do without torchvision.
zoo:
	test -x $(ZOO)/bin/python || $(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[zoo]"
	$(ZOO)/bin/python benchmarks/zoo.py --time --write --rows $(ZOO)/rows.jsonl

clean:
	rm -rf $(VENV) $(FLOWER) $(ZOO) .venv-torch-* .venv-python-* .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
