# `make demo` and `make test` do all set-up on a fresh machine: a virtual environment in .venv, then the package.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test check suite format bench long picture docs clean

demo: $(STAMP)
	$(BIN)/fedgossip demo

test: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 check suite

# Two processes more than two cores: tests of real processes wait for each other a quarter of their time.  Bytecode is kept
# whatever the shell says: some hundred of those processes would otherwise compile the package anew, each for itself.
suite: $(STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 4 --dist worksteal

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

long: $(STAMP)
	$(BIN)/pytest --long

# The site of docs/, into site/: strict, so that a dead link or a page that the menu lacks fails.  What builds it (the extra
# docs, 0.13 GB) is installed at the first call.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html; with search:  $(BIN)/python -m http.server --directory site"

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[docs]'
	@touch $@

# The picture of the README, of a demo run now.
picture: $(STAMP)
	rm -rf runs/picture
	$(BIN)/fedgossip demo --out runs/picture
	$(BIN)/python tests/picture.py runs/picture --write

# Every benchmark in a short form: that it runs, and its ratios roughly.  benchmarks/RESULTS.md has the long forms.
bench: $(STAMP)
	$(BIN)/python benchmarks/gossip_round.py --peers 4 --parameters 1000000 --rounds 3 --turns 1
	$(BIN)/python benchmarks/allreduce.py --processes 4 --megabytes 1 --rounds 3 --turns 1
	$(BIN)/python benchmarks/parameter_server.py --workers 2 --servers 2 --megabytes 1 --rounds 3 --turns 1
	$(BIN)/python benchmarks/fedavg_round.py --clients 4 --parameters 1000000 --rounds 3 --turns 1
	$(BIN)/python benchmarks/convex.py --short
	$(BIN)/python benchmarks/stacked.py --nodes 100 --rounds 3
	$(BIN)/python benchmarks/row_kernels.py --nodes 1000 --turns 1
	$(BIN)/python benchmarks/growth.py --most 64
	$(BIN)/python benchmarks/population.py --turns 1 --clients 1000 2000
	$(BIN)/python benchmarks/simulated_clients.py --turns 1 --clients 100 --cohort 10 --sides 8
	$(BIN)/python benchmarks/local_training.py --turns 1 --examples 256
	$(BIN)/python benchmarks/any_module.py --turns 1 --nodes 4 --steps 3
	$(BIN)/python benchmarks/portable.py --turns 1
	$(BIN)/python benchmarks/secure_sum.py --turns 1 --only 10
	$(BIN)/python benchmarks/secure_library.py --turns 1 --clients 4 --floats 650
	$(BIN)/python benchmarks/tiers.py --clients 16 --leaves 4 --parameters 1000
	$(BIN)/python benchmarks/private_gossip.py --turns 1 --parameters 100000
	$(BIN)/python benchmarks/privacy.py --turns 1 --only noise,steps
	$(BIN)/python benchmarks/stragglers.py --peers 8 --rounds 10
	$(BIN)/python benchmarks/federated_learning.py drift --seeds 1 --rounds 5
	$(BIN)/python benchmarks/membership.py --members 10 --deaths 1
	$(BIN)/python benchmarks/memory_slope.py --rounds 400
	$(BIN)/python benchmarks/join.py 1
	$(BIN)/python benchmarks/characters.py README.md 10
	$(BIN)/python benchmarks/length_buckets.py README.md --steps 5 --turns 1
	$(BIN)/python benchmarks/outer.py
	$(BIN)/python benchmarks/shaped_links.py --steps 112
	$(BIN)/python benchmarks/hogwild.py --turns 1 --seeds 1
	$(BIN)/python benchmarks/mesh_memory.py --short
	$(BIN)/python benchmarks/startup.py --runs 1
	$(BIN)/python benchmarks/board.py --runs 100
	$(BIN)/python benchmarks/forecast.py --rounds 5
	$(BIN)/python benchmarks/small_bins.py --divisions 1
	$(BIN)/python benchmarks/cox_ties.py --draws 2
	$(BIN)/python benchmarks/trees.py --short
	$(BIN)/python benchmarks/fits.py --short
	$(BIN)/python benchmarks/codecs.py --elements 100000 --turns 1
	$(BIN)/python benchmarks/web_relay.py --megabytes 1 --turns 1

# All but torch is taken by its hashes, and only what is built already.  torch's build is the machine's own (from a folder
# of wheels, say): the constraints choose its version.  The project itself is built by the hatchling of the lock.
# Bytecode is compiled at the end by all cores, where pip would take one.
$(STAMP): pyproject.toml constraints.txt requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedgossip needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@echo "Installing into $(VENV) (a minute or two, most of it PyTorch) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes --only-binary :all: --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-build-isolation torch --editable .
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
