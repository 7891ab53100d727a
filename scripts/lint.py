#!/usr/bin/env python3
"""Runs clang-tidy over src/, tools/, bench/ and examples/, with the flags of the release build.

A file is linted again only when it, a header it includes, its flags, the checks or clang-tidy have
changed: a clean result is kept in .cache/lint under the hash of all of these. What a file includes
is what the build recorded.

The checks that take more than half of the time are the set SLOW. `make test` runs the others over
what has changed lately (--recent), headers through one source each, or over everything if the
checks themselves have; the nightly runs all of them over everything.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

from shards import ALL, NIGHTLY, part_of_nightly

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLANG_TIDY = os.environ.get("CLANG_TIDY", "clang-tidy-19")
FOLDERS = ("src", "tools", "bench", "examples")
# Each of the last three takes longer than most others together.
SLOW = ("clang-analyzer-*", "performance-unnecessary-value-param", "bugprone-use-after-move", "bugprone-infinite-loop")
EXTRA = [
    # g++ knows flags that clang does not.
    "--extra-arg=-Wno-unknown-warning-option",
    "--extra-arg=-Wno-ignored-optimization-argument",
    # Compiler warnings are g++'s: clang has others, of g++'s attributes and inside libstdc++.
    "--extra-arg=-Wno-error",
    # The static analyzer stays within functions: following every call takes three times as long as
    # all other checks.
    "--extra-arg=-Xclang",
    "--extra-arg=-analyzer-config",
    "--extra-arg=-Xclang",
    "--extra-arg=mode=shallow",
]


def dependencies(build: pathlib.Path) -> dict[str, list[str]]:
    """Object file -> files of this tree that it was compiled from."""
    listing = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    found: dict[str, list[str]] = {}
    files: list[str] = []
    paths: dict[str, pathlib.Path] = {}  # most lines are the same few thousand headers
    for line in listing.splitlines():
        if match := re.match(r"(\S.*): #deps", line):
            files = found.setdefault(match[1], [])
        elif line.startswith("    "):
            path = paths.get(line) or paths.setdefault(line, (build / line.strip()).resolve())
            if path.is_relative_to(ROOT):
                files.append(str(path))
    return found


def of_set(name: str) -> str:
    """--checks= of clang-tidy for a set of those that .clang-tidy turns on."""
    if name == "all":
        return ""
    if name == "quick":
        return ",".join(f"-{check}" for check in SLOW)
    # Only what .clang-tidy takes out of the analyzer's groups has to be taken out again.
    configured = (ROOT / ".clang-tidy").read_text()
    off = re.findall(r"^  (-clang-analyzer-[^,\s]+)", configured, re.MULTILINE)
    return ",".join(("-*", *SLOW, *off))


def changed_in(commits: int) -> set[str] | None:
    """What differs from the commit before the last `commits` ones. None: everything counts."""
    def names(*words: str) -> list[str] | None:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.splitlines() if done.returncode == 0 else None

    # What decides which checks run. This file does, too, but few of its changes change a check.
    everything = (".clang-tidy", "scripts/bootstrap.sh", "cmake/VmemOptions.cmake")
    tracked = names("diff", "--name-only", f"HEAD~{commits}")
    untracked = names("ls-files", "--others", "--exclude-standard")
    if tracked is None or untracked is None or not set(everything).isdisjoint(tracked):
        return None
    return {str(ROOT / name) for name in (*tracked, *untracked)}


def sources_of(changed: set[str], included: dict[str, set[str]]) -> set[str]:
    """The sources that have changed, and for each changed header that none of those includes one
    that does, preferably the one that is named after it. `included`: files by source.
    """
    chosen = changed & included.keys()
    seen: set[str] = set().union(*(included[source] for source in chosen))
    for header in sorted(changed - included.keys()):
        users = [source for source, files in included.items() if header in files]
        if header in seen or not users:
            continue
        stem = pathlib.Path(header).stem
        user = min(users, key=lambda source: (pathlib.Path(source).stem != stem, len(included[source]), source))
        chosen.add(user)
        seen |= included[user]
    return chosen


def enabled(checks: str) -> set[str]:
    command = [CLANG_TIDY, "--list-checks", f"--checks={checks}"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return set(listing.split()[2:])  # "Enabled checks:"


def require_complete_sets() -> None:
    whole, quick, slow = (enabled(of_set(name)) for name in ("all", "quick", "slow"))
    if missing := whole ^ (quick | slow):
        sys.exit(f"lint: quick and slow checks together are not those of .clang-tidy; they differ in {', '.join(sorted(missing))}")


def digest(entry: dict, files: list[str], common: bytes) -> str:
    result = hashlib.sha256(common)
    result.update(entry["command"].encode())
    for name in sorted({entry["file"], *files}):
        result.update(name.encode() + b"\0" + pathlib.Path(name).read_bytes())
    return result.hexdigest()


def lint(entry: dict, build: pathlib.Path, checks: str) -> tuple[str, float, str]:
    """Path, seconds, findings (empty when clean)."""
    start = time.monotonic()
    done = subprocess.run([CLANG_TIDY, "--quiet", f"--checks={checks}", "-p", build, *EXTRA, entry["file"]], capture_output=True, text=True)
    findings = done.stdout + done.stderr if done.returncode else ""
    return str(pathlib.Path(entry["file"]).relative_to(ROOT)), time.monotonic() - start, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="lint only files whose path contains one of these")
    parser.add_argument("--build", default="build/release", help="folder of the build (default: %(default)s)")
    parser.add_argument("--checks", choices=("all", "quick", "slow"), default="all", help="set of checks (default: %(default)s)")
    parser.add_argument("--part", choices=(*NIGHTLY, ALL), default=ALL, help="only the files of a part (default: %(default)s)")
    parser.add_argument("--recent", type=int, metavar="N", help="only files that have changed in the last N commits or since; headers through a source that includes them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()

    build = (ROOT / args.build).resolve()
    cache = ROOT / ".cache" / "lint"
    cache.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([CLANG_TIDY, "--version"], check=True, capture_output=True).stdout
    require_complete_sets()
    checks = of_set(args.checks)
    common = version + (ROOT / ".clang-tidy").read_bytes() + " ".join((*EXTRA, checks)).encode()
    included = dependencies(build)
    recent = changed_in(args.recent) if args.recent else None

    entries = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in FOLDERS:
            continue
        if args.paths and not any(part in entry["file"] for part in args.paths):
            continue
        if args.part not in (ALL, part_of_nightly(str(path.relative_to(ROOT)))):
            continue
        arguments = shlex.split(entry["command"])
        target = entry.get("output") or arguments[arguments.index("-o") + 1]
        entries.append((entry, included.get(target, [])))
    if recent is not None:
        chosen = sources_of(recent, {entry["file"]: set(files) - {entry["file"]} for entry, files in entries})
        entries = [(entry, files) for entry, files in entries if entry["file"] in chosen]
    todo = [(entry, key) for entry, files in entries if not (key := cache / digest(entry, files, common)).exists()]
    todo.sort(key=lambda item: -pathlib.Path(item[0]["file"]).stat().st_size)

    dirty = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(lint, entry, build, checks): key for entry, key in todo}
        for future in concurrent.futures.as_completed(running):
            path, seconds, findings = future.result()
            if findings:
                dirty += 1
                print(f"{path}:\n{findings}", flush=True)
            else:
                running[future].touch()
                print(f"{path}: clean, {seconds:.1f} s", flush=True)
    print(f"lint: {len(entries)} files, {len(entries) - len(todo)} unchanged since clean, {dirty} with findings")
    return 1 if dirty else 0


if __name__ == "__main__":
    sys.exit(main())
