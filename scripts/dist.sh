#!/usr/bin/env bash
# Writes dist/vmem-VERSION-linux-x86_64/: the release build and the tests that need a GPU. The
# folder can be copied anywhere; it needs Linux with glibc 2.36 or newer (built on Debian 12) and,
# for GPUs, a driver.
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

# The tests bundle one more library.
mapfile -t shipped <"$build/shipped.txt"
mapfile -t tests < <(cd "$folder/libexec/vmem/tests" && find . -name '*_test' -printf 'bin/%P\n')
scripts/sbom.py "$build" "$folder/share/doc/vmem/sbom.cdx.json" "$version" "${shipped[@]}" "${tests[@]}"

scripts/check_dist.py "$folder"
