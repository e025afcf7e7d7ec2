# make run            the demonstration: what is forgotten, and what helps, in under a minute
# make test           style, types, and the fast tests
# make docs           the site, in build/docs: every example is run
# make release-check  build, check and try out what would be published
# make paper          the paper's pages again, from the rows in results/
PYTHON ?= python3
BIN := .venv/bin
# Three kinds of pins. `make run` and `make test` install files whose hashes are known (HASHED), and torch, whose build
# depends on the machine, by its version alone. Targets that need more install versions of constraints.txt (INSTALL).
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation
INSTALL := $(PIP) -c constraints.txt
HASHED := $(PIP) --require-hashes --no-deps -r
RUNNABLE := .venv/.runnable
READY := .venv/.ready

.PHONY: run paper test test-load test-slow test-report test-site test-kernels test-everywhere test-faults test-docs test-torch docs fuzz bench release-check pins clean

run: $(RUNNABLE)
	$(BIN)/rwalk run

# WHAT=all: every experiment of the paper. Only missing rows are trained: on a GPU half an hour for all of them.
WHAT ?= table1-mnist
paper: $(READY)
	$(BIN)/python -m reproduction $(WHAT)

# Types are checked beside the tests; the output of mypy is printed after theirs. One test process per core, of one thread.
# Python keeps what it compiles, even where PYTHONDONTWRITEBYTECODE is set: the tests start it many times.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal --durations=25 --durations-min=1
test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p build; $(BIN)/mypy > build/types.txt 2>&1 & types=$$!; \
		$(PYTEST); failed=$$?; wait $$types || failed=1; cat build/types.txt; exit $$failed

# `make test` with four processes beside it that compute: no test may depend on the speed of a machine.
test-load: $(READY)
	@for each in 1 2 3 4; do $(BIN)/python -c 'while True: pass' & busy="$$busy $$!"; done; \
		trap "kill $$busy" EXIT; $(MAKE) test

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow -s

# The report in Chromium with axe-core, which npm brings for this alone: no violation, wide and narrow, light and dark.
AXE := build/axe/node_modules/axe-core/axe.min.js
$(AXE):
	npm install --silent --no-save --prefix build/axe axe-core@4.14.0
test-report: $(READY) $(AXE)
	AXE=$(AXE) $(BIN)/python -m pytest tests/test_report_page.py

# The site in the same way, one page of every kind; its screenshots are left in build/shots.
test-site: $(READY) $(AXE) docs
	AXE=$(AXE) $(BIN)/python -m pytest tests/test_site_page.py

# Every command and every block of code of README and docs, in clean folders, also those that take long.
test-docs: $(READY)
	$(BIN)/python -m pytest -n auto -m 'slow or not slow' tests/test_readme.py tests/test_docs.py tests/test_site.py

# The core with another version of torch, in an environment of its own: 2.11.0 is the oldest that is allowed, 2.15.0 the
# newest. What compiles is left out, because it depends on torch in no other way than tests/test_private_torch.py checks.
TORCH ?= 2.15.0
CORE := $(addprefix tests/test_,$(addsuffix .py,checkpoint closed_form closed_form_files estimator fleet gem guard \
	guard_drift guard_files guard_steps icarl losses memory methods metrics networks private_torch samplers solvers \
	streams studies))
test-torch:
	$(PYTHON) -m venv build/torch-$(TORCH)
	build/torch-$(TORCH)/bin/python -m pip install --quiet torch==$(TORCH) -e '.[all]' pytest pytest-xdist hypothesis pandas
	OMP_NUM_THREADS=1 build/torch-$(TORCH)/bin/python -m pytest -n auto $(CORE)

# The site; a warning is an error. Sphinx and what the examples need are installed for this alone.
docs: $(RUNNABLE)
	$(INSTALL) -e '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going --nitpicky --quiet -b html docs build/docs
	@echo "open build/docs/index.html"

# A guard's kernels in Triton's interpreter, on a CPU; Triton is installed for this alone, in the version that torch 2.13.0
# for CUDA asks for. It is not in constraints.txt: other versions of torch need other ones. With a GPU: on that.
test-kernels: $(READY)
	$(INSTALL) triton==3.7.1
	$(BIN)/python -m pytest -n 0 tests/test_guard_kernels.py; failed=$$?; \
		$(BIN)/python -m pip uninstall --quiet --yes triton; exit $$failed

# The demonstration and table 1's MNIST half (two seeds), by local processes and by three processes that join a folder:
# rows must be the same, byte for byte. RWALK_DATA=DIR, if MNIST cannot be downloaded.
test-everywhere: $(READY)
	$(BIN)/python -m pytest -s -m 'slow or not slow' tests/test_everywhere.py

# SIGKILLs at random moments, of processes that share a folder. Random schedules of processes that join, grow, stop and die. Every file operation of a command fails once: the n-th open, write, fsync and rename.
KILLS ?= 50
SCHEDULES ?= 200
test-faults: $(READY)
	RWALK_KILLS=$(KILLS) $(BIN)/python -m pytest -n 0 -s -m 'slow or not slow' -k kills tests/test_join.py
	RWALK_SCHEDULES=$(SCHEDULES) $(BIN)/python -m pytest -n 0 -s -m 'slow or not slow' \
		tests/test_file_faults.py tests/test_schedules.py tests/test_corruption.py

# Every loader for so many seconds, so many of them at a time; atheris is installed for this alone.
JOBS ?= 2
SECONDS ?= 60
fuzz: $(READY)
	$(INSTALL) atheris
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz $(JOBS) $(SECONDS) build/fuzz $(LOADERS)

bench: $(READY)
	$(BIN)/python -m benchmarks

# A source archive and a wheel, checked; and the wheel by itself, in an empty environment elsewhere.
release-check: $(READY)
	$(INSTALL) build twine
	rm -rf dist
	$(BIN)/python -m build --quiet --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tests/wheel_smoke.py dist/*.whl

# The hashes of everything but torch and the libraries of NVIDIA that some of its builds need: again, after a change of
# pyproject.toml or constraints.txt. tests/test_pins.py compares the three.
UNHASHED := torch triton cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-,cublas cuda-cupti cuda-nvrtc \
	cuda-runtime cudnn-cu13 cufft cufile curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)
LOCK := $(BIN)/uv pip compile --quiet pyproject.toml --universal --python-version 3.11 --no-header --no-annotate
pins: $(READY)
	$(INSTALL) uv
	mkdir -p build && printf 'hatchling\neditables\n' > build/build.in
	$(LOCK) build/build.in --extra report --generate-hashes -c constraints.txt \
		$(addprefix --no-emit-package ,$(UNHASHED)) -o requirements/run.txt
	$(LOCK) build/build.in --extra dev --generate-hashes -c constraints.txt \
		$(addprefix --no-emit-package ,$(UNHASHED)) -o requirements/dev.txt

# Installed once; again only when what to install has changed. First what the demonstration needs, then the rest.
$(RUNNABLE): pyproject.toml constraints.txt requirements/run.txt requirements/dev.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rwalk needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(HASHED) requirements/run.txt
	$(INSTALL) torch
	$(PIP) --no-deps -e .
	touch $@

$(READY): $(RUNNABLE)
	$(HASHED) requirements/dev.txt
	touch $@

clean:
	rm -rf .venv build dist docs/gallery docs/api/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
