# make demo   the main job: train the arms of recipes/maze_mini.yaml, evaluate them, write a report
# make test   every test; the site's tests in a browser
# make docs   the documentation site, into _docs/
# make bench  every benchmark, into benchmarks/results.json
# make smollm2  fetch and convert a pretrained model, SmolLM2-135M-Instruct, into models/smollm2-135m
# make sync   write what is derived: modules, settings.ini, README.md
# Each makes or reuses .venv. Variables: PYTHON, PIP_ARGS, CHROMIUM, TESTS, PYTEST_ARGS, RECIPE, OMP_NUM_THREADS.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
BIN := .venv/bin
RECIPE ?= recipes/maze_mini.yaml
PYTEST_ARGS ?=
TESTS ?= tests

# Waiting threads sleep: two that spin on a busy two-core machine are many times slower than one.
export OMP_WAIT_POLICY := PASSIVE
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
export PLOTLY_RENDERER := plotly_mimetype

# One thread per process for tests, benchmarks and docs, two for training, unless OMP_NUM_THREADS is given.
THREADS := $(OMP_NUM_THREADS)
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
test docs bench: export OMP_NUM_THREADS := $(or $(THREADS),1)
demo: export OMP_NUM_THREADS := $(or $(THREADS),$(if $(filter 1,$(CORES)),1,2))

.PHONY: help demo test docs bench smollm2 sync clean
help:
	@sed -n 's/^# \(make .*\)/\1/p; s/^# \(Each .*\)/\1/p' Makefile

demo:
	@tools/venv.sh train,viz
	@printf '\n== diverse-rl compare %s (%s threads)\n' $(RECIPE) $$OMP_NUM_THREADS
	$(BIN)/diverse-rl compare $(RECIPE)

test:
	@tools/browser.sh
	@tools/venv.sh train,viz,maths,dev
	@$(MAKE) --no-print-directory _docs/.built
	@printf '\n== Tests\n'
	$(BIN)/python -m pytest -ra --durations=10 $(PYTEST_ARGS) $(TESTS)

docs:
	@tools/venv.sh train,viz,maths,dev
	@$(MAKE) --no-print-directory _docs/.built

_docs/.built: $(wildcard nbs/*.ipynb nbs/*.yml nbs/*.css nbs/images/* docs/* diverse_rl/*.py diverse_rl/js/*) CHANGELOG.md pyproject.toml constraints.txt
	@printf '\n== Building the site into _docs/\n'
	$(BIN)/python docs/build.py $$(tools/katex.sh)
	@touch $@

bench:
	@tools/venv.sh train,viz,maths,dev
	@printf '\n== Benchmarks\n'
	$(BIN)/python benchmarks/run.py

smollm2:
	@tools/venv.sh train,maths
	@nice -n 10 tools/smollm2.sh

sync:
	@tools/venv.sh train,viz,maths,dev
	$(BIN)/nbdev-export
	$(BIN)/nbdev-clean
	$(BIN)/python tools/sync_settings.py
	$(BIN)/python tools/sync_readme.py

clean:
	rm -rf _docs _proc .pytest_cache .hypothesis .ruff_cache build
