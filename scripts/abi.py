#!/usr/bin/env python3
"""abi.py: compares the C ABI with the committed baseline, tests/public/vmem.abi (`make abi`).

    scripts/abi.py            fails on any difference, and says which would break programs
    scripts/abi.py --update   writes the baseline anew, after a change on purpose

Types come from the C headers: libabigail reads them from a library of empty functions that is
compiled with debug information, which the real one lacks. Names and their versions come from the
real library in build/release.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "build/release/lib/libvmem_gpu.so"
# The functions of the second are in the preloaded library.
HEADERS = ("vmem/vmem.h", "vmem/cluster.h", "vmem/torch.h")
VERSIONS = ROOT / "cmake/vmem.map"
BASELINE = ROOT / "tests/public/vmem.abi"
# Bits of abidiff's exit status; others are failures.
CHANGED, INCOMPATIBLE = 4, 8


def run(*command: object, accept: int = 0) -> subprocess.CompletedProcess:
    """Runs a command; any bit of its exit status beyond `accept` ends the check."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit(f"abi: {command[0]} is missing; scripts/bootstrap.sh --lint installs it")
    if done.returncode & ~accept:
        sys.exit(f"abi: {command[0]} failed: {done.stdout}{done.stderr}")
    return done


def empty_functions() -> str:
    """A C source that defines every function of the headers."""
    includes = "".join(f'#include "{name}"\n' for name in HEADERS)
    with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        file.write(includes)
        file.flush()
        text = run("gcc", "-E", "-P", f"-I{ROOT / 'include'}", file.name).stdout
    declared = re.findall(r'__attribute__\(\(visibility\("default"\)\)\)\s*([^;{]*?\bvmem_\w+\([^;{]*\));', text)
    if not declared:
        sys.exit("abi: the headers declare no functions in the expected form")
    return includes + "".join(f"{declaration} {{ __builtin_trap(); }}\n" for declaration in declared)


def write_abi(output: pathlib.Path, work: pathlib.Path) -> None:
    source, library = work / "abi.c", work / "abi.so"
    source.write_text(empty_functions())
    run("gcc", "-std=c11", "-g", "-O0", "-fPIC", "-shared", "-w", f"-I{ROOT / 'include'}", f"-ffile-prefix-map={work}=.",
        f"-Wl,--version-script={VERSIONS}", "-o", library, source)
    run("abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed", "--out-file", output, library)


def names_of_baseline(abi: pathlib.Path) -> set[str]:
    return {f"{name}@@{version}" for name, version in re.findall(r"<elf-symbol name='(\w+)' version='(\w+)'", abi.read_text())}


def names_of_library() -> set[str]:
    lines = run("nm", "--dynamic", "--defined-only", "--with-symbol-versions", LIBRARY).stdout.splitlines()
    return {name for name in (line.split()[-1] for line in lines) if name.startswith("vmem_")}


def differing_names() -> list[str]:
    """Names of vmem.h and cluster.h alone: torch.h's are not in this library."""
    declared = {name for name in names_of_baseline(BASELINE) if not name.startswith("vmem_torch_")}
    exported = names_of_library()
    return [f"{LIBRARY.name} does not export {name}" for name in sorted(declared - exported)] + [
        f"{LIBRARY.name} exports {name}, which the baseline does not have" for name in sorted(exported - declared)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the baseline anew")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        current = BASELINE if args.update else work / "current.abi"
        write_abi(current, work)
        # With --harmless: a renamed member breaks no program, but its source.
        compared = run("abidiff", "--harmless", BASELINE, current, accept=CHANGED | INCOMPATIBLE)
    names = differing_names()
    if names or compared.returncode:
        print(compared.stdout, *names, sep="\n")
        # abidiff itself calls few changes incompatible.
        grown = not names and not compared.returncode & INCOMPATIBLE and "Functions changes summary: 0 Removed, 0 Changed," in compared.stdout
        print(f"abi: {'the ABI has grown' if grown else 'programs built before may break (SOVERSION in cmake/VmemInstall.cmake)'}; "
              "if that is on purpose, scripts/abi.py --update, and say it in CHANGELOG.md")
        return 1
    print(f"abi: {len(names_of_baseline(BASELINE))} functions, as in {os.path.relpath(BASELINE, ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
