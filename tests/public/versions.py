#!/usr/bin/env python3
"""versions.py SOURCE BUILD LIBRARY VERSION: all that says a version says VERSION, CMake's
project().

These are the library, the program, the Python package, the wheel (by the pattern that
pyproject.toml searches CMakeLists.txt with), the pkg-config file and, if it is a release, the
newest entry of CHANGELOG.md.
"""

import os
import pathlib
import re
import subprocess
import sys


def output(*command: object, **variables: str) -> str:
    environment = {**os.environ, **variables}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def version_of_library(library: str) -> str:
    # In a process of its own: libraries that it loads stay out of this one.
    ask = f"import ctypes; v = ctypes.CDLL({library!r}).vmem_version; v.restype = ctypes.c_char_p; print(v().decode())"
    return output(sys.executable, "-c", ask)


def version_of_package(source: pathlib.Path, build: pathlib.Path, library: str | None = None) -> str:
    load = f"ctypes.CDLL({library!r}, ctypes.RTLD_GLOBAL); " if library else ""
    ask = f"import ctypes; {load}import vmem; print(vmem.__version__)"
    # Without a program in the package's neighbourhood the one on PATH is asked: that of this build.
    return output(sys.executable, "-c", ask, PYTHONPATH=str(source / "python"), PATH=f"{build / 'bin'}:{os.environ['PATH']}")


def version_of_wheel(source: pathlib.Path) -> str:
    settings = (source / "pyproject.toml").read_text()
    (pattern,) = re.findall(r"^regex = '(.*)'$", settings, re.MULTILINE)
    (name,) = re.findall(r'^input = "(.*)"$', settings, re.MULTILINE)
    return re.search(pattern, (source / name).read_text())["value"]


def newest_in_changelog(source: pathlib.Path) -> str:
    (newest, *_) = re.findall(r"^## \[(.*?)\]", (source / "CHANGELOG.md").read_text(), re.MULTILINE)
    return newest


def main() -> int:
    source, build, library, version = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    found = {
        "the library": version_of_library(library),
        "vmem --version": output(build / "bin/vmem", "--version").split()[1],
        "vmem.__version__": version_of_package(source, build),
        "vmem.__version__ in a process with the library": version_of_package(source, build, library),
        "pyproject.toml": version_of_wheel(source),
        "vmem.pc": re.search(r"^Version: (.*)$", (build / "vmem.pc").read_text(), re.MULTILINE)[1],
    }
    if (newest := newest_in_changelog(source)) != "Unreleased":
        found["CHANGELOG.md"] = newest
    wrong = {name: said for name, said in found.items() if said != version}
    for name, said in wrong.items():
        print(f"{name} says {said!r}; project() in CMakeLists.txt says {version!r}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
