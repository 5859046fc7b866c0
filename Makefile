# Everything runs from .venv; nothing needs it to be activated.
PYTHON ?= python3
BIN := .venv/bin
TORCH := torch==2.13.0
CPU_INDEX := https://download.pytorch.org/whl/cpu
STAMP := .venv/.installed
BENCHES := ceilings timing_traps norm_rope ablation decode paged crossover judged model_corners model_attacks
HOPPER_BENCHES := hopper hopper_fuzz hopper_sanitizer hopper_splits hopper_steps hopper_float8 counters

.PHONY: demo demo-all test test-all lab dashboard site bench bench-hopper build clean

demo: $(STAMP)  ## build the course, grade a small sample class, print the scoreboard
	$(BIN)/mla-course build
	$(BIN)/mla-course demo

demo-all: $(STAMP)  ## the same with the whole sample class, some minutes
	$(BIN)/mla-course build
	$(BIN)/mla-course demo --all

test: $(STAMP)  ## lint, drift, and the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mla-course build --check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadgroup

test-all: $(STAMP)  ## the tests, and more of the same kinds: GPUs, sizes, seeds, solutions, attacks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadgroup --thorough

lab: $(STAMP)  ## JupyterLab at lesson 00, with nbgrader's formgrader in its menu
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter lab --config=jupyter_server_config.py

site: $(STAMP)  ## the course as a static site in site/, some minutes the first time
	$(BIN)/mla-course site

dashboard: $(STAMP)  ## the class in a browser: who is lost, which exercise is broken, whose answers are alike
	$(BIN)/mla-course dashboard

bench: $(STAMP)  ## on a machine with an NVIDIA GPU: all its benchmarks, some minutes each, then the README's tables
	@if nvidia-smi >/dev/null 2>&1; then \
	  failed=0; for each in $(BENCHES); do PYTHONPATH=. $(BIN)/python benchmarks/$$each.py || failed=1; done; \
	  $(BIN)/python benchmarks/results.py --write && exit $$failed; \
	else \
	  echo "No NVIDIA GPU here: run this on a machine that has one, or read what an H100 gave, benchmarks/*_h100.json."; \
	fi

bench-hopper: $(STAMP)  ## on an H100 or H200: the kernels in Gluon, their counters, random cases; takes ncu and compute-sanitizer
	@failed=0; for each in $(HOPPER_BENCHES); do PYTHONPATH=. $(BIN)/python benchmarks/$$each.py || failed=1; done; exit $$failed

build: $(STAMP)
	$(BIN)/mla-course build

clean:
	rm -rf .venv

# A CUDA build of torch where there is an NVIDIA driver or no choice; else the CPU build, a tenth of the size.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -c "import torch" 2>/dev/null || { \
	  if [ "$$(uname)" = Linux ] && ! nvidia-smi >/dev/null 2>&1; then \
	    $(BIN)/python -m pip install --quiet --no-compile --retries 0 --timeout 5 --constraint constraints.txt \
	      --index-url $(CPU_INDEX) $(TORCH) 2>/dev/null || true; \
	  fi; }
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt \
	  --editable ".[lab,grading,dashboard,scale,postgres,site,dev]"
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # on all cores; pip would on one
	touch $@
