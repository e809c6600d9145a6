# Two commands: `make demo` fits a real table, `make test` runs everything that must pass.
# Python 3.11+ and make are all they need; everything is installed into $(VENV).
#
#   PYTHON       the interpreter that makes the virtual environment
#   VENV         where that environment lives
#   TORCH_INDEX  empty: pip decides which build of torch comes. A package index chooses one:
#                https://download.pytorch.org/whl/cpu for the small CPU build, .../whl/cu130 for CUDA.
#                It counts when the environment is made; `make clean` first to change it.
#   WORKERS      processes that share the tests, each about 2 GiB; 0 runs them in one
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
WORKERS ?= 2

bin := $(VENV)/bin
python := $(bin)/python
install := $(python) -m pip install --quiet --disable-pip-version-check -c constraints.txt
# A torch index carries few other packages, so torch comes alone from it and its requirements with the rest.
torch_source := $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX))
package := $(install) --no-build-isolation --editable

.PHONY: demo stream-demo control-demo test hunt lint types format bench uci claims gpu-check site tables clean

demo: $(VENV)/.demo
	mkdir -p demo
	$(bin)/flashgp fit data/elevators.csv.gz --target Goal --split data/elevators_split.csv.gz \
		--kernel "1.0 * Matern(nu=1.5)" --out demo/model.safetensors --report demo/report.html
	$(bin)/flashgp predict demo/model.safetensors data/elevators.csv.gz --out demo/predictions.csv --std --interval 0.95

# Rows learned one by one, and a control loop that learns: demo/stream.png, demo/control.png.
stream-demo control-demo: %-demo: $(VENV)/.demo
	$(python) examples/$*_demo.py --out demo

test: lint types
	$(python) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev
	$(python) -m ruff check .
	$(python) -m ruff format --check .

types: $(VENV)/.dev
	$(python) -m mypy

format: $(VENV)/.dev
	$(python) -m ruff check --fix .
	$(python) -m ruff format .

# All suites: those of the repository, and those that `flashgp bench` brings along; then every table that quotes them.
SUITES ?= kernel-matrix online linalg
documents := README.md $(wildcard docs/*.md docs/*/*.md)
bench: $(VENV)/.bench
	set -e; for suite in benchmark/suite_*.py; do $(python) $$suite; done
	set -e; for suite in $(SUITES); do \
		$(bin)/flashgp bench $$suite --out benchmark/records/bench_$$suite.json; done
	$(python) benchmark/tables.py $(documents)

# Published sets beside GPyTorch, hours in all; stops and goes on where it was. UCI holds options: make uci UCI=--help
uci: $(VENV)/.bench
	$(python) benchmark/uci.py $(UCI)

# What is claimed, hours in all; stops and goes on where it was. CLAIM chooses one, OPTIONS are its own:
# make claims CLAIM=conditioning OPTIONS='--sizes 2000 --list'
CLAIM ?= $(patsubst benchmark/claim_%.py,%,$(sort $(wildcard benchmark/claim_*.py)))
claims: $(VENV)/.bench
	for claim in $(CLAIM); do $(python) benchmark/claim_$$claim.py $(OPTIONS) || failed=1; done; exit $${failed:-0}

# Random cases against plain references, for some minutes: make hunt MINUTES=10 START=0 KINDS=posterior,operator,chain
MINUTES ?= 10
START ?= 0
KINDS ?=
hunt: $(VENV)/.dev
	FLASHGP_PROFILE=built-in $(python) tests/hunt/run.py --minutes $(MINUTES) --start $(START) $(if $(KINDS),--kinds $(KINDS))

# On a machine with a GPU and no network: its own Python (PYTHON=...) with torch and triton, and this source tree.
gpu-check:
	PYTHONPATH=src $(PYTHON) benchmark/gpu_check.py

# The documentation site, offline: build/site/index.html.
site: $(VENV)/.docs
	$(python) -m sphinx -W --keep-going -q -b html docs build/site

tables: $(VENV)/.dev
	$(python) benchmark/tables.py $(documents)

clean:
	rm -rf $(VENV) demo build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Stamps: each step runs again only when what it installs has changed.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("FlashGP needs Python 3.11 or later, $(PYTHON) is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(install) $(torch_source) torch
	$(install) setuptools
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(package) '.[all]'
	touch $@

# Triton comes with torch's CUDA builds; beside a CPU build its interpreter is all that the tests need.
$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(package) '.[all,dev]'
	$(python) -c 'import triton' 2>/dev/null || $(install) --no-deps triton==3.9.0 || echo 'Triton cannot be had here: its tests skip'
	touch $@

$(VENV)/.docs: $(VENV)/.torch pyproject.toml
	$(package) '.[docs]'
	touch $@

$(VENV)/.bench: $(VENV)/.torch pyproject.toml
	$(package) '.[all,peers]'
	touch $@
