# Sourced by h200.sh and h200-tiers.sh, which set `name`, `here` and `out`. Every scenario is a run
# of its own, so one that fails or hangs does not take the others' results with it.
vmem=$(command -v "$here/bin/vmem" || command -v "$here/../../bin/vmem" || command -v vmem) || {
  echo "$name: no vmem program; run this inside a distribution folder, or put its bin folder on PATH" >&2
  exit 2
}
mkdir -p "$out"
work=$(mktemp -d -t vmem-bench.XXXXXX)
trap 'rm -rf "$work"' EXIT
tables=$out/$name-tables.txt
: >"$tables"
failed=0

# measure NAME LIMIT_S ARGUMENTS...: one run of the program. DRIVER: the driver, auto if not set.
measure() {
  part=$1
  limit_s=$2
  shift 2
  if ! timeout "$limit_s" "$vmem" bench "$@" --driver "${DRIVER:-auto}" --json "$work/$part.json" >>"$tables" 2>&1; then
    echo "$name: $part failed or took more than $limit_s s; see $tables" >&2
    failed=1
  fi
}

# Writes all records to OUT/NAME.json, prints the tables and ends. The files are arrays,
# pretty-printed: without their first and last lines they join to one.
finish() {
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
  } >"$out/$name.json"
  cat "$tables"
  exit $failed
}
