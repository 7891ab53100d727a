#!/usr/bin/env python3
"""Writes docs/guide/options.md from `vmem options --json -`, so that options are described once.

With --check it writes nothing and fails if the document differs from the program's table.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs/guide/options.md"
PROGRAM = ROOT / "build/release/bin/vmem"
HEAD = """# Options

`scripts/option_guide.py` writes this page from `vmem options --json -`.

An option has three names. `hbm` is its name in `vmem_init` and in Python, `--hbm` its flag for
`vmem run`, `VMEM_HBM` its environment variable. A value given to `vmem_init` or as a flag wins over
the environment, and the environment over the default.

Sizes are written `16GiB`, `512MiB` or in bytes. Durations are written `250us`, `100ms` or `2s`. A
switch needs no value as a flag: `--strict`; `--strict=off` turns it off.

vmem refuses an option that it does not know, a malformed value and contradicting options. The
message names the option, where it was set, and what it accepts.

"""
WIDTH = 100


def filled(words: str) -> str:
    """Lines of at most WIDTH columns."""
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    return "\n".join(lines) + "\n"


def sentence(words: str) -> str:
    return words if words.endswith(".") else f"{words}."


def section(option: dict) -> str:
    values = "on or off" if option["switch"] else option["values"]
    return (
        f"## {option['name']}\n"
        + filled(sentence(option["help"]))
        + "\n"
        + filled(f"Values: {sentence(values)} Default: `{option['default']}`. Flag `{option['flag']}`, variable `{option['environment']}`.")
        + "\n"
    )


def document(options: list[dict]) -> str:
    in_order = sorted(options, key=lambda option: option["name"])
    return HEAD + "".join(map(section, in_order)).rstrip("\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the document differs")
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM, help="the vmem program (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        printed = subprocess.run([arguments.program, "options", "--json", "-"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"option_guide: {error}; build the program, or name it by --program")
    wanted = document(json.loads(printed))
    if GUIDE.is_file() and GUIDE.read_text() == wanted:
        print(f"option_guide: {GUIDE.relative_to(ROOT)} is as the program has it")
        return 0
    if arguments.check:
        print(f"option_guide: {GUIDE.relative_to(ROOT)} is not what `vmem options --json -` says; run scripts/option_guide.py")
        return 1
    GUIDE.parent.mkdir(parents=True, exist_ok=True)
    GUIDE.write_text(wanted)
    print(f"option_guide: wrote {GUIDE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
