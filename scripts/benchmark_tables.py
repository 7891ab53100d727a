#!/usr/bin/env python3
"""Writes the tables of measured figures into the documents, from the records in bench/results.

A document marks where a table goes, and of which records:

    <!-- table: bench/results/h200.json -->
    <!-- end of table -->

This script replaces the lines between the two marks. With --check it writes nothing and fails if a
table differs from its records: a figure was typed, or the records are newer.
"""

import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "docs/**/*.md")
TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
MARKS = re.compile(r"<!-- (?:table: \S+|end of table) -->")
# Of what the driver itself takes: inputs of the design, in no table of results.
LEFT_OUT = {"driver"}
COMMIT_DIGITS = 7


def number(value: float) -> str:
    """Four significant digits, without an exponent."""
    if value == 0:
        return "0"
    text = f"{value:.4g}"
    return f"{value:.0f}" if "e" in text else text


def figure(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{number(value)} {unit}"


def goal(record: dict) -> str:
    wanted = record.get("goal")
    if not wanted:
        return ""
    sign = "≥" if wanted["bound"] == "at_least" else "≤"
    missed = " ✗" if wanted["met"] is False else ""
    return f"{sign} {number(wanted['value'])}{missed}"


def row(record: dict) -> str:
    moved = record["details"].get("moved_gb_per_s")
    ratio, limit = record["ratio"], record["limit"]
    cells = (
        f"{record['scenario']} {record['variant']}".strip(),
        figure(limit, record["unit"]),
        figure(record["achieved"], record["unit"]),
        "–" if ratio is None else f"{ratio:.3f}",
        goal(record),
        "–" if moved is None or not limit else f"{moved / limit:.3f}",
    )
    return "| " + " | ".join(cells) + " |\n"


def of_records(name: str, records: list[dict]) -> str:
    shown = [record for record in records if record["scenario"] not in LEFT_OUT]
    if wrong := [record["scenario"] for record in shown if not record["verified"]]:
        raise ValueError(f"{name}: results of {', '.join(wrong)} are not verified")
    devices = sorted({record["device"] + (" (emulated)" if record["emulated"] else "") for record in shown})
    commits = sorted({record["commit"][:COMMIT_DIGITS] for record in shown})
    head = f"{', '.join(devices)}; {'commits' if len(commits) > 1 else 'commit'} {', '.join(commits)}; records: `{name}`.\n\n"
    columns = "| scenario | limit | achieved | ratio | goal | over the link |\n|---|---|---|---|---|---|\n"
    return head + columns + "".join(map(row, shown))


def with_tables(text: str, root: pathlib.Path = ROOT) -> str:
    """The document with its tables as the records have them. Errors: ValueError, OSError."""
    replaced = TABLE.sub(lambda match: match[1] + of_records(match[2], json.loads((root / match[2]).read_text())) + match[4], text)
    if 2 * len(TABLE.findall(text)) != len(MARKS.findall(text)):
        raise ValueError("a table's first or last mark is missing")
    return replaced


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
    outcome = f"written into {', '.join(stale)}" if stale else "as the records have them"
    print(f"benchmark_tables: {tables} tables, {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
