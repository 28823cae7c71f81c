# make demo    a real model and a small training run on the device "tpu" (an XLA:CPU plugin where no TPU is attached)
# make test    the core's tests (C) and the device's (Python)
# make sweep   every op and module in every mode and dtype, every optimizer, and random programs of views: hours
# make fuzz    random inputs for keys, views, numbers and cache files; make core-tsan: data races
# make views   random programs of views, in-place ops and reads beside the CPU; N=20000 of them from FROM=0; views-fuse: fused
# make fuse    every op in float32 in DeferAndFuse, with gradients
# make aot     every row and whole training steps compiled for v5e, v6e and TPU7x, with no TPU (needs libtpu)
# make build   the wheel, built and installed in .venv
# make bench   the benchmarks, this backend beside native CPU
# make count   instructions of a Strict dispatch against what is recorded (valgrind; seconds, whatever else the machine does)
# make lint    formatting, types, layering
# make clean   forget .venv and build folders
#
# Every step leaves a stamp in .venv, so a second `make demo` only runs the demo. A PyTorch 2.13-2.15 that python3 can import is
# used as it is; otherwise one is installed in .venv (tools/venv.py). Another Python: make demo PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --disable-pip-version-check -q
# All pins lie in requirements/, closed under dependencies; the constraint guards against a second torch all the same.
PINNED := $(PIP) --no-deps --force-reinstall -c $(VENV)/constraints.txt
CORE_BUILD := build/core
C_FILES := $(shell find src include adapter tests bench examples tools -name '*.c' -o -name '*.h' -o -name '*.cc' -o -name '*.cpp' 2>/dev/null)
# Folders too: a deleted file changes its folder's time only.
SOURCES := CMakeLists.txt pyproject.toml tools/pjrt_include.py tools/ttc_aot.c \
  $(shell find src include adapter 2>/dev/null) $(shell find python -name '*.py' -o -name '*.typed' -o -name '*.pyi' 2>/dev/null)

.PHONY: demo test sweep build bench lint format clean
.DELETE_ON_ERROR:

demo: $(VENV)/.stamp-build $(VENV)/.stamp-demo
	$(PY) -m examples.demo

test: $(VENV)/.stamp-build $(VENV)/.stamp-test
	$(MAKE) --no-print-directory core-test
	$(PY) -m pytest

.PHONY: core-test
core-test: $(VENV)/.stamp-venv
	$(VENV)/bin/cmake -S . -B $(CORE_BUILD) -G Ninja -DTTC_TESTS=ON -DTTC_WERROR=ON \
	  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja -DPython3_EXECUTABLE=$(CURDIR)/$(PY) >/dev/null
	$(VENV)/bin/ninja -C $(CORE_BUILD)
	TTC_TEST_SITE_PACKAGES=$$($(PY) -c 'import sys; print(":".join(p for p in sys.path if p))') \
	  $(VENV)/bin/ctest --test-dir $(CORE_BUILD) --output-on-failure

.PHONY: core-sanitize
core-sanitize: $(VENV)/.stamp-venv
	$(VENV)/bin/cmake -S . -B build/sanitize -G Ninja -DTTC_TESTS=ON -DTTC_WERROR=ON -DTTC_SANITIZE=ON \
	  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja -DPython3_EXECUTABLE=$(CURDIR)/$(PY) >/dev/null
	$(VENV)/bin/ninja -C build/sanitize
	$(VENV)/bin/ctest --test-dir build/sanitize --output-on-failure

# The tests of what threads share, under ThreadSanitizer. The end leaves threads behind that are stuck in a plugin.
.PHONY: core-tsan
core-tsan: $(VENV)/.stamp-venv
	$(VENV)/bin/cmake -S . -B build/tsan -G Ninja -DTTC_TESTS=ON -DTTC_WERROR=ON -DTTC_TSAN=ON \
	  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja -DPython3_EXECUTABLE=$(CURDIR)/$(PY) >/dev/null
	$(VENV)/bin/ninja -C build/tsan
	$(VENV)/bin/ctest --test-dir build/tsan --output-on-failure -R 'test_(base|cache|pjrt|run)'

# Random inputs for each fuzz target, under AddressSanitizer and UndefinedBehaviorSanitizer: make fuzz SECONDS=600
SECONDS ?= 60
.PHONY: fuzz
fuzz: $(VENV)/.stamp-venv
	$(VENV)/bin/cmake -S . -B build/sanitize -G Ninja -DTTC_TESTS=ON -DTTC_WERROR=ON -DTTC_SANITIZE=ON \
	  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja -DPython3_EXECUTABLE=$(CURDIR)/$(PY) >/dev/null
	$(VENV)/bin/ninja -C build/sanitize
	for target in build/sanitize/tests/fuzz/fuzz_*; do \
	  if [ -x $$target ] && [ -f $$target ]; then echo $$target; $$target $(SECONDS) || exit 1; fi; done

# Every op in every mode and dtype, each batch in a process of its own, thousands of random programs of views, and every module of
# torch.nn in every mode.
sweep: $(VENV)/.stamp-build $(VENV)/.stamp-test
	$(PY) tests/python/sweep.py
	TORCH_TPU_SWEEP=1 $(PY) -m pytest tests/python/test_modules.py
	$(PY) tests/python/test_optim_db.py
	$(MAKE) --no-print-directory views

.PHONY: views
views: $(VENV)/.stamp-build $(VENV)/.stamp-test
	$(PY) -W ignore tests/python/view_programs.py $(or $(N),20000) --from $(or $(FROM),0)

.PHONY: views-fuse
views-fuse: $(VENV)/.stamp-build $(VENV)/.stamp-test
	$(PY) -W ignore tests/python/view_programs.py $(or $(N),20000) --from $(or $(FROM),0) --fuse

# Every op of PyTorch's database in DeferAndFuse, float32 where it has it: op by op, then fused, values and gradients.
.PHONY: fuse
fuse: $(VENV)/.stamp-build $(VENV)/.stamp-test
	$(PY) tests/python/sweep.py --mode fuse
	$(PY) tests/python/sweep.py --mode fusegrad

# What a TPU's compiler says of every row and of whole training steps, for three chips, without one: tests/data/aot.json. Only modules
# that have changed are compiled. Needs libtpu: TORCH_TPU_LIBTPU=/path/to/libtpu.so, or pip install libtpu in .venv. Hours from nothing.
.PHONY: aot
aot: $(VENV)/.stamp-build $(VENV)/.stamp-test
	nice -n 15 $(PY) -W ignore tests/python/aot_run.py

build: $(VENV)/.stamp-build

bench: $(VENV)/.stamp-build $(VENV)/.stamp-bench
	$(PY) -m bench.dispatch
	$(PY) -m bench.train

lint: $(VENV)/.stamp-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES)

format: $(VENV)/.stamp-test
	$(VENV)/bin/ruff check --fix-only -q .
	$(VENV)/bin/ruff format -q .
	$(VENV)/bin/clang-format -i $(C_FILES)

.PHONY: count
count: $(VENV)/.stamp-build
	$(PY) -W ignore -m bench.count --install

$(VENV)/.stamp-venv: tools/venv.py requirements/build.txt requirements/runtime.txt requirements/torch.txt
	$(PYTHON) tools/venv.py $(VENV)
	touch $@

$(VENV)/.stamp-build: $(VENV)/.stamp-venv $(SOURCES)
	$(PIP) --no-deps --no-build-isolation --force-reinstall .
	touch $@

$(VENV)/.stamp-demo: $(VENV)/.stamp-venv requirements/demo.txt
	$(PINNED) -r requirements/demo.txt
	touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-venv requirements/test.txt
	$(PINNED) -r requirements/test.txt
	touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp-venv requirements/bench.txt
	$(PINNED) -r requirements/bench.txt
	touch $@

clean:
	rm -rf $(VENV) build dist
