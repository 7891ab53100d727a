#!/usr/bin/env python3
"""Format, build, tests, lint and house for what changed: minutes while working, where `make test`
takes half an hour.

What changed is the working tree against BASE, by default the commit at which this branch left the
main one. Every changed file belongs to CMake targets: those that compile it, include it (as the
last build recorded), or have their sources beside it. These targets and all that use them, by
CMake's own graph, are built in the release preset, and their tests run but for those labelled long.
What is left out is printed; the nightly runs it, or a machine with a GPU.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterable

import lint
import shards

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
MAIN = ("origin/main", "origin/master", "main", "master")
LEFT_OUT = ("long", "hardware")
SOURCES = (".c", ".cpp", ".cu", ".cuh", ".h", ".hpp")


@dataclasses.dataclass(frozen=True)
class Target:
    name: str
    folder: str  # of its CMakeLists.txt
    sources: frozenset[str]
    artifacts: frozenset[str]  # absolute paths
    uses: frozenset[str]
    is_built: bool = True  # False: of other targets' commands only


# ---- what changed ----


def git(*words: str, root: pathlib.Path = ROOT) -> list[str]:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"check: git {' '.join(words)}: {done.stderr.strip()}")
    return [name for name in done.stdout.split("\0") if name]


def base_of(root: pathlib.Path = ROOT) -> str:
    """Where HEAD left the main branch; HEAD, where there is no main branch."""
    for branch in MAIN:
        done = subprocess.run(["git", "merge-base", "HEAD", branch], cwd=root, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    return "HEAD"


def changed_files(base: str, root: pathlib.Path = ROOT) -> list[str]:
    tracked = git("diff", "--name-only", "--no-renames", "-z", base, "--", root=root)
    return sorted({*tracked, *git("ls-files", "--others", "--exclude-standard", "-z", root=root)})


# ---- targets ----


def ask_for_targets() -> None:
    """CMake answers when it configures."""
    query = BUILD / ".cmake/api/v1/query/codemodel-v2"
    query.parent.mkdir(parents=True, exist_ok=True)
    query.touch()


def read_targets() -> dict[str, Target]:
    reply = BUILD / ".cmake/api/v1/reply"
    index = json.loads(max(reply.glob("index-*.json")).read_text())
    model = json.loads((reply / index["reply"]["codemodel-v2"]["jsonFile"]).read_text())
    entries = [json.loads((reply / each["jsonFile"]).read_text()) for each in model["configurations"][0]["targets"]]
    names = {entry["id"]: entry["name"] for entry in entries}
    return {
        entry["name"]: Target(
            name=entry["name"],
            folder=entry["paths"]["source"],
            sources=frozenset(source["path"] for source in entry.get("sources", ())),
            artifacts=frozenset(str(BUILD / artifact["path"]) for artifact in entry.get("artifacts", ())),
            uses=frozenset(names[each["id"]] for each in entry.get("dependencies", ())),
            is_built=entry["type"] not in ("UTILITY", "INTERFACE_LIBRARY"),
        )
        for entry in entries
    }


def includers() -> dict[str, set[str]]:
    """File -> targets whose objects included it when they were last compiled."""
    found: dict[str, set[str]] = {}
    if not (BUILD / ".ninja_deps").exists():
        return found
    for compiled, files in lint.dependencies(BUILD).items():
        if match := re.search(r"CMakeFiles/([^/]+)\.dir/", compiled):
            for file in files:
                found.setdefault(str(pathlib.Path(file).relative_to(ROOT)), set()).add(match[1])
    return found


def beside(path: str, targets: dict[str, Target]) -> set[str]:
    """Targets with sources in the file's folder, or in the nearest one above it that has some."""
    for folder in map(str, pathlib.PurePath(path).parents):
        if found := {each.name for each in targets.values() if any(str(pathlib.PurePath(s).parent) == folder for s in each.sources)}:
            return found
    return set()


def owners(path: str, targets: dict[str, Target], included: dict[str, set[str]]) -> set[str]:
    name = pathlib.PurePath(path)
    if str(name.parent) == "cmake" or path in ("CMakeLists.txt", "CMakePresets.json"):
        return set(targets)
    if name.name == "CMakeLists.txt":
        folder = f"{name.parent}/"
        return {each.name for each in targets.values() if f"{each.folder}/".startswith(folder)}
    if compiling := {each.name for each in targets.values() if path in each.sources}:
        return compiling
    if name.suffix not in (*SOURCES, ".map"):
        return set()
    return included.get(path, set()) & set(targets) or beside(path, targets)


def with_users(names: Iterable[str], targets: dict[str, Target]) -> set[str]:
    found = set(names)
    while more := {each.name for each in targets.values() if each.name not in found and each.uses & found}:
        found |= more
    return found


# ---- tests ----


def words_of(test: dict) -> list[str]:
    """The test's command, its options' values, and the values of its environment."""
    environment = next((each["value"] for each in test.get("properties", ()) if each["name"] == "ENVIRONMENT"), [])
    return [*test.get("command", ()), *(line.partition("=")[2] for line in environment)]


def needs(test: dict, targets: dict[str, Target]) -> set[str]:
    """Targets whose files the test's command names; all, where it names a folder of the build."""
    words = words_of(test)
    if any(word in (str(BUILD), str(BUILD / "bin"), str(BUILD / "lib")) for word in words):
        return {each.name for each in targets.values() if each.is_built}
    real = {word if not word.startswith(str(BUILD)) else os.path.realpath(word) for word in words} | set(words)
    return {each.name for each in targets.values() if each.artifacts & real}


def reads_any(test: dict, changed: Iterable[str]) -> bool:
    """Whether its command names a changed file, a folder that holds one, or a script beside one."""
    places = []
    for word in test.get("command", ()):
        path = pathlib.Path(word)
        if path.is_absolute() and path.is_relative_to(ROOT) and not path.is_relative_to(BUILD):
            places.append((path.parent if path.suffix in (".py", ".sh") else path).relative_to(ROOT))
    return any(pathlib.PurePath(file).is_relative_to(place) for file in changed for place in places)


def left_out(test: dict) -> bool:
    return bool(set(LEFT_OUT) & set(shards.labels_of(test)))


def group_of(test: dict) -> str:
    """The program of the tests that it belongs to; for others, such as scripts, what its name
    begins with.
    """
    program = pathlib.Path(test["command"][0])
    return program.name if program.is_relative_to(BUILD) else test["name"].partition(".")[0]


def chosen(tests: list[dict], changed: list[str], affected: set[str], targets: dict[str, Target]) -> list[int]:
    """Numbers of the tests that use an affected target or read a changed file, long ones included.
    """
    return [
        number
        for number, test in enumerate(tests, 1)
        if shards.is_built(test) and (needs(test, targets) & affected or reads_any(test, changed))
    ]


# ---- stages ----


def ran(*command: object) -> bool:
    return subprocess.run([str(word) for word in command], cwd=ROOT).returncode == 0


class Stages:
    def __init__(self) -> None:
        self.rows: list[tuple[str, bool, float]] = []

    def run(self, name: str, work) -> bool:
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        self.rows.append((name, work(), time.monotonic() - start))
        return self.rows[-1][1]

    def summary(self) -> bool:
        print()
        for name, good, seconds in self.rows:
            print(f"{name:<12} {'ok' if good else 'FAILED':<7} {seconds:5.0f} s")
        good = all(row[1] for row in self.rows)
        print(f"{'total':<12} {'ok' if good else 'FAILED':<7} {sum(row[2] for row in self.rows):5.0f} s")
        return good


def build(names: Iterable[str], targets: dict[str, Target], jobs: int) -> bool:
    wanted = sorted(name for name in names if targets[name].is_built)
    return not wanted or ran("cmake", "--build", BUILD, "-j", jobs, "--target", *wanted)


def run_tests(changed: list[str], affected: set[str], targets: dict[str, Target], jobs: int) -> bool:
    tests = shards.listed("release")
    numbers = chosen(tests, changed, affected, targets)
    now = [number for number in numbers if not left_out(tests[number - 1])]
    needed = set().union(*(needs(tests[number - 1], targets) for number in now))
    if not build(needed, targets, jobs):
        return False
    later = sorted({group_of(tests[number - 1]) for number in set(numbers) - set(now)})
    print(f"of {len(numbers)} tests that use what changed, {len(numbers) - len(now)} are left to the nightly, "
          f"labelled {' or '.join(LEFT_OUT)}{': ' if later else ''}{', '.join(later)}")
    return shards.run("release", now, ["-j", str(jobs)]) == 0


def lint_files(changed: list[str]) -> list[str]:
    """Changed sources, and those named after a changed header; `make lint` finds what else includes
    it.
    """
    stems = {path.rpartition(".")[0] + "." for path in changed if path.endswith((".cpp", ".hpp", ".h"))}
    return sorted(stem for stem in stems if stem.startswith(tuple(f"{folder}/" for folder in lint.FOLDERS)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="commit to compare with (default: where this branch left the main one)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="only say which targets and programs of tests it would take")
    args = parser.parse_args()

    base = args.base or base_of()
    changed = changed_files(base)
    print(f"check: {len(changed)} files changed since {base[:12]}")
    ask_for_targets()
    if not ran("cmake", "--preset", "release", "--log-level=WARNING"):
        return 1
    targets = read_targets()
    included = includers()
    touched = set().union(*(owners(path, targets, included) for path in changed))
    affected = with_users(touched, targets)
    print(f"touched: {', '.join(sorted(touched)) or 'no target'}")
    print(f"using them: {', '.join(sorted(affected - touched)) or 'no target'}")
    if args.list:
        return 0

    stages = Stages()
    (ROOT / "build" / "failures.txt").unlink(missing_ok=True)
    stages.run("format", lambda: ran("scripts/format.sh", "--check"))
    if stages.run("build", lambda: build(affected, targets, args.jobs)):
        stages.run("tests", lambda: run_tests(changed, affected, targets, args.jobs))
        if files := lint_files(changed):
            stages.run("lint", lambda: ran("scripts/lint.py", "--checks", "quick", "--jobs", args.jobs, *files))
        stages.run("house", lambda: ran("scripts/house.py"))
    print("\nleft to `make test`: tests of what is not touched, sanitizers, the linter on what else includes a changed header, distribution, wheel")
    return 0 if stages.summary() else 1


if __name__ == "__main__":
    sys.exit(main())
