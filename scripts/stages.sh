# Sourced by check.sh and nightly.sh: runs all stages, also after a failure, and prints a table of
# their results.
jobs=${JOBS:-$(nproc)}

stage_names=() stage_results=() stage_seconds=()
failed_tests=() # presets
rm -f build/failures.txt
failed=0

# stage NAME COMMAND...: runs it, with its time and result kept for the summary.
stage() {
  local name=$1 start=$SECONDS result=ok
  shift
  printf '\n== %s\n' "$name"
  "$@" || result=FAILED
  [[ $result == ok ]] || failed=1
  stage_names+=("$name") stage_results+=("$result") stage_seconds+=($((SECONDS - start)))
  [[ $result == ok ]]
}

# Address-space randomisation may occupy the addresses of ThreadSanitizer's shadow memory.
without_aslr() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then setarch "$(uname -m)" -R "$@"; else "$@"; fi
}

# for_preset PRESET COMMAND...: the command, in the address space that the preset's programs need.
for_preset() {
  local preset=$1
  shift
  if [[ $preset == tsan ]]; then without_aslr "$@"; else "$@"; fi
}

# build PRESET [PROGRAM...]: those, or everything.
build() {
  local preset=$1
  shift
  cmake --preset "$preset" >/dev/null && cmake --build --preset "$preset" -j "$jobs" ${1:+--target "$@"}
}

# build_and_test PRESET PART [PROGRAM...]: two stages, for the tests that scripts/shards.py assigns
# to the part.
build_and_test() {
  local preset=$1 part=$2 log=build/$1/Testing/Temporary/LastTestsFailed.log
  shift 2
  rm -f "$log"
  stage "$preset build" build "$preset" "$@" &&
    stage "$preset tests ($part)" for_preset "$preset" scripts/shards.py run "$preset" "$part" -j "$jobs"
  if [[ -s $log ]]; then failed_tests+=("$preset"); fi
}

# Runs failed tests again, alone, at the end of the output. A test that passes now has failed all
# the same: it depends on load or on other tests.
failed_tests_again() {
  local preset
  for preset in "${failed_tests[@]}"; do
    printf '\n== %s tests that failed, again\n' "$preset"
    for_preset "$preset" ctest --preset "$preset" --rerun-failed -j 1 2>&1 | tail -n 60 | cut -c 1-200
  done
}

# Failures come last in the output: the end of what each failed test printed, then the table.
summary() {
  local i
  printf '\n'
  [[ -s build/failures.txt ]] && cat build/failures.txt && printf '\n'
  for i in "${!stage_names[@]}"; do
    printf '%-28s %-7s %5d s\n' "${stage_names[i]}" "${stage_results[i]}" "${stage_seconds[i]}"
  done
  printf '%-28s %-7s %5d s\n' total "$([[ $failed == 0 ]] && echo ok || echo FAILED)" "$SECONDS"
}
