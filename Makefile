# Two commands: `make train` and `make test`. Each sets up all it needs, in .venv, the first time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INTEROP := .venv-interop
TARGETS := .venv-targets
CLIENTS := .venv-clients
SANITIZED := .venv-sanitized
PROTO := .venv-proto
DIST := dist
UNREPAIRED := build/wheel
# A process of tests for each core: most of the time goes into compiling, on one thread.
PARALLEL := --numprocesses auto --dist worksteal
# A dot every two seconds while the rest of the command runs: pip shows nothing for minutes.
DOTS = (while kill -0 $$$$ 2>/dev/null; do printf .; sleep 2; done) &
BUILT_FROM := pyproject.toml CMakeLists.txt $(wildcard src/convoy/*/native/*)

.DEFAULT_GOAL := help
.PHONY: help setup train docs test-unit test test-all test-targets freeze test-clients test-sanitized fuzz soak soak-serving stops-serving proto wheel lint bench-peers bench-zoo clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: $(VENV)/.installed ## Make the environment in .venv

$(VENV)/.installed: $(BUILT_FROM)
	@echo "Setting up $(VENV) (once; a few minutes) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Convoy needs Python 3.11 or later; set PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(DOTS) $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' && echo
	@touch $@

train: setup ## Train a small CNN on handwritten digits, on two devices
	@$(BIN)/python examples/digits/train.py

test-unit: setup ## Quick tests of every package, in under two minutes
	@$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not integration'

test: setup lint ## Everything that must pass: style, types, fast tests
	@$(BIN)/python -m pytest $(PARALLEL) -m 'not slow' --durations 20

test-all: setup lint $(INTEROP)/.installed $(TARGETS)/.installed ## The same with the slow tests, other libraries and devices
	@$(BIN)/python -m pytest $(PARALLEL)
	@$(INTEROP)/bin/python -m pytest -m interop
	@$(TARGETS)/bin/python -m pytest -m targets

# KerasHub asks for tensorflow-text, which would install TensorFlow beside tensorflow-cpu in the same
# folder. It runs without it; the extra has what it imports.
$(INTEROP)/.installed: $(BUILT_FROM)
	@echo "Setting up $(INTEROP) (once; a few minutes) ..."
	@test -x $(INTEROP)/bin/python || $(PYTHON) -m venv $(INTEROP)
	@$(DOTS) $(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,interop]' && echo
	@$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps keras-hub==0.32.0
	@touch $@

test-targets: $(TARGETS)/.installed ## Compile for TPUs and GPUs that are not here
	@$(TARGETS)/bin/python -m pytest -m targets $(ARGS)

$(TARGETS)/.installed: $(BUILT_FROM)
	@echo "Setting up $(TARGETS) (once; a few minutes) ..."
	@test -x $(TARGETS)/bin/python || $(PYTHON) -m venv $(TARGETS)
	@$(DOTS) $(TARGETS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,targets]' && echo
	@touch $@

test-clients: setup $(CLIENTS)/.installed ## The official clients of TensorFlow Serving and Triton against the server
	@$(BIN)/python -m pytest tests/serving/test_official_clients.py

$(CLIENTS)/.installed: Makefile
	@echo "Setting up $(CLIENTS) (once; a few minutes) ..."
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(DOTS) $(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  requests schemathesis tensorflow-cpu 'tritonclient[http]' && echo
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps tensorflow-serving-api
	@touch $@

# Leaks are not looked for: Python and JAX free little at exit.
test-sanitized: $(SANITIZED)/.installed ## The CPU kernels and the JPEG decoder with every access to memory checked
	@LD_PRELOAD="$$(for name in asan ubsan stdc++; do $(CXX) -print-file-name=lib$$name.so; done | tr '\n' ' ')" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  $(SANITIZED)/bin/python -m pytest tests/cpu tests/data/test_jpeg.py tests/fuzz/test_images.py $(ARGS)

$(SANITIZED)/.installed: $(BUILT_FROM)
	@test -x $(SANITIZED)/bin/python || $(PYTHON) -m venv $(SANITIZED)
	@$(DOTS) CXXFLAGS="-fsanitize=address,undefined -fno-omit-frame-pointer -g" \
	  $(SANITIZED)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' && echo
	@touch $@

freeze: setup ## Accept changes to public names and flags: write tests/golden again
	@$(BIN)/python -m pytest --quiet --update-frozen $$(grep -rl '^def test.*(frozen' tests --include='test_*.py')
	@git diff --stat tests/golden

soak: setup ## Kill 100 runs at random moments, and find the same bits
	@$(BIN)/python tests/checkpoint/soak.py $(ARGS)

soak-serving: setup ## Ten minutes of load on a server, with new versions and attackers among the clients
	@$(BIN)/python -m tests.serving.soak $(ARGS)

stops-serving: setup ## Stop a server 100 times under load, and find an answer to every request
	@GRPC_ENABLE_FORK_SUPPORT=0 $(BIN)/python -m tests.serving.stops $(ARGS)

fuzz: setup ## An hour of generated requests, images, exported versions and checkpoints
	@$(BIN)/python -m tests.fuzz.run $(ARGS)

docs: $(VENV)/.docs-installed ## Build the documentation into build/site, from what is here
	@echo "Building build/site (a minute) ..."
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs . build/site
	@echo "build/site/docs/index.html"

$(VENV)/.docs-installed: $(VENV)/.installed
	@$(DOTS) $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]' && echo
	@touch $@

# oneDNN comes from its own package, and OpenMP's library is in the wheel under its own name: the
# kernels and oneDNN must load the same one, which a renamed copy would not be.
wheel: setup ## Build a wheel for other Linux machines into dist
	@rm -rf $(UNREPAIRED)
	@$(DOTS) CONVOY_PORTABLE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
	  --no-deps --wheel-dir $(UNREPAIRED) . && echo
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --exclude libdnnl.so.3 \
	  --exclude libgomp.so.1 --wheel-dir $(DIST) $(UNREPAIRED)/*.whl

proto: $(PROTO)/.installed ## Generate the *_pb2 modules from the .proto files
	@$(PROTO)/bin/python -m grpc_tools.protoc --proto_path=src --python_out=src --pyi_out=src \
	  $(wildcard src/convoy/*/*.proto)

# Generated code runs with the protobuf of its compiler and later ones: this compiler is older than
# the one in the development environment, so that the code runs with TensorFlow's protobuf too.
$(PROTO)/.installed: Makefile
	@test -x $(PROTO)/bin/python || $(PYTHON) -m venv $(PROTO)
	@$(PROTO)/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.80.0
	@touch $@

lint: setup
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

bench-peers: setup ## Convoy beside its peers: 90 minutes, a page in benchmarks/results
	@$(BIN)/python -m benchmarks.peers.run $(ARGS)

bench-zoo: setup ## Convoy beside Keras's backends on 54 networks: hours, a page in benchmarks/results
	@$(BIN)/python -m benchmarks.peers.run --suite zoo $(ARGS)

clean: ## Remove the environment and what was built
	rm -rf $(VENV) $(VENV)-peers $(INTEROP) $(TARGETS) $(CLIENTS) $(SANITIZED) $(PROTO) build dist .mypy_cache .pytest_cache .ruff_cache
