#!/usr/bin/env bash
# examples.sh BUILD LIBDIR EXAMPLES CC CXX: installs the build and moves the installation. Then
# builds the examples against it, through pkg-config and find_package, and runs them on the emulated
# driver; those for PyTorch with the stand-in for it that is beside this script.
set -euo pipefail
stand_in=$(cd "$(dirname "${BASH_SOURCE[0]}")/stand_in" && pwd)
build=$1 libdir=$2 examples=$3 cc=$4 cxx=$5
work=$(mktemp -d)
folder=$work/cluster
trap '[ ! -e "$folder" ] || "$prefix/bin/vmem" cluster down --dir "$folder"; rm -rf "$work"' EXIT

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

# One program of a cluster publishes a table, two scan it.
make -s -C "$examples/published" CC="$cc" CFLAGS="-O2 -Wall -Wextra -Werror" OUT="$work/table"
"$prefix/bin/vmem" cluster up --nodes 1 --memory 64MiB --dir "$folder" >/dev/null
VMEM_CLUSTER=$("$prefix/bin/vmem" cluster status --address --dir "$folder")
export VMEM_CLUSTER VMEM_LOG=error

# publish COMMAND...: runs it until `end`; its output goes to $work/publisher.
publish() {
  rm -f "$work/until"
  mkfifo "$work/until"
  "$@" <"$work/until" >"$work/publisher" & publisher=$!
  exec 3>"$work/until"
}
end() {
  exec 3>&-
  wait $publisher
}

publish "$work/table" publish rows
"$work/table" scan rows >"$work/first" & first=$!
"$work/table" scan rows >"$work/second" & second=$!
wait $first
wait $second
end
cat "$work/first"
grep -q "scanned 64 MiB of 'rows' at 0x[0-9a-f]*: the sum is 4190109808$" "$work/first" || { echo "another sum"; exit 1; }
cmp "$work/first" "$work/second"

# One process publishes weights, three open them.
weights() { PYTHONPATH=$stand_in PYTHONDONTWRITEBYTECODE=1 "$prefix/bin/vmem" run -- python3 "$examples/published/weights.py" "$@"; }
export VMEM_HBM=64MiB VMEM_HOST=128MiB
publish weights publish weights
openers=()
for i in 1 2 3; do
  weights open weights >"$work/opener$i" & openers+=($!)
done
for opener in "${openers[@]}"; do wait "$opener"; done
end
cat "$work/publisher" "$work/opener1"
made=$(sed -n "s/^published 32 MiB as 'weights': the checksum is //p" "$work/publisher")
for i in 1 2 3; do
  [[ -n $made && $(<"$work/opener$i") == "opened 'weights' at 0x"*": the checksum is $made" ]] ||
    { echo "opener $i has other weights: $(<"$work/opener$i")"; exit 1; }
  cmp "$work/opener1" "$work/opener$i"  # at the same address
done
