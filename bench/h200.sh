#!/bin/sh
# Measures the whole table of goals on a GPU host, with the distribution that it lies in, else with the vmem on PATH:
#     h200.sh OUT [FILE]
# writes all records to OUT/h200.json, the tables to OUT/tables.txt and the doctor's findings to OUT/doctor.txt. FILE is the file
# scenario's input; without it a tar of /usr is made. Every scenario is a run of its own, so one that fails or hangs does not
# take the others' results with it. Takes about five minutes on an H200.
set -u
here=$(cd "$(dirname "$0")" && pwd)
vmem=$(command -v "$here/bin/vmem" || command -v "$here/../../bin/vmem" || command -v vmem) || {
  echo "h200.sh: no vmem program; run this inside a distribution folder, or put its bin folder on PATH" >&2
  exit 2
}
out=${1:?"h200.sh: name a folder for the results"}
mkdir -p "$out"
work=$(mktemp -d -t vmem-h200.XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0

# measure NAME LIMIT_S ARGUMENTS...: one run of the program.
measure() {
  name=$1
  limit_s=$2
  shift 2
  if ! timeout "$limit_s" "$vmem" bench "$@" --driver auto --json "$work/$name.json" >>"$out/tables.txt" 2>&1; then
    echo "h200.sh: $name failed or took more than $limit_s s; see $out/tables.txt" >&2
    failed=1
  fi
}

"$vmem" doctor >"$out/doctor.txt" 2>&1 || { cat "$out/doctor.txt" >&2; exit 3; }
: >"$out/tables.txt"
measure stream 90 stream --ratio 4 --repeats 5
measure scale 90 scale
measure random-4x 60 random --ratio 4
measure random-2x 60 random --ratio 2
measure matmul 90 matmul --ratio 3
measure hit 60 hit
measure lookup 30 lookup
measure alloc 30 alloc
measure driver 60 driver
measure block 60 block --ratio 4

input=${2:-}
if [ -z "$input" ]; then
  input=$work/usr.tar
  timeout 60 tar -cf "$input" /usr 2>/dev/null
fi
measure file 90 file --input "$input" --ratio 4

# The files are arrays, pretty-printed: without their first and last lines they join to one.
separator=''
{
  echo '['
  for part in "$work"/*.json; do
    [ -s "$part" ] || continue
    printf '%s' "$separator"
    sed '1d;$d' "$part"
    separator=','
  done
  echo ']'
} >"$out/h200.json"
cat "$out/tables.txt"
exit $failed
