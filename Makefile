# `make demo` and `make test` do all set-up on a fresh machine: a virtual environment in .venv, then the package.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test check long clean

demo: $(STAMP)
	$(BIN)/fedgossip demo

test: $(STAMP) check
	$(BIN)/pytest -n 2 --dist worksteal

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

long: $(STAMP)
	$(BIN)/pytest --long

# All but torch is taken by its hashes, and only what is built already.  torch's build is the machine's own (from a folder
# of wheels, say): the constraints choose its version.  The project itself is built by the hatchling of the lock.
$(STAMP): pyproject.toml constraints.txt requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedgossip needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@echo "Installing into $(VENV) (a minute or two, most of it PyTorch) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation torch --editable .
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
