#!/usr/bin/env bash
# Runs clang-format over all C, C++ and CUDA sources. --check changes nothing and lists files that
# would change.
set -euo pipefail
cd "$(dirname "$0")/.."

sources() {
  git ls-files -z --cached --others --exclude-standard -- '*.c' '*.cpp' '*.cu' '*.cuh' '*.h' '*.hpp' |
    while IFS= read -r -d '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done
}
format() { xargs -0 -r -n 16 -P "${JOBS:-$(nproc)}" clang-format-19 --style=file "$@"; }

if [[ "${1:-}" != --check ]]; then
  sources | format -i
elif ! messages=$(sources | format --dry-run --Werror 2>&1); then
  echo "not as 'make format' would lay them out:"
  sed -nE 's/^([^ :]+):[0-9]+:[0-9]+: error: .*/  \1/p' <<<"$messages" | sort -u
  exit 1
fi
