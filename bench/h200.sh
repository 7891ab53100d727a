#!/bin/sh
# shellcheck disable=SC2034,SC2154,SC1091  # measure.sh reads `name`, and sets the rest Measures the
# table of goals on a GPU host, with the distribution that it lies in, else with the vmem on PATH:
#     h200.sh OUT [FILE]
# writes all records to OUT/h200.json, the tables to OUT/h200-tables.txt and the doctor's findings
# to OUT/doctor.txt. FILE is the file scenario's input; without it a tar of /usr is made. Takes
# about five minutes on an H200.
set -u
name=h200
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?"h200.sh: name a folder for the results"}
. "$here/measure.sh"

"$vmem" doctor >"$out/doctor.txt" 2>&1 || { cat "$out/doctor.txt" >&2; exit 3; }
measure stream 90 stream --ratio 4 --repeats 5
measure scale 90 scale
measure random-4x 60 random --ratio 4
measure random-2x 60 random --ratio 2
measure matmul 90 matmul --ratio 3
measure hit 60 hit
measure lookup 60 lookup
measure alloc 30 alloc
measure driver 60 driver
measure block 60 block --ratio 4

input=${2:-}
if [ -z "$input" ]; then
  input=$work/usr.tar
  timeout 60 tar -cf "$input" /usr 2>/dev/null
fi
measure file 90 file --input "$input" --ratio 4
finish
