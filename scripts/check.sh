#!/usr/bin/env bash
# Everything that has to hold before a change is kept, as stages; every stage runs, and a table at the end says how each went.
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}

summary=()
failed_tests=()  # presets
failed=0

# stage NAME COMMAND...: runs it, with its time and result kept for the summary.
stage() {
  local name=$1 start=$SECONDS result=ok
  shift
  printf '\n== %s\n' "$name"
  "$@" || result=FAILED
  [[ $result == ok ]] || failed=1
  summary+=("$(printf '%-22s %-7s %5d s' "$name" "$result" $((SECONDS - start)))")
  [[ $result == ok ]]
}

build() { cmake --preset "$1" >/dev/null && cmake --build --preset "$1" -j "$jobs"; }

# ThreadSanitizer needs its shadow where address-space randomisation may put other things.
without_aslr() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then setarch "$(uname -m)" -R "$@"; else "$@"; fi
}

for preset in release asan-ubsan tsan; do
  run=()
  [[ $preset == tsan ]] && run=(without_aslr)
  rm -f "build/$preset/Testing/Temporary/LastTestsFailed.log"
  stage "$preset build" build "$preset" &&
    stage "$preset tests" "${run[@]}" ctest --preset "$preset" -j "$jobs"
  [[ -s build/$preset/Testing/Temporary/LastTestsFailed.log ]] && failed_tests+=("$preset")
  if [[ $preset == release ]]; then
    # Figures of the emulated driver, labelled so: they show that every scenario runs and verifies, not how fast a GPU is.
    stage "emulated benchmark" build/release/bin/vmem bench all --driver emulated
    stage "distribution" scripts/dist.sh
    stage "wheel" env CMAKE_BUILD_PARALLEL_LEVEL="$jobs" scripts/wheel.sh
    stage "format" env JOBS="$jobs" scripts/format.sh --check
    stage "lint" scripts/lint.py --jobs "$jobs"
  fi
done

printf '\n'
# Once more, at the end, where the thousands that passed do not hide them, and by themselves: what passes now needs something that
# was otherwise before. It has failed all the same.
for preset in "${failed_tests[@]}"; do
  printf '== %s tests that failed, again\n' "$preset"
  run=()
  [[ $preset == tsan ]] && run=(without_aslr)
  "${run[@]}" ctest --preset "$preset" --rerun-failed -j 1 2>&1 | tail -n 60 | cut -c 1-200
done
printf '%s\n' "${summary[@]}" "$(printf '%-22s %-7s %5d s' total "$([[ $failed == 0 ]] && echo ok || echo FAILED)" "$SECONDS")"
exit "$failed"
