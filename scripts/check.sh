#!/usr/bin/env bash
# What has to hold before a change is kept; scripts/nightly.sh runs the rest. scripts/shards.py says
# which test is where.
set -uo pipefail
cd "$(dirname "$0")/.."
source scripts/stages.sh

build_and_test release test
stage "tests and their parts" scripts/shards.py check release
stage "house" scripts/house.py
stage "distribution" scripts/dist.sh
stage "wheel" env CMAKE_BUILD_PARALLEL_LEVEL="$jobs" scripts/wheel.sh
stage "replays" scripts/replays.py
stage "tables of figures" scripts/benchmark_tables.py --check
stage "versions of tools" scripts/check_tools.py
stage "API reference" scripts/api_docs.py
stage "guide of options" scripts/option_guide.py --check
stage "format" env JOBS="$jobs" scripts/format.sh --check
stage "lint, quick checks" scripts/lint.py --checks quick --recent 50 --jobs "$jobs"
read -ra programs < <(scripts/shards.py programs asan-ubsan)
build_and_test asan-ubsan test "${programs[@]}"

failed_tests_again
summary
exit "$failed"
