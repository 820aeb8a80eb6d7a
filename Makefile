# `make train` and `make test` are all a newcomer needs; each sets up .venv first.
#   ARGS    flags for the command:       make train ARGS="--seed 26"
#   PYTHON  interpreter for .venv:       make setup PYTHON=python3.12
#   EXTRAS  extras of pyproject.toml:    make setup EXTRAS=train,doom

# The trainer alone needs less than its tests.
DEVELOP := train,dev,tune,mujoco,data
TRAINER := train
SITE := train,docs
ARGS ?=
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
find_python = for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c '$(SUPPORTED)' 2>/dev/null && { echo "$$p"; break; }; done
PYTHON := $(or $(PYTHON),$(shell $(find_python)),python3)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)

VENV := .venv
RUN := $(VENV)/bin/python
# uv is quicker than pip and needs none in .venv.
UV := $(shell command -v uv 2>/dev/null)
INSTALL = $(if $(UV),"$(UV)" pip install --python $(RUN),$(RUN) -m pip install --disable-pip-version-check)
# Another interpreter or other extras ask for another stamp, so a stale .venv is one whose stamp is absent or old.
STAMP := $(VENV)/.ready-$(VERSION)-
# That of extras $(1), or the newest of a set that includes them, which serves as well.
comma := ,
extras = $(subst $(comma), ,$(1))
lacking = $(filter-out $(call extras,$(2:$(STAMP)%=%)),$(call extras,$(1)))
serving = $(foreach each,$(shell ls -t $(STAMP)* 2>/dev/null),$(if $(call lacking,$(1),$(each)),,$(each)))
stamp = $(or $(firstword $(call serving,$(1))),$(STAMP)$(1))
BROKEN := $(if $(filter runs,$(shell $(RUN) -c 'print("runs")' 2>/dev/null)),,again)

export OMP_NUM_THREADS ?= 1
# Where a shell sets it, every start compiles the sources anew: seconds each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup trainer train demo test slow soak fuzz lint format types package bench docs linkcheck tensorboard clean again
.DEFAULT_GOAL := help

help:  ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

setup: $(call stamp,$(or $(EXTRAS),$(DEVELOP)))  ## create .venv, or update it

trainer: $(call stamp,$(or $(EXTRAS),$(TRAINER)))

$(STAMP)%: pyproject.toml constraints.txt $(BROKEN)
	@$(PYTHON) -c '$(SUPPORTED)' 2>/dev/null || { \
		echo "make setup: $(PYTHON) is $(if $(VERSION),Python $(VERSION),no working Python);" \
			"needed: Python 3.11, 3.12 or 3.13, as in make setup PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import $(if $(UV),,ensurepip, )venv' 2>/dev/null || { \
		echo "make setup: $(PYTHON) lacks venv; on Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 2; }
	@$(RUN) -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(VERSION)")' 2>/dev/null || \
		$(PYTHON) -m venv $(if $(UV),--without-pip )--clear $(VENV)
	@$(if $(UV),true,$(RUN) -m pip --version) >/dev/null 2>&1 || $(RUN) -m ensurepip >/dev/null 2>&1 || { \
		echo "make setup: $(VENV) has no pip; remove the folder, and make setup creates it" >&2; exit 2; }
	@echo "Installing understudy[$*] into $(VENV): some minutes, 2 GB on disk, and more with an NVIDIA card's libraries"
	@$(INSTALL) -c constraints.txt -e '.[$*]'
	@$(if $(findstring dev,$*),echo "Compiling machine code: two minutes" && $(RUN) -m tests.warm)
	@touch $@

train: trainer  ## PPO on LunarLander, with a figure and a film: a minute
	@$(RUN) trainer.py --implementation PPO --exp_name first-landing --steps_per_epoch 1024 --total_steps 1024000 \
		--eval_every 25 --target_return 250 --record $(ARGS)

demo: trainer  ## learn a synthetic CartPole, train an agent on it: a minute
	@$(RUN) trainer.py --implementation SE --gamename cartpole --proxy bandit --exp_name demo --seed 2 --generations 30 --keep_best 3 \
		--retest_agents 16 --record $(ARGS)

test: setup  ## the quick test suite
	@$(RUN) -m pytest -n auto --maxprocesses 4 $(ARGS)

slow: setup  ## the tests too long for the quick suite
	@$(RUN) -m pytest -m slow $(ARGS)

soak: setup  ## runs killed at random moments and resumed, for an hour
	@$(RUN) -m pytest -m soak -s $(ARGS)

fuzz: setup  ## thousands of wrong command lines and files, for minutes
	@$(RUN) -m pytest -m fuzz -s $(ARGS)

lint: setup  ## style
	@$(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(VENV)/bin/shellcheck -x bash_train.sh experiments/*.sh experiments/*/*.sh .ci/run

format: setup  ## put the style right
	@$(RUN) -m ruff check --fix . && $(RUN) -m ruff format .

types: setup  ## type check
	@$(RUN) -m mypy

package: setup  ## build wheel and sdist, check them, try the wheel
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
		$(RUN) -m build --outdir "$$folder/dist" >"$$folder/log" 2>&1 || { tail "$$folder/log"; exit 1; } && \
		if $(RUN) -m twine --version >/dev/null 2>&1; then $(RUN) -m twine check --strict "$$folder"/dist/*; \
		else echo "make package: without twine, descriptions are not checked"; fi && $(PYTHON) -m venv "$$folder/empty" && \
		"$$folder/empty/bin/python" -m pip install -q --disable-pip-version-check "$$folder"/dist/*.whl && \
		cp .github/try_wheel.py "$$folder" && cd "$$folder" && \
		empty/bin/python try_wheel.py "$$(empty/bin/python -c 'import understudy; print(understudy.__version__)')"

bench: setup  ## every benchmark except against_jax.py
	@set -e; for file in $(filter-out benchmarks/common.py benchmarks/against_jax.py,$(wildcard benchmarks/[a-z]*.py)); do echo "== $$file"; $(RUN) "$$file" $(ARGS); done

docs: $(call stamp,$(SITE))  ## the documentation as a site
	@$(RUN) -m sphinx -b html -n -W --keep-going -q -c docs . build/site && echo "Open build/site/index.html in a browser"

linkcheck: $(call stamp,$(SITE))  ## external links of the documentation
	@$(RUN) -m sphinx -b linkcheck -c docs . build/links

tensorboard: trainer  ## TensorBoard over all runs
	@$(dir $(RUN))tensorboard --logdir exp_dir $(ARGS)

clean:  ## remove .venv and caches; exp_dir stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -not -path './exp_dir/*' -exec rm -rf {} +
