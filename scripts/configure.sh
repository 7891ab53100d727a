#!/usr/bin/env bash
# configure.sh PRESET: `cmake --preset PRESET`, which says what to do where the build folder was
# copied along with the checkout: CMake's files in it name the folders of the other one.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=build/$1/CMakeCache.txt
if [ -f "$cache" ]; then
  home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$cache")
  if [ "$(realpath -m "$home")" != "$(realpath .)" ]; then
    echo "build/$1 was made for $home, and was copied here: CMake cannot use it; remove it (rm -r build/$1) and run this again" >&2
    exit 1
  fi
fi
cmake --preset "$1" >/dev/null
