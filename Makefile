# The two commands of the README, and a few more. Everything lands in .venv and weights/; `make clean` removes the first.

PYTHON ?= python3
MODEL  ?= smollm2-135m-instruct
PROMPT ?= What is gravity? Answer in two sentences.

# the prompt as it was typed: make would expand a dollar sign in it, and run what $(shell ...) says
unexport PROMPT
export TYPED := $(value PROMPT)

.PHONY: help run test test-arm lint clean

help:
	@echo "make run              answer a question with a small real model (made ready on first use)"
	@echo "make run PROMPT='..'  answer yours; MODEL='..' takes another model of the catalogue"
	@echo "make test             the whole test suite, real models included"
	@echo "make test-arm         the tests of the kernels as on 64-bit ARM, emulated (Debian; takes long)"
	@echo "make lint             ruff: style and formatting"
	@echo "make clean            remove .venv and caches; pulled models stay in weights/"

run: .venv/run-ready
	@.venv/bin/tinyinfer pull "$(MODEL)"
	@.venv/bin/tinyinfer run "$(MODEL)" --prompt "$$TYPED" --max-tokens 400

test: .venv/dev-ready
	.venv/bin/python -m pytest --numprocesses 2 --dist loadfile

# not part of what continuous integration runs
test-arm: .venv/created
	tests/run_on_arm.sh .venv/bin/python

lint: .venv/dev-ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "tinyinfer needs Python 3.10 or newer, found " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/run-ready: .venv/created pyproject.toml
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[chat,gguf]'
	@touch $@

.venv/dev-ready: .venv/run-ready
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
