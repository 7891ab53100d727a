#!/usr/bin/env bash
# dist/vmem-VERSION-linux-x86_64/: the release build and its test programs in one folder that runs wherever it is copied to,
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

# Compiled in, so their licences go along.
for package in libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libgtest-dev libstdc++6; do
  [[ -e /usr/share/doc/$package/copyright ]] || continue
  install -D -m 644 "/usr/share/doc/$package/copyright" "$folder/share/doc/vmem/third-party/$package"
done

scripts/check_dist.py "$folder"
