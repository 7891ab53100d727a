#!/usr/bin/env python3
"""Replays the recorded programs of bench/traces with less HBM, and compares with the last record.

    scripts/replays.py           prints a table; fails where a program takes longer, moves more or
                                 maps more than bench/results/replays.json says, by more than SLACK,
                                 or all together by more than MEAN_SLACK
    scripts/replays.py --write   writes that record anew

A replay is in virtual time, by the mover, the policy and the allocator themselves, and comes out
the same every time (docs/internals/trace.md). So a difference is one of their decisions. Times are
ms of a period: of a step, or of as many as it takes the program to repeat itself.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRACES = ROOT / "bench" / "traces"
RECORD = ROOT / "bench" / "results" / "replays.json"
# What may differ, as a part of the recorded figure. A single one goes up and down by some percent
# with anything that changes the order of events.
SLACK = 0.1
MEAN_SLACK = 0.01
COMPARED = ("ms", "in_gib", "out_gib", "maps")
# Differences of so little say nothing.
LEAST = {"ms": 0.5, "in_gib": 0.05, "out_gib": 0.05, "maps": 5}


def plan(vmem: str, trace: pathlib.Path) -> dict:
    done = subprocess.run([vmem, "plan", str(trace), "--within", "0", "--json", "-"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"replays: vmem plan {trace} ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    return json.loads(done.stdout)


def commit_of(vmem: str) -> str:
    version = subprocess.run([vmem, "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"commit ([0-9a-f]+)\)", version)
    if match is None:
        sys.exit(f"replays: {version.strip()}: a record names a commit; commit what was changed, then build")
    return match[1]


def regressions(name: str, now: dict, then: dict) -> list[str]:
    """In words, what takes more now than then."""
    found = []
    known = {row["hbm_bytes"]: row for row in then["rows"]}
    for missing in sorted(known.keys() - {row["hbm_bytes"] for row in now["rows"]}):
        found.append(f"{name}: nothing was played in {missing} bytes of HBM, which the record has")
    if now["fits"]["ms"] > then["fits"]["ms"] * (1 + SLACK) + LEAST["ms"]:
        found.append(f"{name}, where all fits: ms {now['fits']['ms']:.4g}, recorded {then['fits']['ms']:.4g}")
    for row in now["rows"]:
        before = known.get(row["hbm_bytes"])
        if before is None:
            found.append(f"{name}: the record has no row for {row['hbm_bytes']} bytes of HBM")
            continue
        for what in COMPARED:
            if row[what] > before[what] * (1 + SLACK) + LEAST[what]:
                found.append(f"{name} in {row['hbm_bytes'] / 2**30:.2f} GiB: {what} {row[what]:.4g}, recorded {before[what]:.4g}")
    return found


def slower_together(now: dict[str, dict], then: dict[str, dict]) -> list[str]:
    """In words, if the programs' times are longer now, by the geometric mean of their ratios."""
    ratios = []
    for name in now.keys() & then.keys():
        before = {row["hbm_bytes"]: row["ms"] for row in then[name]["rows"]}
        ratios += [row["ms"] / before[row["hbm_bytes"]] for row in now[name]["rows"] if row["hbm_bytes"] in before]
    if not ratios or (mean := statistics.geometric_mean(ratios)) <= 1 + MEAN_SLACK:
        return []
    return [f"all together take {(mean - 1) * 100:.1f} % longer"]


def lines(name: str, plan_of: dict, then: dict | None) -> list[str]:
    before = {row["hbm_bytes"]: row for row in then["rows"]} if then else {}
    text = []
    for row in plan_of["rows"]:
        old = before.get(row["hbm_bytes"])
        change = f"{(row['ms'] / old['ms'] - 1) * 100:+6.1f} %" if old else " " * 8
        text.append(
            f"{name:12} 1/{plan_of['peak_bytes'] / row['hbm_bytes']:<5.2f} {row['ms']:8.1f} ms {change} "
            f"{row['ms'] / row['schedule_ms']:5.2f} of the schedule  in {row['in_gib']:6.2f} out {row['out_gib']:6.2f} GiB "
            f"maps {row['maps']:6.0f}"
        )
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these programs")
    parser.add_argument("--write", action="store_true", help="write the record anew")
    parser.add_argument("--vmem", default=str(ROOT / "build" / "release" / "bin" / "vmem"), help="the program (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    traces = {path.stem: path for path in sorted(TRACES.glob("*.trace")) if not arguments.names or path.stem in arguments.names}
    if not traces or (arguments.write and arguments.names):
        sys.exit(f"replays: {'a record holds all programs' if traces else f'no trace of these names is in {TRACES}'}")
    record = json.loads(RECORD.read_text())["plans"] if RECORD.exists() else {}
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        plans = dict(zip(traces, pool.map(lambda path: plan(arguments.vmem, path), traces.values())))
    wrong = []
    for name, made in plans.items():
        print("\n".join(lines(name, made, record.get(name))))
        if name in record:
            wrong += regressions(name, made, record[name])
        elif not arguments.write:
            wrong.append(f"{name}: not in the record")
    if arguments.write:
        content = {"commit": commit_of(arguments.vmem), "command": "scripts/replays.py --write", "plans": plans}
        RECORD.write_text(json.dumps(content, indent=1) + "\n")
        return 0
    if not arguments.names:
        wrong += slower_together(plans, record)
        wrong += [f"{name}: in the record, and has no trace" for name in sorted(record.keys() - plans.keys())]
    for each in wrong:
        print(f"replays: {each}")
    print(f"replays: {len(plans)} programs, {len(wrong)} figures worse than recorded")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
