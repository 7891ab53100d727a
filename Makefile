# make demo: install what is missing, build, run.  make test: what has to hold before a change is
# kept.
.DEFAULT_GOAL := help
SHELL := /bin/bash

JOBS ?= $(shell nproc)
DEMO ?= build/release/bin/vmem bench demo
PREFIX ?= /usr/local
PART ?= all
CAMPAIGN_SECONDS ?= 1800
RELEASE := build/release
INSTALLED := vmem vmem_emu vmem_preload vmem_ucx_address vmem_program

# Compilations are shared by checkouts in other folders.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
	@echo '  variables: JOBS=$(JOBS) PREFIX=$(PREFIX) PART=$(PART) BASE=COMMIT DEMO="$(DEMO)"'

.PHONY: demo
demo: ## build, and show what vmem does, on the GPUs of this machine or the emulated one
	@scripts/bootstrap.sh
	@scripts/configure.sh release
	@cmake --build --preset release -j $(JOBS) --target bin/vmem lib/libvmem_emu.so
	$(DEMO)

.PHONY: check
check: ## while working: what changed since BASE (default: the main branch) and what uses it, without long tests
	@scripts/bootstrap.sh --lint
	@scripts/check_changed.py --jobs $(JOBS) $(BASE)

.PHONY: test
test: ## before a change is kept: release tests, the sanitizers' quick part, format check, linter
	@scripts/bootstrap.sh --lint
	@JOBS=$(JOBS) scripts/check.sh

.PHONY: nightly
nightly: ## what takes longer: whole sanitizer suites, slow checks, benchmark, fuzzing; PART=0 to 19: a twentieth
	@scripts/bootstrap.sh --lint
	@scripts/bootstrap.sh --fuzz
	@JOBS=$(JOBS) scripts/nightly.sh $(PART)

.PHONY: campaign
campaign: build ## a standing attack with printed seeds: CAMPAIGN_SECONDS in all (1800), table in build/campaign.json
	@scripts/bootstrap.sh --fuzz
	@scripts/campaign.py --seconds $(CAMPAIGN_SECONDS) --json build/campaign.json

.PHONY: test-gpu
test-gpu: build ## on a machine with a GPU: the driver's tests, and whole programs with and without vmem (needs PyTorch)
	@ctest --preset release -L hardware -j 1

.PHONY: build
build: ## the release build, in build/release
	@scripts/bootstrap.sh
	@scripts/configure.sh release
	@cmake --build --preset release -j $(JOBS)

.PHONY: debug
debug: ## the debug build, in build/debug
	@scripts/bootstrap.sh
	@scripts/configure.sh debug
	@cmake --build --preset debug -j $(JOBS)

.PHONY: format
format: ## lay out all sources
	@scripts/bootstrap.sh --lint
	@scripts/format.sh

.PHONY: lint
lint: build ## format check and clang-tidy; unchanged files are not linted again
	@scripts/bootstrap.sh --lint
	@scripts/format.sh --check
	@scripts/lint.py --jobs $(JOBS)

.PHONY: house
house: build ## sizes of classes, functions and files, width of comments, cycles of calls, includes
	@scripts/bootstrap.sh --lint
	@scripts/house.py

.PHONY: docs
docs: ## the API reference, in build/docs/html
	@scripts/bootstrap.sh --lint
	@scripts/api_docs.py

.PHONY: abi
abi: build ## the C ABI against tests/public/vmem.abi
	@scripts/bootstrap.sh --lint
	@scripts/abi.py

.PHONY: coverage
coverage: ## which lines of errors no test ran: a report, in build/coverage/errors.txt; builds and tests for long
	@scripts/bootstrap.sh
	@cmake --preset coverage >/dev/null
	@cmake --build --preset coverage -j $(JOBS)
	@scripts/coverage.py --jobs $(JOBS)

.PHONY: dist
dist: build ## a folder in dist/ that runs on other x86-64 Linux machines
	@scripts/dist.sh

.PHONY: wheel
wheel: ## a Python wheel in dist/, with everything that running needs
	@scripts/bootstrap.sh
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) scripts/wheel.sh

.PHONY: install
install: ## libraries, program and headers into PREFIX; builds these alone, no tests
	@scripts/bootstrap.sh
	@scripts/configure.sh release
	@cmake --build --preset release -j $(JOBS) --target $(INSTALLED)
	@cmake --install $(RELEASE) --prefix $(PREFIX) --strip

.PHONY: clean
clean: ## remove what was built
	@rm -rf build dist .cache
