# `make` lists what there is. Every target sets up what it needs, once.

PYTHON  ?= $(shell command -v python3.11 || echo python3)
PROFILE ?= mini
VENV    := .venv
BIN     := $(VENV)/bin

# Stamps named by content: a fresh clone's file times say nothing.
digest  = $(shell cat $(1) 2>/dev/null | sha256sum | cut -c1-16)
PINS    := $(VENV)/.pins-$(call digest,requirements.txt)
SOURCES := setup.py pyproject.toml dpp/system/toolchain.py \
             $(shell find csrc -type f | LC_ALL=C sort)
FLAGS   := $(shell echo "$${CXX-} $${FORCE_CUDA-} $${CUDA_HOME-} $${TORCH_CUDA_ARCH_LIST-} \
             $${DPP_SANITIZE-} $$(command -v $${CXX:-c++})" | sha256sum | cut -c1-8)
CLUSTER := build/cluster/.pins-$(call digest,pyproject.toml)
BUILT   := $(VENV)/.built-$(call digest,$(SOURCES))-$(FLAGS)

.PHONY: help setup reproduce test test-slow test-cluster chaos audit lint format unit smoke sanitize cuda \
        test-browser execute notebooks status site lab bench doctor lock clean

help:
	@echo "make reproduce   make the paper's tables and figures: PROFILE=smoke|mini|photo|paper ONLY=names JOBS=n"
	@echo "                 SET=\"name=value\" (no spaces in it) changes the notebooks' parameters"
	@echo "                 ENGINE=ray ADDRESS=host:port makes the runs on a cluster: docs/cluster.md"
	@echo "make test        lint, unit and browser tests, notebook checks, the smoke profile from nothing"
	@echo "make test-slow   the tests that take minutes"
	@echo "make test-cluster a Ray cluster on this machine, with Ray in build/cluster; part of make test-slow"
	@echo "make chaos       random kills, damage and hostile files: SEED=n ATTACKS=n MINUTES=n"
	@echo "make audit       known vulnerabilities of the pins, where the network allows it"
	@echo "make test-browser the prototype browser, reports, site and demo in Chromium; part of make test"
	@echo "make sanitize    10,000 random cases under AddressSanitizer and UBSan"
	@echo "make cuda        compile the CUDA part for every architecture; no GPU needed"
	@echo "make execute     run the notebooks in place, to commit them: ONLY=names"
	@echo "make status      renew the README's status table from the committed records"
	@echo "make site        the notebooks, documents and results as a site, and a demo: build/site/index.html"
	@echo "make lab         open the notebooks in JupyterLab"
	@echo "make bench       measure the operator, the training stages, the analysis and dpp evaluate against their yardsticks"
	@echo "make doctor      what works on this machine, and how to fix what does not"
	@echo "make lint        ruff and clang-format;  make format fixes what it can"
	@echo "make setup       only the environment in $(VENV) and the extension"
	@echo "make lock        resolve the pins of pyproject.toml again into requirements.txt"
	@echo "make clean       remove $(VENV), the extension and all caches"

setup: $(BUILT)

$(PINS): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5))' || \
	  { echo "dpp's pins need Python 3.11.5 or later: found $$($(PYTHON) --version 2>&1); set PYTHON=..."; exit 1; }
	@echo "installing the pins into $(VENV): some gigabytes, some minutes, once"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(BUILT): $(PINS) $(SOURCES)
	@echo "building the operator, installing dpp into $(VENV)"
	@rm -f $(VENV)/.built-* && mkdir -p build
	@$(BIN)/python -m pip install --verbose --disable-pip-version-check --no-build-isolation \
	  --no-deps --editable . > build/operator.log 2>&1 || { cat build/operator.log; exit 1; }
	@$(BIN)/dpp doctor operator
	@touch $@

reproduce: $(BUILT)
	@$(BIN)/dpp reproduce --profile "$(PROFILE)" $(foreach name,$(ONLY),--only "$(name)") \
	  $(foreach pair,$(SET),--set "$(pair)") $(if $(JOBS),--jobs "$(JOBS)") \
	  $(if $(ENGINE),--engine "$(ENGINE)") $(if $(ADDRESS),--address "$(ADDRESS)")

test: lint unit test-browser notebooks smoke

lint: $(BUILT)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "run: make format"; exit 1; }
	@$(BIN)/clang-format --dry-run --Werror $$(git ls-files -co --exclude-standard \
	  '*.h' '*.cpp' '*.cu' '*.cuh')

format: $(BUILT)
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/clang-format -i $$(git ls-files -co --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')

unit: $(BUILT)
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not browser"

test-slow: $(BUILT) test-cluster
	@$(BIN)/python -m pytest -m "slow and not cluster"

test-cluster: $(BUILT) $(CLUSTER)
	@PYTHONPATH=$(CURDIR)/build/cluster $(BIN)/python -m pytest -m cluster tests/test_cluster.py

# Ray is large and few need it: it stays out of the environment. What it needs besides is there.
$(CLUSTER): $(BUILT)
	@echo "installing the extra cluster into build/cluster"
	@rm -rf build/cluster
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --target build/cluster $$($(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["cluster"])')
	@touch $@

chaos: $(BUILT)
	@$(BIN)/python tests/chaos $(if $(SEED),--seed "$(SEED)") $(if $(ATTACKS),--attacks "$(ATTACKS)") \
	  $(if $(MINUTES),--minutes "$(MINUTES)")

audit:
	@$(PYTHON) tests/audit_pins.py

test-browser: $(BUILT)
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "browser and not slow" tests

sanitize: $(BUILT)
	@DPP_FUZZ=10000 $(BIN)/python -m pytest -m slow -k clean tests/test_sanitizers.py

cuda: $(BUILT)
	@$(BIN)/python -m pytest -m "slow or not slow" tests/test_cuda.py

execute: $(BUILT)
	@cd notebooks && ../$(BIN)/jupyter nbconvert --to notebook --execute --inplace \
	  --ExecutePreprocessor.record_timing=False --ExecutePreprocessor.store_widget_state=False \
	  --NotebookExporter.preprocessors=dpp.paper.notebooks.keep_pictures \
	  $(if $(ONLY),$(addsuffix .ipynb,$(basename $(ONLY))),*.ipynb)

# The committed records are read from a copy, so that what notebooks write changes no committed file.
notebooks: $(BUILT)
	@rm -rf build/nbval && mkdir -p build/nbval/mini build/nbval/photo
	@cp results/mini/*.csv build/nbval/mini
	@[ ! -f results/photo/runs.csv ] || cp results/photo/*.csv build/nbval/photo
	@DPP_RESULTS=$(CURDIR)/build/nbval $(BIN)/python -m pytest -n 2 --dist loadfile --nbval notebooks

smoke: $(BUILT)
	@rm -rf build/smoke
	@DPP_RUNS=build/smoke/runs DPP_RESULTS=build/smoke/results DPP_DATA=build/smoke/data \
	  $(BIN)/dpp reproduce --profile smoke

status: $(BUILT)
	@$(BIN)/dpp status

site: $(BUILT)
	@$(BIN)/python -m dpp.site

lab: $(BUILT)
	@$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks

bench: $(BUILT)
	@$(BIN)/python benchmarks/bench_operator.py $(BENCH)
	@$(BIN)/python benchmarks/bench_training.py $(BENCH)
	@$(BIN)/python benchmarks/bench_analysis.py $(BENCH)
	@$(BIN)/python benchmarks/bench_evaluation.py $(BENCH)
	@$(BIN)/python benchmarks/bench_processes.py $(BENCH)

doctor: $(BUILT)
	@$(BIN)/dpp doctor

# The markers keep the CUDA libraries, which torch asks for on Linux alone, off other systems.
lock:
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@$(PYTHON) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*p["dependencies"], *p["optional-dependencies"]["dev"], sep="\n")' > build/direct.txt
	@build/lock/bin/pip install --quiet -r build/direct.txt
	@{ echo "# Every package that is installed, exactly. Written by \`make lock\` from pyproject.toml."; \
	  build/lock/bin/pip freeze --all --exclude pip | \
	  sed -E '/^(nvidia|cuda|triton)/s/$$/ ; platform_system == "Linux"/'; } > requirements.txt
	@rm -rf build/lock build/direct.txt

clean:
	rm -rf $(VENV) build *.egg-info dpp/_C.so dpp/_build.json .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf
