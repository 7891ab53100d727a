#!/usr/bin/env python3
"""Writes the tables of measured figures into the documents, from the records in bench/results.

A document marks where a table goes, and of which records:

    <!-- table: bench/results/h200.json -->
    <!-- end of table -->

`FILE#VIEW` names another table of the same records (scripts/benchmark_views.py).
This script replaces the lines between the two marks. With --check it writes nothing and fails if a
table differs from its records: a figure was typed, or the records are newer. It also fails if a
record names no commit of the history: nobody could measure that again.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import benchmark_views

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "docs/**/*.md")
TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
MARKS = re.compile(r"<!-- (?:table: \S+|end of table) -->")
# Of what the driver itself takes: inputs of the design, in no table of results.
LEFT_OUT = {"driver"}
COMMIT_DIGITS = 7
RESULTS = "bench/results"


def number(value: float) -> str:
    """Four significant digits, without an exponent."""
    if value == 0:
        return "0"
    text = f"{value:.4g}"
    return f"{value:.0f}" if "e" in text else text


def figure(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{number(value)} {unit}"


def figures(record: dict) -> tuple[float, float | None, float | None]:
    """The figure, its ratio to the limit, and the speed of the work where the figure is that of a
    link.
    """
    details = record["details"]
    moved, processed = details.get("moved_gb_per_s"), details.get("processed_gb_per_s")
    if moved is not None and processed is None:  # older records keep them the other way round
        return moved, moved / record["limit"], record["achieved"]
    return record["achieved"], record["ratio"], processed


def row(record: dict) -> str:
    achieved, ratio, processed = figures(record)
    above = " (above its limit)" if record.get("limit_exceeded") else ""
    cells = (
        f"{record['scenario']} {record['variant']}".strip(),
        figure(record["limit"], record["unit"]),
        figure(achieved, record["unit"]),
        "–" if ratio is None else f"{ratio:.3f}{above}",
        benchmark_views.goal(record, number),
        figure(processed, record["unit"]),
    )
    return "| " + " | ".join(cells) + " |\n"


def of_records(name: str, records: list[dict]) -> str:
    shown = [record for record in records if record["scenario"] not in LEFT_OUT]
    if wrong := [record["scenario"] for record in shown if not record["verified"]]:
        raise ValueError(f"{name}: results of {', '.join(wrong)} are not verified")
    devices = sorted({record["device"] + (" (emulated)" if record["emulated"] else "") for record in shown})
    commits = sorted({record["commit"][:COMMIT_DIGITS] for record in shown})
    head = f"{', '.join(devices)}; {'commits' if len(commits) > 1 else 'commit'} {', '.join(commits)}; records: `{name}`.\n\n"
    columns = "| scenario | limit | achieved | ratio | goal | speed of the work |\n|---|---|---|---|---|---|\n"
    return head + columns + "".join(map(row, shown))


def table_of(name: str, root: pathlib.Path) -> str:
    path, _, view = name.partition("#")
    if view:
        return benchmark_views.view(path, view, root)
    return of_records(name, json.loads((root / name).read_text()))


def with_tables(text: str, root: pathlib.Path = ROOT) -> str:
    """The document with its tables as the records have them. Errors: ValueError, OSError."""
    replaced = TABLE.sub(lambda match: match[1] + table_of(match[2], root) + match[4], text)
    if 2 * len(TABLE.findall(text)) != len(MARKS.findall(text)):
        raise ValueError("a table's first or last mark is missing")
    return replaced


def history(root: pathlib.Path = ROOT) -> set[str] | None:
    """The commits that HEAD descends from; None where they are not known: in a source archive or a
    shallow clone.
    """
    shallow, log = (
        subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
        for words in (["rev-parse", "--is-shallow-repository"], ["log", "--format=%H"])
    )
    return set(log.stdout.split()) if log.returncode == 0 and shallow.stdout.strip() == "false" else None


def without_commit(commits: set[str], root: pathlib.Path = ROOT) -> list[str]:
    """Each record of RESULTS that names no commit of `commits`, in words."""
    wrong = []
    for path in sorted((root / RESULTS).glob("*.json")):
        content = json.loads(path.read_text())
        for record in content if isinstance(content, list) else [content]:
            if record.get("commit") not in commits:
                what = f"{record.get('scenario', '')} {record.get('variant', '')}".strip() or "all of it"
                wrong.append(f"{path.relative_to(root)}: {what}: commit {record.get('commit')}")
    return wrong


def documents(root: pathlib.Path = ROOT) -> list[pathlib.Path]:
    return sorted({path for pattern in DOCUMENTS for path in root.glob(pattern)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a document differs")
    arguments = parser.parse_args()
    stale, tables = [], 0
    for path in documents():
        text = path.read_text()
        tables += len(TABLE.findall(text))
        try:
            wanted = with_tables(text)
        except (ValueError, OSError) as error:
            sys.exit(f"benchmark_tables: {path.relative_to(ROOT)}: {error}")
        if wanted == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not arguments.check:
            path.write_text(wanted)
    if stale and arguments.check:
        print(f"benchmark_tables: not what the records say: {', '.join(stale)}; run scripts/benchmark_tables.py")
        return 1
    commits = history() if arguments.check else None
    if commits is not None and (wrong := without_commit(commits)):
        print("benchmark_tables: records that name no commit of the history:\n  " + "\n  ".join(wrong))
        return 1
    outcome = f"written into {', '.join(stale)}" if stale else "as the records have them"
    print(f"benchmark_tables: {tables} tables, {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
