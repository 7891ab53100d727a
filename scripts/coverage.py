#!/usr/bin/env python3
"""coverage.py: which lines that make or return errors did no test run (`make coverage`)?

Runs the tests of the build folder (preset `coverage`, of g++ with --coverage) and asks gcov. Prints
a table by module, and writes the lines to errors.txt in that folder. A report, not a verdict: what
cannot happen on the emulated driver is in it, too. Processes that end without exit handlers
(killed, _exit) count nothing.

    scripts/coverage.py                 all tests
    scripts/coverage.py -- -L tiers     tests that ctest selects
    scripts/coverage.py --no-tests      of the counts that are there
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Makes an Error, passes one on in its own words, or throws. VMEM_TRY and VMEM_ASSIGN run in either
# case.
ERROR = re.compile(r"\bfail\(|\bunexpected\b|\bError\{|\bVMEM_ERROR_\w+|\bthrow\b|\b\w*_error\(|\bnull_argument\(")
# Names a status without making an error of it.
NO_ERROR = re.compile(r"^\s*(//|case\b|#define\b)|[=!]= *VMEM_ERROR_\w+")


@dataclasses.dataclass
class Figures:
    lines: int = 0
    lines_run: int = 0
    error_lines: int = 0
    error_lines_run: int = 0


def counts_of(notes: pathlib.Path, gcov: str) -> list[tuple[str, int, int]]:
    """File, line and count for one object; an object without counts was never run."""
    done = subprocess.run([gcov, "--json-format", "--stdout", notes], cwd=notes.parent, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"coverage: {gcov} failed on {notes}: {done.stderr.strip()[-300:]}")
    return [
        (file["file"], line["line_number"], line["count"])
        for document in done.stdout.splitlines()
        for file in json.loads(document)["files"]
        for line in file["lines"]
    ]


def counts_of_build(build: pathlib.Path, source: pathlib.Path, gcov: str, jobs: int) -> dict[pathlib.Path, dict[int, int]]:
    """Of the files in `source`: how often each line ran in all programs together."""
    counts: dict[pathlib.Path, dict[int, int]] = collections.defaultdict(lambda: collections.defaultdict(int))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(lambda notes: counts_of(notes, gcov), sorted(build.rglob("*.gcno"))):
            for name, line, count in found:
                path = (build / name).resolve()
                if path.is_relative_to(source):
                    counts[path][line] += count
    return counts


def is_error(text: str) -> bool:
    return ERROR.search(text) is not None and NO_ERROR.search(text) is None


def figures(lines: dict[int, int], text: list[str]) -> tuple[Figures, list[int]]:
    """A file's figures, and its lines of errors that did not run."""
    result, missed = Figures(), []
    for number, count in sorted(lines.items()):
        result.lines += 1
        result.lines_run += count > 0
        if number <= len(text) and is_error(text[number - 1]):
            result.error_lines += 1
            result.error_lines_run += count > 0
            if count == 0:
                missed.append(number)
    return result, missed


def share(part: int, whole: int) -> str:
    return f"{part:6} of {whole:6} ({100 * part / whole:5.1f} %)" if whole else f"{'-':>26}"


def report(counts: dict[pathlib.Path, dict[int, int]], source: pathlib.Path) -> tuple[list[str], list[str]]:
    """The table by module, and FILE:LINE: TEXT of each line of errors that did not run."""
    modules: dict[str, Figures] = collections.defaultdict(Figures)
    missed = []
    for path, lines in sorted(counts.items()):
        text = path.read_text().splitlines()
        found, numbers = figures(lines, text)
        missed += [f"{path.relative_to(source.parent)}:{number}: {text[number - 1].strip()}" for number in numbers]
        for name in (path.relative_to(source).parts[0], "all"):
            for field in dataclasses.fields(Figures):
                setattr(modules[name], field.name, getattr(modules[name], field.name) + getattr(found, field.name))
    table = [f"{'module':12} {'lines of errors run':>26} {'all lines run':>26}"]
    for name in sorted(modules, key=lambda name: (name == "all", name)):
        each = modules[name]
        table.append(f"{name:12} {share(each.error_lines_run, each.error_lines)} {share(each.lines_run, each.lines)}")
    return table, missed


def run_tests(build: pathlib.Path, selection: Iterable[str], jobs: int) -> None:
    for old in build.rglob("*.gcda"):
        old.unlink()
    done = subprocess.run(["ctest", "--test-dir", build, "-j", str(jobs), "--timeout", "600", "--output-on-failure", *selection])
    if done.returncode:
        print("coverage: some tests failed; what they ran counts all the same")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/coverage")
    parser.add_argument("--source", type=pathlib.Path, default=ROOT / "src", help="folder whose lines count (default: src)")
    parser.add_argument("--gcov", default=os.environ.get("GCOV", "gcov"), help="that of the build's compiler (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--no-tests", action="store_true", help="only report what was counted before")
    parser.add_argument("selection", nargs="*", help="for ctest, after --")
    args = parser.parse_args()
    build, source = args.build.resolve(), args.source.resolve()
    if not args.no_tests:
        run_tests(build, args.selection, args.jobs)
    counts = counts_of_build(build, source, args.gcov, args.jobs)
    if not any(count for lines in counts.values() for count in lines.values()):
        print(f"coverage: nothing was counted in {build}; build it with the preset coverage and run tests")
        return 1
    table, missed = report(counts, source)
    (build / "errors.txt").write_text("".join(f"{line}\n" for line in missed))
    print(*table, sep="\n")
    print(f"{build / 'errors.txt'}: the {len(missed)} lines of errors that no test ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
