#!/usr/bin/env python3
"""Attacks the release build for a given time: random programs, kills, dying disks, hostile bytes
and calls, failing allocations.

    scripts/campaign.py [--seconds N] [--seed N] [--only KIND ...] [--part PART] [--json FILE]

Each kind of attack has a share of the time and repeats its command with new seeds until that is
spent. The seed of a round is printed before it starts. The end of a failed round's output is shown;
all of it is kept in build/campaign/. A round that did nothing fails, unless the machine cannot do
it: then the table says `skipped` and why. Needs the release build; exits with 1 on a failure.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import time

from provenance import provenance
from shards import ALL, NIGHTLY

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = "build/release/bin"
LOGS = ROOT / "build" / "campaign"
HANG_S = 1200  # well above the longest round
SHOWN_LINES = 60  # of what a failed round printed
# GoogleTest's words, and the test's reason.
SKIPPED = re.compile(r"^.+:\d+: Skipped\n(.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    what: str
    share: int  # of the time, relative to the others
    command: str  # {seed} is replaced
    environment: dict[str, str]  # likewise
    unit: str
    counted: str  # regular expression: a numeric group is added, another match counts one
    may_skip: str = ""  # regular expression of reasons for which tests may be skipped; "": none


@dataclasses.dataclass(frozen=True)
class Round:
    done: int
    skipped: list[str]  # why tests were skipped, as the program says it
    failure: str  # "": none


def gtest(program: str, tests: str) -> str:
    return f"{BIN}/{program} --gtest_color=no --gtest_filter={tests}"


KINDS = (
    Kind("churn", "random programs on random chains of tiers; every byte is verified", 6,
         gtest("runtime_model_test", "Seeds/Model.*"),
         {"VMEM_TEST_FIRST_SEED": "{seed}", "VMEM_TEST_SEEDS": "200"}, "programs", r"^seed \d+$"),
    Kind("capacity", "sizes up to the last that malloc accepts, on seven chains of tiers in five orders", 2,
         gtest("usable_test", "*EverySize*"), {"VMEM_TEST_SEED": "{seed}"}, "cases", r"^\[       OK \]"),
    Kind("kills", "programs that are killed and started again", 2,
         gtest("runtime_killed_test", "*EveryStartFindsItsRoom*"),
         {"VMEM_TEST_SEED": "{seed}", "VMEM_TEST_KILLS": "25"}, "scenarios", r"^\[       OK \]"),
    Kind("deaths", "daemons that are killed, stopped and cut off under load", 2,
         gtest("runtime_remote_test", "RemoteDeaths.*:RemoteDeathsOverTls.*:RemoteCutOff.*"),
         {"VMEM_TEST_SEED": "{seed}"}, "scenarios", r"^\[       OK \]", may_skip="network namespace"),
    Kind("disks", "disks that are shut down, full, read-only, lost or removed", 2,
         gtest("dying_disks_test", "*"), {"VMEM_TEST_SEED": "{seed}"}, "deaths", r"^\[       OK \]",
         may_skip=r"only root mounts|mkfs\.ext4 is not there|loop devices cannot be mounted"),
    Kind("memory", "allocations that fail, at most one of each call stack in a round; the seed chooses the order", 2,
         gtest("allocation_failure_test", "*"), {"VMEM_TEST_SEED": "{seed}", "VMEM_TEST_SEEDS": "60"},
         "refusals", r"(\d+) call stacks refused$"),
    Kind("forgery", "pages that are changed in a lender's memory", 1,
         gtest("remote_tier_test", "ForgedPage*"), {"VMEM_TEST_SEED": "{seed}", "VMEM_TEST_FORGED_PAGES": "500"},
         "scenarios", r"^\[       OK \]"),
    Kind("strangers", "hostile bytes on every socket that a process has open", 3,
         f"tests/campaign/strangers.py --bin {BIN} --seed {{seed}} --seconds 60 --connections 20000", {},
         "connections", r": (\d+) connections to "),
    Kind("stops", "daemons and programs that are stopped, continued and killed", 2,
         f"tests/campaign/strangers.py --bin {BIN} --seed {{seed}} --seconds 30 --stops", {},
         "stops, kills", r"'(?:stops|daemon_kills|program_kills)': (\d+)"),
    Kind("cluster", "owners, readers and daemons of a cluster that are killed and started again", 2,
         f"tests/campaign/cluster_kills.py --bin {BIN} --seed {{seed}} --kills 40 --burst 20", {},
         "kills", r"'(?:owners|readers|daemons) killed': (\d+)"),
    Kind("calls", "hostile calls of the whole C API", 3,
         gtest("api_fuzz_test", "*"), {"VMEM_TEST_FIRST_SEED": "{seed}", "VMEM_TEST_SEEDS": "200"}, "programs", r"^seed \d+"),
    Kind("options", "random options, by call, environment and command line", 2,
         gtest("option_fuzz_test", "*"), {"VMEM_TEST_FIRST_SEED": "{seed}", "VMEM_TEST_SEEDS": "200"}, "starts", r"^seed \d+"),
    Kind("decoders", "libFuzzer over everything that reads foreign bytes", 3,
         "scripts/fuzz.py --seed {seed} 10", {}, "inputs", r"(\d+) runs "),
)


def count(counted: str, output: str) -> int:
    return sum(int(found) if str(found).isdigit() else 1 for found in re.findall(counted, output, re.MULTILINE))


def judge(kind: Kind, code: int | str, output: str) -> Round:
    done = count(kind.counted, output)
    skipped = list(dict.fromkeys(SKIPPED.findall(output)))
    failure = ""
    if code != 0:
        failure = f"ended with {code}"
    elif amiss := [why for why in skipped if not kind.may_skip or not re.search(kind.may_skip, why)]:
        failure = f"skipped tests: {'; '.join(amiss)}"
    elif not done and not skipped:
        failure = f"did nothing: it ended with 0 and 0 {kind.unit}"
    return Round(done, skipped, failure)


def run_round(kind: Kind, number: int, seed: int) -> Round:
    words = shlex.split(kind.command.format(seed=seed))
    environment = {name: value.format(seed=seed) for name, value in kind.environment.items()}
    shown = " ".join([*(f"{name}={value}" for name, value in environment.items()), *words])
    print(f"{kind.name}: seed {seed}", flush=True)
    log = LOGS / f"{kind.name}-{number}.log"
    with log.open("w+", errors="replace") as output:
        output.write(f"{shown}\n")
        output.flush()
        try:
            code = subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output,
                                  timeout=HANG_S).returncode
        except subprocess.TimeoutExpired:
            code = f"no end in {HANG_S} s"
        output.seek(0)
        output.readline()  # the command
        text = output.read()
    judged = judge(kind, code, text)
    if not judged.failure:
        log.unlink()
        return judged
    print("\n".join(text.splitlines()[-SHOWN_LINES:]))
    print(f"{kind.name}: FAILED: {judged.failure}: {shown}\n  {log.relative_to(ROOT)}", flush=True)
    return dataclasses.replace(judged, failure=f"{judged.failure}: {shown}")


def run_kind(kind: Kind, seconds: float, seeds: random.Random) -> dict:
    begun = time.monotonic()
    rounds: list[Round] = []
    # A round that did nothing is not repeated: the next one would not do more.
    while not rounds or rounds[-1].done and time.monotonic() - begun < seconds:
        rounds.append(run_round(kind, len(rounds), seeds.randrange(1, 1 << 31)))
    return {"kind": kind.name, "what": kind.what, "rounds": len(rounds), "done": sum(each.done for each in rounds),
            "unit": kind.unit, "seconds": round(time.monotonic() - begun),
            "failures": [each.failure for each in rounds if each.failure],
            "skipped": list(dict.fromkeys(why for each in rounds for why in each.skipped))}


def line(row: dict) -> str:
    skipped = f"  skipped{' in part' if row['done'] else ''}: {'; '.join(row['skipped'])}" if row["skipped"] else ""
    return (f"{row['kind']:<10} {row['rounds']:>6} {row['done']:>10} {row['unit']:<12} {row['seconds']:>7} "
            f"{len(row['failures']):>6}{skipped}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="of all kinds, those that are left out included; each runs at least once (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="of the first round of all (default: random)")
    parser.add_argument("--only", nargs="+", choices=[kind.name for kind in KINDS], metavar="KIND", help="some kinds: %(choices)s")
    parser.add_argument("--part", choices=(*NIGHTLY, ALL), default=ALL, help="some of the kinds, as the nightly takes them; the last parts have none")
    parser.add_argument("--json", type=pathlib.Path, help="write the table there as well")
    args = parser.parse_args()
    kinds = [kind for number, kind in enumerate(KINDS)
             if (not args.only or kind.name in args.only) and args.part in (ALL, NIGHTLY[number % len(NIGHTLY)])]
    if not kinds and args.only:
        parser.error(f"part {args.part} has none of these kinds")
    LOGS.mkdir(parents=True, exist_ok=True)
    print(f"campaign: seed {args.seed}{'' if kinds else f'; part {args.part} has no kind'}")
    seeds = random.Random(args.seed)
    shares = sum(kind.share for kind in KINDS)
    rows = [run_kind(kind, args.seconds * kind.share / shares, random.Random(seeds.random())) for kind in kinds]
    print(f"\n{'kind':<10} {'rounds':>6} {'done':>10} {'':12} {'seconds':>7} {'failed':>6}")
    for row in rows:
        print(line(row))
    for row in rows:
        for failure in row["failures"]:
            print(f"{row['kind']}: FAILED: {failure}")
    if args.json:
        table = {**provenance(), "command": shlex.join(["scripts/campaign.py", *sys.argv[1:]]), "seed": args.seed, "kinds": rows}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(table, indent=2) + "\n")
    return 1 if any(row["failures"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
