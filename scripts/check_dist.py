#!/usr/bin/env python3
"""check_dist.py FOLDER: the folder is self-contained and relocatable.

Every library that a file of it needs is in the folder, through a run path relative to the file, or belongs to glibc; no
newer glibc is needed than stated; no path of this machine is in it; and a copy of it elsewhere, in an empty environment,
starts and finds its own libraries.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
GLIBC_NEWEST = (2, 36)
LIMIT_BYTES = 64 << 20


def output(*command: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def is_elf(path: pathlib.Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def reaches_outside(path: pathlib.Path, folder: pathlib.Path) -> list[str]:
    dynamic = output("readelf", "-dW", path)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    run_path = [entry for group in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic) for entry in group.split(":")]
    found = []
    for entry in filter(None, run_path):
        target = pathlib.Path(entry.replace("$ORIGIN", str(path.parent))).resolve()
        if not entry.startswith("$ORIGIN") or not target.is_relative_to(folder):
            found.append(f"run path {entry} leaves the folder")
    for name in set(needed) - GLIBC:
        places = [pathlib.Path(entry.replace("$ORIGIN", str(path.parent))) / name for entry in run_path]
        if not any(place.exists() for place in places):
            found.append(f"needs {name}, which is neither in the folder nor part of glibc")
    return found


def needed_glibc(path: pathlib.Path) -> tuple[int, ...]:
    return max(
        (tuple(map(int, version.split("."))) for version in re.findall(r"Name: GLIBC_([\d.]+)", output("readelf", "-VW", path))),
        default=(0,),
    )


def machine_paths(path: pathlib.Path, root: pathlib.Path) -> list[str]:
    return [f"holds the path {root}"] if str(root).encode() in path.read_bytes() else []


def run_elsewhere(folder: pathlib.Path) -> list[str]:
    """What does not start, or loads a library of its own from outside the folder, when the folder has moved."""
    with tempfile.TemporaryDirectory() as elsewhere:
        moved = pathlib.Path(elsewhere) / "moved here"
        shutil.copytree(folder, moved, symlinks=True)
        commands = [[moved / "bin" / "vmem", "--version"]]
        commands += [[test, "--gtest_list_tests"] for test in sorted((moved / "libexec/vmem/tests").glob("*_test"))]
        found = []
        for command in commands:
            done = subprocess.run(command, env={}, cwd="/", capture_output=True, text=True)
            if done.returncode != 0:
                found.append(f"{command[0].name}: exit {done.returncode}: {done.stderr.strip()[:300]}")
            loaded = subprocess.run(
                command, env={"LD_TRACE_LOADED_OBJECTS": "1"}, cwd="/", capture_output=True, text=True).stdout
            for line in re.findall(r"libvmem\S* => (.*)", loaded):
                if not line.startswith(str(moved)):
                    found.append(f"{command[0].name}: loads {line}")
        return found


def main() -> int:
    folder = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path(__file__).resolve().parent.parent
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    problems = []
    for path in files:
        found = machine_paths(path, root)
        if is_elf(path):
            found += reaches_outside(path, folder)
            if (newest := needed_glibc(path)) > GLIBC_NEWEST:
                found.append(f"needs glibc {'.'.join(map(str, newest))}; build on Debian 12 for older machines")
        problems += [f"{path.relative_to(folder)}: {problem}" for problem in found]
    size = sum(path.stat().st_size for path in files)
    if size > LIMIT_BYTES:
        problems.append(f"{size >> 20} MiB, more than {LIMIT_BYTES >> 20}")
    problems += run_elsewhere(folder)
    for problem in problems:
        print(f"check_dist: {problem}")
    print(f"{folder.relative_to(root) if folder.is_relative_to(root) else folder}: {len(files)} files, "
          f"{size / (1 << 20):.1f} MiB{'' if problems else ', self-contained'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
