# `make test` and `make bench` work in a fresh clone; `make help` lists the rest.

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PEERS_VENV := .venv-peers
TOOLS := .venv-tools
PIP_FLAGS := --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 15
# Checking shapes at run time doubles the time of a test: `make test` does it in one file, `make test-all` in all of them.
CHECKED := --jaxtyping-packages=probneural,beartype.beartype

# Files with tests that need CUDA, or the simulated GPU of tests/device.
GPU_FILES = $(shell grep -rlF mark.gpu --include='*.py' tests)

# Two single-threaded workers beat one process with two threads.
unit unit-all gpu gpu-all shapes docs: export OMP_NUM_THREADS := 1
unit unit-all gpu gpu-all shapes docs: export MPLBACKEND := Agg
docs: export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help venv gates test test-all unit unit-all device gpu gpu-all shapes bench bench-full bench-gpu lint format types contracts docs \
        gallery release sbom peers clean distclean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/.installed  ## Make .venv with the versions in constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[all,dev]'
	@touch $@

# Cheap gates first, side by side; the last lines of the log are the test suite's summary.
test: venv  ## Every gate, without the slow tests
	@$(MAKE) --no-print-directory -j $(WORKERS) gates
	@$(MAKE) --no-print-directory gpu
	@$(MAKE) --no-print-directory unit

test-all: venv  ## Every gate, slow tests included
	@$(MAKE) --no-print-directory -j $(WORKERS) gates
	@$(MAKE) --no-print-directory gpu-all
	@$(MAKE) --no-print-directory unit-all

gates: docs lint types contracts shapes device  ## Every gate but the tests

unit: venv  ## The fast tests, with those of error messages and the examples in docstrings
	$(PYTEST) --doctest-modules -m "not slow and not gpu" --ignore=tests/test_end_to_end.py tests probneural benchmarks

unit-all: venv  ## All tests, with shapes checked at run time; these checks would pre-empt error messages
	$(BIN)/python -m pytest -q --doctest-modules probneural benchmarks
	$(PYTEST) -m "bad_input and not gpu"
	$(PYTEST) $(CHECKED) -m "not bad_input and not gpu"

# In seconds, once for each version of the source and of PyTorch.
device: venv  ## Compile the simulated GPU, unless that is done
	$(BIN)/python -m tests.device.simulated

gpu: device  ## The tests marked gpu, without the slow ones: on CUDA, or else on a simulated GPU
	$(PYTEST) -m "gpu and not slow" $(GPU_FILES)

gpu-all: device  ## The tests marked gpu, with shapes checked at run time
	$(PYTEST) $(CHECKED) -m gpu $(GPU_FILES)

shapes: venv  ## The whole chain, with shapes checked at run time
	$(BIN)/python -m pytest -q $(CHECKED) tests/test_end_to_end.py

bench: venv  ## The main benchmark on three problems, in about four minutes: tables and an HTML report
	$(BIN)/python -m benchmarks exact

bench-full: venv  ## The same on all ten problems, every ensemble and shift, and what training twice as long brings: twenty minutes
	$(BIN)/python -m benchmarks exact --full

# With the other libraries, if `make peers` has installed them.
bench-gpu: venv  ## Every test and benchmark on CUDA, in at most eight minutes, with one JSON file; fails without a GPU
	$(if $(wildcard $(PEERS_VENV)/.installed),$(PEERS_VENV)/bin/python,$(BIN)/python) -m benchmarks gpu

lint: venv  ## Style and formatting
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check .

format: venv  ## Mend what can be mended by machine
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .

types: venv  ## Type check the package
	$(BIN)/mypy

contracts: venv  ## Who may import whom (setup.cfg)
	$(BIN)/lint-imports --no-logo

docs: venv  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

# One thread each: EXAMPLES="burgers_posterior why_joint" runs only these.
gallery: export OMP_NUM_THREADS := 1
gallery: venv  ## Run the examples at full size, and keep what they print and draw in docs/gallery/
	$(BIN)/python docs/hooks/example_runs.py $(EXAMPLES)

release: venv  ## Build the archives into dist/, and test the wheel in an empty environment: minutes, and the package index
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	DIST=dist $(BIN)/python -m pytest -q tests/test_packaging.py

# In environments of their own: the tool is no dependency of ours, and the core has no package of an extra beside it.
sbom: venv  ## Write the packages of the core, as installed from dist/, to dist/ in CycloneDX's format
	@test -e dist/*.whl || $(BIN)/python -m build --outdir dist
	rm -rf $(TOOLS)
	$(PYTHON) -m venv $(TOOLS)/tool
	$(PYTHON) -m venv --without-pip $(TOOLS)/core
	$(TOOLS)/tool/bin/python -m pip install $(PIP_FLAGS) cyclonedx-bom==7.5.0
	$(TOOLS)/tool/bin/python -m pip --python $(TOOLS)/core/bin/python install $(PIP_FLAGS) -c constraints.txt dist/*.whl
	$(TOOLS)/tool/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o $(TOOLS)/sbom.json $(TOOLS)/core/bin/python
	mv $(TOOLS)/sbom.json dist/probneural.cdx.json

peers: $(PEERS_VENV)/.installed  ## Make .venv-peers: this package beside the libraries it is compared with

# Some of them pull torchvision, which breaks importing laplace beside a CPU build of PyTorch.
$(PEERS_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[all,dev]' neuraloperator==2.0.0 laplace-torch==0.3 \
	    curvlinops-for-pytorch==3.0.1 backpack-for-pytorch==1.7.1 deepxde==1.15.0
	$(PEERS_VENV)/bin/python -m pip uninstall $(PIP_FLAGS) --yes torchvision
	@touch $@

clean:  ## Remove caches and what was built
	rm -rf build dist site *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find probneural benchmarks tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## Remove the environments too
	rm -rf $(VENV) $(PEERS_VENV) $(TOOLS)
