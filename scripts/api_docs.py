#!/usr/bin/env python3
"""api_docs.py: builds the API reference from include/vmem into build/docs/html (`make docs`).

Fails if Doxygen warns: of a declaration without a comment, or a comment that names what is not
there. Fails also if a function of a C header does not describe each parameter, or returns a
vmem_status and does not list its errors. docs/api/Doxyfile holds the settings.
"""

import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
XML = ROOT / "build/docs/xml"
C_HEADERS = ("vmem_8h.xml", "torch_8h.xml")


def version() -> str:
    return re.search(r"project\(vmem VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def build() -> bool:
    """Whether Doxygen had nothing to say; what it said is printed with paths of the tree."""
    (ROOT / "build").mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            ["doxygen", "docs/api/Doxyfile"], cwd=ROOT, env={**os.environ, "VMEM_VERSION": version()}, capture_output=True, text=True
        )
    except FileNotFoundError:
        sys.exit("api_docs: doxygen is missing; scripts/bootstrap.sh --lint installs it")
    print((done.stdout + done.stderr).replace(f"{ROOT}/", ""), end="")
    return done.returncode == 0 and not done.stderr


def undescribed(header: xml.Element) -> Iterator[str]:
    for function in header.iterfind(".//memberdef[@kind='function']"):
        name = function.findtext("name")
        described = {each.text for each in function.iterfind("detaileddescription//parametername")}
        for parameter in function.iterfind("param/declname"):
            if parameter.text not in described:
                yield f"{name}: the parameter {parameter.text} is not described (@param)"
        text = "".join(function.find("detaileddescription").itertext())
        if "vmem_status" in "".join(function.find("type").itertext()) and "Errors:" not in text:
            yield f"{name}: no paragraph says its errors (Errors: ...)"


def main() -> int:
    clean = build()
    headers = [xml.parse(XML / name).getroot() for name in C_HEADERS] if clean else []
    problems = [problem for header in headers for problem in undescribed(header)]
    for problem in problems:
        print(f"api_docs: {problem}")
    if not clean or problems:
        return 1
    functions = sum(len(header.findall(".//memberdef[@kind='function']")) for header in headers)
    print(f"build/docs/html/index.html: the API reference, with {functions} C functions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
