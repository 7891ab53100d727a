#!/usr/bin/env python3
"""Fuzzes the decoders of bytes from outside of the process, with libFuzzer (targets in tests/fuzz).

    scripts/fuzz.py SECONDS_EACH [TARGET ...]    builds the preset fuzz, runs each target so long
        --seed N       libFuzzer's seed of the first target, then one more (default: random)
        --jobs N       targets at once (default: one for each processor)
        --merge        afterwards, replaces the kept corpora by smallest sets that cover as much

A run begins with the kept corpus, tests/fuzz/corpus/TARGET, and with inputs found by earlier runs,
in build/fuzz/found. Failing inputs are kept in build/fuzz/failed. Merging keeps corpus files that
people named: those are regression tests.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
CORPORA = ROOT / "tests" / "fuzz" / "corpus"
MOST_FILES, MOST_BYTES = 100, 200 << 10  # of a corpus
MOST_INPUT_BYTES = 4096
FOUND_NAME = re.compile(r"[0-9a-f]{40}")  # what libFuzzer calls an input
OPTIONS = (f"-max_len={MOST_INPUT_BYTES}", "-timeout=60", "-rss_limit_mb=4096")
ENVIRONMENT = os.environ | {
    # As in the preset asan-ubsan.
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1:intercept_tls_get_addr=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "ASAN_SYMBOLIZER_PATH": shutil.which("llvm-symbolizer-19") or "",
}


@dataclasses.dataclass
class Outcome:
    target: str
    seed: int
    runs: int
    coverage: int
    failed: bool  # also if it has run no input
    log: pathlib.Path


def all_targets() -> list[str]:
    return sorted(re.findall(r"^vmem_fuzz\((\w+)", (ROOT / "tests/fuzz/CMakeLists.txt").read_text(), re.MULTILINE))


def program(target: str) -> pathlib.Path:
    return BUILD / "bin" / f"fuzz_{target}"


def build(targets: list[str], jobs: int) -> None:
    for command in (
        ["cmake", "--preset", "fuzz"],
        ["cmake", "--build", "--preset", "fuzz", "-j", str(jobs), "--target", *(f"fuzz_{target}" for target in targets)],
    ):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{done.stdout[-8000:]}\nfuzz: {shlex.join(command)} failed")


def folder(kind: str, target: str) -> pathlib.Path:
    path = BUILD / kind / target
    path.mkdir(parents=True, exist_ok=True)
    return path


def number(pattern: str, text: str) -> int:
    return int((re.findall(pattern, text) or ["0"])[-1])


def fuzz(target: str, seconds: int, seed: int) -> Outcome:
    failed = folder("failed", target)
    log = BUILD / f"{target}.log"
    inputs = [folder("found", target), CORPORA / target]
    command = [program(target), *OPTIONS, f"-seed={seed}", f"-max_total_time={seconds}", "-print_final_stats=1",
               f"-artifact_prefix={failed}/", *filter(pathlib.Path.exists, inputs)]
    with log.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=ENVIRONMENT)
    text = log.read_text(errors="replace")
    runs = number(r"stat::number_of_executed_units:\s*(\d+)", text)
    return Outcome(target, seed, runs, number(r"cov: (\d+)", text), done.returncode != 0 or runs == 0, log)


def report(outcome: Outcome) -> None:
    print(f"{outcome.target:18} seed {outcome.seed:<11} {outcome.runs:>10} runs  {outcome.coverage:>6} edges  "
          f"{'FAILED' if outcome.failed else 'ok'}", flush=True)
    if not outcome.failed:
        return
    text = outcome.log.read_text(errors="replace")
    print(text[-4000:])
    if outcome.runs == 0:
        print(f"fuzz: {outcome.target} did nothing: no input was run, or it ended before it said how many", flush=True)
    for path in re.findall(r"Test unit written to (\S+)", text):
        print(f"fuzz: the input is {path}\nfuzz: replay it: {program(outcome.target)} {path}", flush=True)


def spread(paths: list[pathlib.Path], most: int) -> list[pathlib.Path]:
    """A sample of all sizes: the smallest inputs are mostly refusals, the largest mostly alike."""
    paths.sort(key=lambda each: (each.stat().st_size, each.name))
    count = min(most, len(paths))
    return [paths[i * len(paths) // count] for i in range(count)]


def merge(target: str) -> None:
    """Replaces the kept corpus by few known inputs that cover as much as all, within its limits."""
    kept = CORPORA / target
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as merged:
        subprocess.run([program(target), *OPTIONS, "-set_cover_merge=1", merged, kept, folder("found", target)],
                       check=True, capture_output=True, env=ENVIRONMENT)
        for path in kept.iterdir():
            if FOUND_NAME.fullmatch(path.name):
                path.unlink()
        left_bytes = MOST_BYTES - sum(path.stat().st_size for path in kept.iterdir())
        for path in spread(list(pathlib.Path(merged).iterdir()), MOST_FILES - len(list(kept.iterdir()))):
            left_bytes -= path.stat().st_size
            if left_bytes >= 0:
                shutil.copy(path, kept / path.name)
    files = list(kept.iterdir())
    print(f"{target:18} {len(files):4} inputs, {sum(path.stat().st_size for path in files)} bytes", flush=True)


def main() -> int:
    known = all_targets()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=int, metavar="SECONDS_EACH")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(known))
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 31))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--merge", action="store_true")
    args = parser.parse_args()
    targets = args.targets or known
    if unknown := set(targets) - set(known):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(known)}")

    if not targets or args.seconds <= 0 and not args.merge:
        parser.error("that would do nothing: it takes a target, and more than 0 seconds or --merge")

    build(targets, args.jobs)
    outcomes = []
    if args.seconds > 0:
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            running = [pool.submit(fuzz, target, args.seconds, args.seed + i) for i, target in enumerate(targets)]
            for future in concurrent.futures.as_completed(running):
                outcomes.append(future.result())
                report(outcomes[-1])
    failed = [outcome.target for outcome in outcomes if outcome.failed]
    if args.merge:
        for target in targets:
            if target not in failed:
                merge(target)
    if failed:
        print(f"fuzz: failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
