# Every target works on a fresh clone: it makes .venv/ first when there is none, or an old one.

# Set these to run on something else, for example: make bench JAX_PLATFORMS=tpu
JAX_PLATFORMS ?= cpu
# What one run compiles, the next one reads: the engine starts in half the time.
JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
# XLA logs an error for each program it reads back, about two CPU features that only tune it.
TF_CPP_MIN_LOG_LEVEL ?= 3
export JAX_PLATFORMS JAX_COMPILATION_CACHE_DIR TF_CPP_MIN_LOG_LEVEL

# More arguments for pytest or the demo, for example: make test ARGS='-k gate'
ARGS =

.PHONY: help setup demo test check bench soak

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv/ and install everything into it (quick when nothing changed)
	@.ci/setup

demo: setup ## the whole story on this machine's CPU, on the real engine
	@.venv/bin/hotreload demo $(ARGS)

test: setup ## all tests but the benchmarks and the soak
	.venv/bin/python -m pytest --ignore=tests/bench $(ARGS)

check: setup ## ruff and mypy --strict
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m mypy

soak: setup ## what takes long: faults for HOTRELOAD_SOAK_MINUTES (10), kills, a thousand reloads
	.venv/bin/python -m pytest tests -s -m soak $(ARGS)

bench: setup ## the benchmarks, with their figures on the screen
	.venv/bin/python -m pytest tests/bench -s -m 'not soak' $(ARGS)
