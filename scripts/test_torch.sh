#!/usr/bin/env bash
# test_torch.sh [VERSION ...]: tests with real PyTorch releases on the emulated driver, by default
# with an old one and the newest. Each is installed from PyPI into build/torch-VERSION (5 GB) and
# kept.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# -gt 0 ]] || set -- 2.4.1 newest

make --no-print-directory build
export VMEM_BUILD=build/release
failed=()
for version in "$@"; do
  folder=build/torch-$version
  torch=("torch==$version")
  [[ $version != newest ]] || torch=(--upgrade torch)
  [[ -x $folder/bin/python ]] || python3 -m venv "$folder"
  # setuptools: torch.utils.cpp_extension imports it.
  "$folder/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir setuptools "${torch[@]}"
  for test in tests/torch/*_test.py; do
    printf '\n== %s with PyTorch %s\n' "$test" "$version"
    "$folder/bin/python" -W ignore "$test" || failed+=("$test with PyTorch $version")
  done
done
[[ ${#failed[@]} -eq 0 ]] || { printf 'FAILED: %s\n' "${failed[@]}" >&2; exit 1; }
