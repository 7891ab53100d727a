#!/usr/bin/env python3
"""check_tools.py: every file that names a version of a tool names that of scripts/tools.txt, and
what is installed fits it. A tool that is not installed is no failure: not everybody needs each. The
actions of the public workflow are pinned by hash, and what it makes is in the Makefile.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "scripts/tools.txt"
WORKFLOW = ".github/workflows/ci.yml"

# Tool -> files that name its version, and where in them; each pattern has to be found at least
# once.
NAMED = {
    "clang-format": (("scripts/bootstrap.sh", r"clang-format-(\d+)"), ("scripts/format.sh", r"clang-format-(\d+)")),
    "clang-tidy": (("scripts/bootstrap.sh", r"clang-tidy-(\d+)"), ("scripts/lint.py", r"clang-tidy-(\d+)")),
    "clang": (
        ("scripts/bootstrap.sh", r"\b(?:clang|clang\+\+|llvm|llvm-symbolizer|libclang-rt)-(\d+)"),
        ("scripts/fuzz.py", r"llvm-symbolizer-(\d+)"),
        ("CMakePresets.json", r'"clang(?:\+\+)?-(\d+)"'),
        ("CONTRIBUTING.md", r"\bclang (\d+)"),
    ),
    "cmake": (
        ("CMakeLists.txt", r"cmake_minimum_required\(VERSION ([\d.]+)\)"),
        ("CMakePresets.json", r'"cmakeMinimumRequired": \{ "major": (\d+), "minor": (\d+)'),
        ("examples/buffers/CMakeLists.txt", r"cmake_minimum_required\(VERSION ([\d.]+)\)"),
        ("scripts/bootstrap.sh", r"\bcmake ([\d.]+) or newer"),
    ),
    "g++": (("scripts/bootstrap.sh", r"\bg\+\+ ([\d.]+) or newer"),),
    "scikit-build-core": (("pyproject.toml", r"scikit-build-core>=([\d.]+)"),),
    "nvidia-cuda-runtime": (
        ("pyproject.toml", r"nvidia-cuda-runtime==([\d.]+)\.\*"),
        ("scripts/cuda-headers.txt", r"nvidia-cuda-runtime==(\d+\.\d+)"),
    ),
}
# Tool -> what prints its version; the first number in it counts.
INSTALLED = {
    "clang-format": ("clang-format-{}", "--version"),
    "clang-tidy": ("clang-tidy-{}", "--version"),
    "clang": ("clang-{}", "--version"),
    "cmake": ("cmake", "--version"),
    "doxygen": ("doxygen", "--version"),
    "g++": ("g++", "-dumpfullversion"),
    "ninja": ("ninja", "--version"),
    "python": ("python3", "--version"),
}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def fits(installed: str, wanted: str) -> bool:
    if wanted.endswith("+"):
        return numbers(installed) >= numbers(wanted[:-1])
    return numbers(installed)[: len(numbers(wanted))] == numbers(wanted)


def wanted_versions(text: str) -> dict[str, str]:
    lines = (line.split("#")[0].split() for line in text.splitlines())
    return {words[0]: words[1] for words in lines if words}


def problems_of_files(tool: str, wanted: str) -> list[str]:
    found = []
    for name, pattern in NAMED.get(tool, ()):
        versions = {".".join(match.groups()) for match in re.finditer(pattern, (ROOT / name).read_text())}
        if not versions:
            found.append(f"{name}: names no version of {tool} any more; mend NAMED in scripts/check_tools.py")
        found += [f"{name}: {tool} {version}, and scripts/tools.txt has {wanted}" for version in versions if version != wanted.rstrip("+")]
    return found


def problems_of_workflow() -> list[str]:
    text = (ROOT / WORKFLOW).read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    uses = re.findall(r"\buses: *(\S+)", text)
    made = re.findall(r"\brun: make (\S+)", text)
    if not uses or not made:
        return [f"{WORKFLOW}: no actions or no make commands were found"]
    return [f"{WORKFLOW}: {name} is not pinned by a hash" for name in uses if not re.search(r"@[0-9a-f]{40}$", name)] + [
        f"{WORKFLOW}: the Makefile has no target {name}" for name in made if name not in targets]


def installed_version(tool: str, wanted: str) -> str | None:
    command = [part.format(wanted) for part in INSTALLED.get(tool, ())]
    if not command or shutil.which(command[0]) is None:
        return None
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.search(r"\d+(\.\d+)*", said)[0]


def main() -> int:
    wanted = wanted_versions(LIST.read_text())
    problems = [f"{tool}: not in scripts/tools.txt" for tool in NAMED.keys() | INSTALLED.keys() if tool not in wanted]
    problems += problems_of_workflow()
    shown = []
    for tool, version in wanted.items():
        problems += problems_of_files(tool, version)
        if (installed := installed_version(tool, version)) is None:
            continue
        shown.append(f"{tool} {installed}")
        if not fits(installed, version):
            problems.append(f"{tool} {installed} is installed; scripts/tools.txt asks for {version}")
    for problem in problems:
        print(f"check_tools: {problem}")
    print(f"tools: {', '.join(shown)}{'' if problems else ': as scripts/tools.txt asks'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
