#!/usr/bin/env bash
# Checks that take too long for `make test`: long tests, ThreadSanitizer and the other tests of
# AddressSanitizer, all checks of the linter, the benchmark, long fuzzing.
#   scripts/nightly.sh          all of it, with the whole suite under each sanitizer
#   scripts/nightly.sh PART     one part, 0 to 19; `auto` (for CI) takes the next one at each commit
# build/nightly/report.json says what ran, on which commit, and how it went.
set -uo pipefail
cd "$(dirname "$0")/.."
source scripts/stages.sh

part=${1:-all}
[[ $part == auto ]] && part=$(scripts/shards.py turn)
[[ $part =~ ^(1?[0-9]|all)$ ]] || { echo "nightly: '$part' is no part; name 0 to 19, auto, or all" >&2; exit 2; }
echo "nightly: part $part of commit $(git describe --always --dirty 2>/dev/null || echo unknown)"

# Tests every size that malloc accepts, for configurations where that takes minutes.
every_size() {
  [[ $part == all || $part == 13 ]] || return 0
  VMEM_TEST_EVERY_SIZE=1 build/release/bin/usable_test --gtest_filter='*EverySize*LeastHost:*EverySize*MoreHost'
}

stage "release build" build release
stage "C ABI" scripts/abi.py
# Long tests, in the numbers that the documents promise: every call stack whose allocation can
# fail, 200 kills of programs that borrow, 50 dying disks, 10,000 forged pages, 100,000 strangers,
# 20,000 lives each of a directory of published regions and of whole clusters that share regions,
# 4,000 each of lenders and of nodes that share pages; ten times the random programs that a run by
# hand takes.
stage "long tests ($part)" env VMEM_TEST_SEEDS=6000 VMEM_TEST_DIRECTORY_SEEDS=20000 VMEM_TEST_JOINT_SEEDS=20000 VMEM_TEST_LENDING_SEEDS=4000 VMEM_TEST_KILLS=200 VMEM_TEST_DYING_DISKS=10 VMEM_TEST_FORGED_PAGES=10000 \
  VMEM_TEST_HOSTILE_CONNECTIONS=100000 scripts/shards.py fuzz "$part" -j "$jobs" --timeout 1200
stage "every size ($part)" every_size
stage "campaign ($part)" scripts/campaign.py --part "$part" --seconds 300 --json build/nightly/campaign.json
stage "lint ($part)" scripts/lint.py --part "$part" --jobs "$jobs"
# Shows that every scenario runs and verifies; figures of the emulated driver say nothing about
# GPUs.
[[ $part == all || $part == 14 ]] && stage "emulated benchmark" build/release/bin/vmem bench all --driver emulated
build_and_test asan-ubsan "$part"
build_and_test tsan "$part"
stage "tests and their parts" scripts/shards.py check release asan-ubsan tsan

failed_tests_again
summary
for i in "${!stage_names[@]}"; do
  printf '%s\t%s\t%s\n' "${stage_names[i]}" "${stage_results[i]}" "${stage_seconds[i]}"
done | scripts/nightly_report.py "$part" build/nightly/report.json || failed=1
exit "$failed"
