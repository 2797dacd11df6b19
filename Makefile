# Everything happens in one virtualenv, .venv, made on first use. See README.md.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test,lint,docs
CORPUS ?= english
RECIPE ?= demo
RUN_DIR ?=
PART ?=
FILE ?=
JOBS ?= 3
export PYTHON TORCH_INDEX CUDA

bin := $(VENV)/bin
installed := $(VENV)/.installed
soak_part := $(or $(PART),all)

.PHONY: help install demo test smoke soak lint bench bench-gpu docs clean
.DELETE_ON_ERROR:

help: ## List the verbs
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

install: $(installed) ## Make the virtualenv and install everything into it

$(installed): setup.cfg requirements/cpu.txt requirements/cuda.txt requirements/install.sh
	@bash requirements/install.sh $(VENV) $(EXTRAS)
	@touch $@

demo: $(installed) ## Raw text to a BERT that transformers loads (CORPUS=english or korean, RECIPE=demo or demo_modern), in runs/demo
	@VENV=$(VENV) CORPUS=$(CORPUS) RECIPE=$(RECIPE) RUN_DIR=$(RUN_DIR) bash examples/demo.sh

test: $(installed) ## The tests, without a GPU, JOBS=3 files at a time; FILE=megabert/optim/lamb.py for those of one module
	@tests="$(if $(FILE),$$($(bin)/python tests/support/find_tests.py $(FILE)))" && \
	  $(bin)/python -m pytest $(if $(FILE),$$tests,-n $(JOBS) --dist loadfile --no-loadscope-reorder)

smoke: $(installed) ## Train the debug recipe for a few steps on a small corpus, in under a minute
	@$(bin)/python -m pytest tests/integration -k smoke

soak: $(installed) ## The full counts of kills, matrices and distributions; PART=NAME for one part; resumes where it ended
	@mkdir -p benchmarks/soak
	@$(bin)/python tests/support/passed_tests.py build/soak/$(soak_part) || rm -f benchmarks/soak/$(soak_part).log
	@set -o pipefail; $(bin)/python -m pytest -m soak -v -s --timeout 3600 \
	  --progress build/soak/$(soak_part) tests $(if $(PART),-k $(PART)) 2>&1 | tee -a benchmarks/soak/$(soak_part).log

lint: $(installed) ## ruff, mypy, import contracts, shell scripts
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/mypy
	@$(bin)/lint-imports --config setup.cfg
	@for script in $$(git ls-files '*.sh' .ci/run tests/tools); do bash -n $$script || exit 1; done
	@$(bin)/shellcheck -x $$(git ls-files '*.sh' .ci/run tests/tools)
	@$(bin)/python benchmarks/reading/habits.py --check 2>/dev/null || { echo "Reword the sentences above (benchmarks/reading/README.md)." >&2; exit 1; }
	@$(bin)/python benchmarks/reading/twins.py || { echo "Give the names above to one definition each." >&2; exit 1; }
	@$(bin)/python benchmarks/reading/size.py || { echo "Make the rooms above smaller, or record them (benchmarks/reading/README.md)." >&2; exit 1; }
	@! git grep -nE '"""(Of|As|By) ' -- '*.py' || { echo "Write docstrings as whole sentences, or as noun phrases." >&2; exit 1; }
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' || { echo "Resolve the merge conflicts above." >&2; exit 1; }

bench: $(installed) ## CPU benchmarks, each a ratio measured in one run
	@for name in cache checkpoint data loader long_documents memory near_duplicates scale verify; do \
	  echo "== $$name"; $(bin)/python benchmarks/bench_$$name.py || exit 1; done
	@echo "== step" && $(bin)/python benchmarks/cpu/bench_step.py

bench-gpu: ## The GPU runbook, resumable; PART=1, PART=2 (13 minutes together) or a name; WHEELS=DIR OUTPUT=DIR; TINY=1 on a CPU
	@$(or $(BENCH_PYTHON),$(if $(wildcard $(bin)/python),$(bin)/python,$(PYTHON))) -m benchmarks.gpu \
	  $(if $(PART),--parts $(PART)) $(if $(WHEELS),--wheels $(WHEELS)) $(if $(OUTPUT),--output $(OUTPUT)) $(if $(TINY),--tiny)

docs: $(installed) ## The documentation as HTML, in build/docs
	@$(bin)/python -m sphinx -W --keep-going -q -b html docs build/docs && echo build/docs/index.html

clean: ## Remove what make made in the checkout, except runs/
	rm -rf .venv build *.egg-info
