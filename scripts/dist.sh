#!/usr/bin/env bash
# dist/vmem-VERSION-linux-x86_64/: the release build and the tests that need a GPU in one folder that runs wherever it is copied to,
# on Linux with glibc 2.36 or newer (built on Debian 12) and, for real GPUs, a driver.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/release
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
name=vmem-$version-linux-$(uname -m)
folder=dist/$name

rm -rf "$folder"
mkdir -p "$folder"
cmake --install "$build" --prefix "$folder" --strip >/dev/null
cmake --install "$build" --prefix "$folder" --strip --component tests >/dev/null

scripts/check_dist.py "$folder"
