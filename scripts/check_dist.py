#!/usr/bin/env python3
"""check_dist.py FOLDER: the folder is self-contained and relocatable.

- Every needed library is in the folder, found by a run path relative to the file, or part of glibc.
- No file needs a newer glibc than GLIBC_NEWEST, or holds a path of this machine.
- A copy elsewhere starts in an empty environment and finds its own libraries.
- The SBOM names the libraries inside of the binaries, with the versions that the binaries report.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
GLIBC_NEWEST = (2, 36)
LIMIT_BYTES = 64 << 20
LIBRARY = "libvmem_gpu.so"
ONLY_TESTS = "googletest"  # bundled by the tests alone, so vmem doctor does not name it


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
    """Programs that do not start in a moved copy, or load a vmem library from elsewhere."""
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


def sbom_problems(folder: pathlib.Path) -> list[str]:
    """Differences between the SBOM and what the installed `vmem doctor`, the binaries and the
    licences say.
    """
    documents = folder / "share/doc/vmem"
    if not (documents / "sbom.cdx.json").is_file():
        return ["there is no sbom.cdx.json"]
    sbom = json.loads((documents / "sbom.cdx.json").read_text())
    if (sbom["bomFormat"], sbom["specVersion"]) != ("CycloneDX", "1.5"):
        return [f"the SBOM is {sbom['bomFormat']} {sbom['specVersion']}, not CycloneDX 1.5"]
    listed = {each["name"]: each["version"] for each in sbom["components"]}
    asked = subprocess.run([folder / "bin/vmem", "doctor", "--driver", "emulated", "--json", "-"], capture_output=True, text=True)
    (said,) = [each["text"] for each in json.loads(asked.stdout)["findings"] if each["topic"] == "bundled libraries"]
    bundled = dict(each.split() for each in said.split(", "))
    differing = [name for name in sorted(listed | bundled) if listed.get(name) != bundled.get(name)]
    found = [f"the SBOM has {name} {listed.get(name)}, vmem doctor {bundled.get(name)}" for name in differing if name != ONLY_TESTS]
    if f"\0{listed.get('openssl')}\0".encode() not in b"".join(path.read_bytes() for path in folder.glob(f"lib/{LIBRARY}*")):
        found.append(f"{LIBRARY} does not hold the OpenSSL that the SBOM names, {listed.get('openssl')}")
    found += [f"the SBOM does not say {key} of {each['name']}" for each in sbom["components"] for key in ("licenses", "purl") if not each.get(key)]
    licences = {path.name for path in documents.glob("third-party/*")}
    if len(licences) < len(listed):
        found.append(f"{len(listed)} components, but {len(licences)} licences in third-party")
    if (version := sbom["metadata"]["component"]["version"]) not in subprocess.run(
            [folder / "bin/vmem", "--version"], capture_output=True, text=True).stdout:
        found.append(f"the SBOM is of version {version}")
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
    problems += run_elsewhere(folder) + sbom_problems(folder)
    for problem in problems:
        print(f"check_dist: {problem}")
    print(f"{folder.relative_to(root) if folder.is_relative_to(root) else folder}: {len(files)} files, "
          f"{size / (1 << 20):.1f} MiB{'' if problems else ', self-contained'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
