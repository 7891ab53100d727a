#!/bin/sh
# shellcheck disable=SC2034,SC2154,SC1091  # measure.sh reads `name`, and sets the rest
# Measures what lies below host memory on a GPU host, as h200.sh measures the rest:
#     h200-tiers.sh OUT [DIR]
# writes all records to OUT/h200-tiers.json and the tables to OUT/h200-tiers-tables.txt. DIR: a
# folder on the disk to measure, with 16 GiB free; /var/tmp without it. Takes at most ten minutes.
# Network rows are of two processes of this host; they are held against ucx_perftest too where that
# is installed (ucx-utils), `tier` against fio where that is.
set -u
name=h200-tiers
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?"h200-tiers.sh: name a folder for the results"}
. "$here/measure.sh"
disk=$(mktemp -d "${2:-/var/tmp}/vmem-tiers.XXXXXX") || exit 2
trap 'rm -rf "$work" "$disk"' EXIT

small='--hbm 512MiB --host 512MiB'
measure map 60 map $small --input "$disk"
measure stream-nvme 90 stream $small --nvme "$disk:12GiB" --ratio 4 --passes 1
measure tier 180 tier --nvme "$disk:6GiB" --working-set 512MiB --repeats 2
measure compress 90 compress --nvme "$disk:6GiB" --repeats 2 --option compress=auto
measure net 120 net --option remote_channels=4
finish
