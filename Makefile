# Every target makes its own virtual environment when there is none and installs the versions we test on.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help train demo space test test-slow test-page test-oldest torture quality style docs bench tables clean

help:
	@echo "make train      train NFDM on the embedded stories and read what it writes"
	@echo "make demo       serve a page to write with the models, in the browser"
	@echo "make space      the page as a folder to push as a Space: OUTPUT=folder (default: build/space)"
	@echo "make test       run the tests"
	@echo "make test-slow  run the tests that take minutes, or need spaCy or ROCStories"
	@echo "make test-page  drive the page in a headless Chromium, which must be installed"
	@echo "make test-oldest  run fast tests with the oldest versions that setup.py allows, but the torch of .venv; OLDEST="
	@echo "                with the oldest torch, too"
	@echo "make torture    kills, full disks, damage, strangers' checkpoints, a failing Hub, odd arguments: 20 minutes;"
	@echo "                ONLY=kind and SECONDS=number for a part of it"
	@echo "make quality    check the code with ruff; make style mends what can be mended"
	@echo "make docs       API pages from the docstrings: OUTPUT=folder (default: build/docs)"
	@echo "make bench      measure speed and memory, side by side with a plain implementation"
	@echo "make tables     the paper's tables: SCALE=tiny, or rocstories, rocstories-likelihood, rocstories-hours or paper"
	@echo "                with DATA=folder; OUTPUT=folder; ONLY='\"NFDM\" \"MuLAN\"' for some rows; goes on where it stopped"

$(VENV)/.installed: setup.py constraints.txt src/diffusers_text_nfdm/version.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[test]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.installed
	$(PIP) -e ".[demo]"
	@touch $@

$(VENV)/.installed-test-page: $(VENV)/.installed-demo
	$(PIP) -e ".[test-page]"
	@touch $@

# Accelerate gives a process one CPU thread unless told otherwise.
train: $(VENV)/.installed
	$(BIN)/accelerate launch --quiet --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
		--num_cpu_threads_per_process $$(nproc 2>/dev/null || sysctl -n hw.ncpu) examples/train_nfdm.py

# A model may be asked for by its name on the Hub.
demo: export HF_HUB_OFFLINE = 0
demo: $(VENV)/.installed-demo
	$(BIN)/python examples/app.py $(if $(CHECKPOINTS),--checkpoints $(CHECKPOINTS))

space: OUTPUT ?= build/space
space:
	mkdir -p $(OUTPUT)
	cp -r examples/app.py examples/page examples/space/. src/diffusers_text_nfdm checkpoints $(OUTPUT)
	find $(OUTPUT) -name __pycache__ -type d -prune -exec rm -r {} +

test: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

test-page: $(VENV)/.installed-test-page
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m page tests/examples/test_app.py

# Direct dependencies at the lower bounds of setup.py. Only torch is that of .venv: an old one would come from PyPI with
# gigabytes of CUDA. Where the index of torch without CUDA can be reached, `OLDEST= UV_TORCH_BACKEND=cpu` takes the
# oldest torch, too. OLDEST holds versions to take instead of the oldest.
OLDEST ?= torch==$(shell $(BIN)/python -c "from importlib.metadata import version; print(version('torch'))")
OLDEST_VENV ?= .venv-oldest
OLDEST_TESTS ?= tests/test_objective.py tests/test_clocks.py tests/test_tokenization.py \
	tests/test_data.py tests/test_model_card.py tests/models tests/forward_processes tests/schedulers \
	tests/pipelines/test_generation.py tests/pipelines/test_checkpoints.py tests/training/test_trainer.py
test-oldest: $(VENV)/.installed
	test -x $(OLDEST_VENV)/bin/uv || { $(PYTHON) -m venv $(OLDEST_VENV) && $(OLDEST_VENV)/bin/python -m pip install --quiet uv; }
	VIRTUAL_ENV=$(OLDEST_VENV) $(OLDEST_VENV)/bin/uv pip install --quiet --resolution lowest-direct \
		$(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS)) -e ".[test]" $(OLDEST)
	OMP_NUM_THREADS=1 $(OLDEST_VENV)/bin/python -m pytest -n 2 $(OLDEST_TESTS)

torture: $(VENV)/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m torture $(if $(ONLY),--only $(ONLY)) \
		$(if $(SECONDS),--seconds $(SECONDS))

quality: $(VENV)/.installed-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

style: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

docs: OUTPUT ?= build/docs
docs: $(VENV)/.installed
	$(BIN)/python docs/build_api.py $(OUTPUT)

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/run.py

SCALE ?= tiny
tables: $(VENV)/.installed
	$(BIN)/python evaluation/tables.py $(SCALE) $(if $(DATA),--data $(DATA)) $(if $(OUTPUT),--output $(OUTPUT)) \
		$(if $(ONLY),--only $(ONLY))

clean:
	rm -rf $(VENV) $(OLDEST_VENV) build dist src/*.egg-info
