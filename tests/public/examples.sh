#!/usr/bin/env bash
# examples.sh BUILD LIBDIR EXAMPLES CC CXX: installs the build and moves the installation. Then
# builds the examples against it, through pkg-config and find_package, and runs them on the emulated
# driver.
set -euo pipefail
build=$1 libdir=$2 examples=$3 cc=$4 cxx=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/as installed" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
prefix=$work/moved
mv "$work/as installed" "$prefix"

export VMEM_DRIVER=emulated
export LD_LIBRARY_PATH=$prefix/$libdir

export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
make -s -C "$examples/oversubscribe" CC="$cc" CFLAGS="-O2 -Wall -Wextra -Werror" OUT="$work/oversubscribe" run

cmake -S "$examples/buffers" -B "$work/buffers" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" >"$work/configure.log" ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/buffers" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
"$work/buffers/buffers"
