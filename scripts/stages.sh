# Sourced by check.sh and nightly.sh: runs all stages, also after a failure, and prints a table of
# their results.
jobs=${JOBS:-$(nproc)}

stage_names=() stage_results=() stage_seconds=()
failed_tests=() # presets
rm -f build/failures.txt
failed=0

# stage NAME COMMAND...: runs it, with its time and result kept for the summary. build/failures.txt
# keeps what failed: what the command itself writes there, or the end of its output.
stage() {
  local name=$1 start=$SECONDS result=ok known
  shift
  known=$(failures_size)
  printf '\n== %s\n' "$name"
  mkdir -p build
  "$@" 2>&1 | tee build/stage.log
  [[ ${PIPESTATUS[0]} == 0 ]] || result=FAILED
  if [[ $result == FAILED ]]; then
    failed=1
    if [[ $(failures_size) == "$known" ]]; then
      { printf '== %s failed\n' "$name" && tail -n 80 build/stage.log | cut -c 1-200; } >>build/failures.txt
    fi
  fi
  rm -f build/stage.log
  stage_names+=("$name") stage_results+=("$result") stage_seconds+=($((SECONDS - start)))
  [[ $result == ok ]]
}

failures_size() {
  if [[ -e build/failures.txt ]]; then stat -c %s build/failures.txt; else echo 0; fi
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

# Failures come last in the output: the end of what each failed test or stage printed, then the
# table.
summary() {
  local i
  printf '\n'
  [[ -s build/failures.txt ]] && cat build/failures.txt && printf '\n'
  for i in "${!stage_names[@]}"; do
    printf '%-28s %-7s %5d s\n' "${stage_names[i]}" "${stage_results[i]}" "${stage_seconds[i]}"
  done
  printf '%-28s %-7s %5d s\n' total "$([[ $failed == 0 ]] && echo ok || echo FAILED)" "$SECONDS"
}
