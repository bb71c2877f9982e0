# Every target works on a fresh clone: it makes its environment first when there is none, or an old
# one.

# Which sglang-jax: 0.0 (0.0.2, in .venv/) or 0.1 (0.1.0rc0, in .venv-0.1/).
ENGINE ?= 0.0
VENV = .venv$(if $(filter-out 0.0,$(ENGINE)),-$(ENGINE))
export HOTRELOAD_ENGINE = $(ENGINE)

# Set these to run on something else, for example: make bench JAX_PLATFORMS=tpu
JAX_PLATFORMS ?= cpu
# What one run compiles, the next one reads: the engine starts in half the time.
JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
# XLA logs an error for each program it reads back, about two CPU features that only tune it.
TF_CPP_MIN_LOG_LEVEL ?= 3
export JAX_PLATFORMS JAX_COMPILATION_CACHE_DIR TF_CPP_MIN_LOG_LEVEL
# Python keeps what it compiled, though the caller says otherwise: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE =

# More arguments for pytest or the demo, for example: make test ARGS='-k gate'
ARGS =

# How many processes run tests at once: one more than there are cores, because a fifth of their time
# they wait, and at most 4, because each may hold two engines, about 2 GB of memory. With 0 pytest
# itself runs them, as a debugger needs it: make test WORKERS=0 ARGS='--pdb -k gate'
WORKERS ?= $(shell nproc | awk '{ print $$1 < 3 ? $$1 + 1 : 4 }')
# The tests of a file stay in one process, in their order: they may share a daemon. Files come in
# the order of tests/conftest.py, and not by how many tests they hold.
SPREAD = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test check bench soak nightly durations

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv/ (or .venv-0.1/) and install everything into it (quick when nothing changed)
	@.ci/setup

demo: setup ## the whole story on this machine's CPU, on the real engine
	@$(VENV)/bin/hotreload demo $(ARGS)

# The tests multiply small matrices only: beside each other numpy's threads would wait for a core.
test: export OPENBLAS_NUM_THREADS = 1
test: setup ## all tests but the benchmarks and the soak
	$(VENV)/bin/python -m pytest --ignore=tests/bench $(SPREAD) $(ARGS)

check: setup ## ruff and mypy --strict
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python -m mypy

soak: setup ## what takes long: faults for HOTRELOAD_SOAK_MINUTES (10), kills, a thousand reloads, the image
	$(VENV)/bin/python -m pytest tests -s -m soak $(ARGS)

nightly: ## what .ci/run leaves out: what is marked for it, every test of an engine on the newer one, and every soak
	$(MAKE) test ARGS='-m at_night'
	$(MAKE) test ENGINE=0.1 ARGS='-m "real_engine and not bench and not soak"'
	$(MAKE) soak
	$(MAKE) soak ENGINE=0.1

bench: setup ## the benchmarks, with their figures on the screen
	$(VENV)/bin/python -m pytest tests/bench -s -m 'not soak' $(ARGS)

durations: setup ## all tests, and how long each file took, for their order (tests/durations.txt)
	HOTRELOAD_TEST_RECORD=.cache/record $(MAKE) test
	cp .cache/record/seconds tests/durations.txt
