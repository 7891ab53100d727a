#!/usr/bin/env python3
"""sbom.py BUILD OUTPUT VERSION TARGET...: writes which third parties are inside of the targets, as
CycloneDX JSON.

Asks Ninja what the targets (files of the build folder BUILD) were made from: the headers that their
objects include, and the static libraries that they link. Every such file has to belong to a
component of COMPONENTS, or to the C library or the kernel, whose code does not become part of a
program: otherwise it fails. Libraries that are loaded at run time (the driver, UCX, hwloc, cuFile,
libcurl) are not bundled; of these only declarations are compiled.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import uuid
from urllib.parse import quote

FORMAT = "1.5"  # of CycloneDX


@dataclasses.dataclass(frozen=True)
class Component:
    name: str
    licence: str  # SPDX expression
    files: str  # pattern of its headers and static libraries
    version_file: str = ""  # the header, or "pkg-config NAME"
    # Numbers of the version in that file, one group each; or a group for the whole of it.
    version: tuple[str, ...] = ()
    upstream: str = ""


def macros(*names: str) -> tuple[str, ...]:
    return tuple(rf"#\s*define {name}\s+(\d+)" for name in names)


COMPONENTS = (
    Component("boost", "BSL-1.0", r"/boost/", "/boost/version.hpp", macros("BOOST_VERSION"), "https://www.boost.org"),
    Component("cli11", "BSD-3-Clause", r"/CLI/", "/CLI/Version.hpp", (r'CLI11_VERSION "([\d.]+)"',), "https://github.com/CLIUtils/CLI11"),
    Component("fmt", "MIT", r"/fmt/", "/fmt/core.h", macros("FMT_VERSION"), "https://github.com/fmtlib/fmt"),
    Component("googletest", "BSD-3-Clause", r"/(gtest|gmock)/|/libg(test|mock)(_main)?\.(a|so)", "pkg-config gtest", (),
              "https://github.com/google/googletest"),
    Component("libstdc++", "GPL-3.0-or-later WITH GCC-exception-3.1", r"/include/(x86_64-linux-gnu/)?c\+\+/|/lib/gcc/|/libstdc\+\+\.a",
              "compiler", (), "https://gcc.gnu.org"),
    Component("liburing", "LGPL-2.1-or-later OR MIT", r"/liburing", "pkg-config liburing", (), "https://github.com/axboe/liburing"),
    Component("lz4", "BSD-2-Clause", r"/lz4\w*\.h|/liblz4\.a", "/lz4.h", macros("LZ4_VERSION_MAJOR", "LZ4_VERSION_MINOR", "LZ4_VERSION_RELEASE"),
              "https://github.com/lz4/lz4"),
    Component("nlohmann-json", "MIT", r"/nlohmann/", "/nlohmann/detail/abi_macros.hpp",
              macros(*(f"NLOHMANN_JSON_VERSION_{part}" for part in ("MAJOR", "MINOR", "PATCH"))), "https://github.com/nlohmann/json"),
    Component("openssl", "Apache-2.0", r"/openssl/|/lib(ssl|crypto)\.a", "/openssl/opensslv.h", (r'OPENSSL_VERSION_STR "([\d.]+)"',),
              "https://www.openssl.org"),
    Component("spdlog", "MIT", r"/spdlog/", "/spdlog/version.h", macros("SPDLOG_VER_MAJOR", "SPDLOG_VER_MINOR", "SPDLOG_VER_PATCH"),
              "https://github.com/gabime/spdlog"),
    Component("xxhash", "BSD-2-Clause", r"/xxhash\.h", "/xxhash.h", macros("XXH_VERSION_MAJOR", "XXH_VERSION_MINOR", "XXH_VERSION_RELEASE"),
              "https://github.com/Cyan4973/xxHash"),
    Component("zstd", "BSD-3-Clause OR GPL-2.0-only", r"/(zstd\w*|zdict)\.h|/libzstd\.a", "/zstd.h",
              macros("ZSTD_VERSION_MAJOR", "ZSTD_VERSION_MINOR", "ZSTD_VERSION_RELEASE"), "https://github.com/facebook/zstd"),
)
# Of these only declarations are compiled; the libraries are loaded at run time.
DECLARATIONS = r"/hwloc(/|\.h$)|/(ucp|ucs|uct|ucm|curl)/|/(cuda|cufile)\.h$"
# The C library and the kernel: by their Debian source packages, or where those are unknown by where
# headers lie.
SYSTEM_PACKAGES = ("glibc", "linux")
SYSTEM_HEADERS = r"/include/([a-z0-9_]+-linux-gnu/)?((bits|sys|gnu|asm|asm-generic|linux|arpa|net|netinet|rpc)/.*|[a-z0-9_-]+)\.h$"


def fail(why: str) -> None:
    sys.exit(f"sbom: {why}")


def output(*command: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def bundled_files(build: pathlib.Path, targets: list[str]) -> list[pathlib.Path]:
    """Headers and static libraries from outside of the tree that became part of the targets."""
    ninja = re.search(r"^CMAKE_MAKE_PROGRAM:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)[1]
    tree = pathlib.Path(re.search(r"^CMAKE_HOME_DIRECTORY:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)[1])
    inputs = output(ninja, "-C", build, "-t", "inputs", *targets).splitlines()
    objects = [name for name in inputs if name.endswith(".o")]
    if not objects:
        fail(f"Ninja knows no objects of {', '.join(targets)}")
    # By pieces: thousands of objects are more than one command line holds.
    listing = "".join(output(ninja, "-C", build, "-t", "deps", *objects[i : i + 500]) for i in range(0, len(objects), 500))
    missing = [line.split(":")[0] for line in listing.splitlines() if line.endswith("deps not found")]
    if missing:
        fail(f"{missing[0]} is not built")
    files = {line.strip() for line in listing.splitlines() if line.startswith("    ")}
    files |= {name for name in inputs if name.endswith((".a", ".so"))}
    paths = {pathlib.Path(name) if name.startswith("/") else (build / name) for name in files}
    resolved = {path.resolve() if ".." in path.parts else path for path in paths}
    return sorted(path for path in resolved if not path.is_relative_to(tree) or ".deps" in path.parts)


def compiler_version(build: pathlib.Path) -> str:
    (description,) = build.glob("CMakeFiles/*/CMakeCXXCompiler.cmake")
    return re.search(r'set\(CMAKE_CXX_COMPILER_VERSION "([\d.]+)"\)', description.read_text())[1]


def dotted(numbers: list[str], of_boost: bool = False) -> str:
    """A version in words; one number has two digits for each part (fmt), or three for Boost's
    second.
    """
    if len(numbers) > 1 or "." in numbers[0]:
        return ".".join(numbers)
    number = int(numbers[0])
    if of_boost:
        return f"{number // 100_000}.{number // 100 % 1000}.{number % 100}"
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def version_of(component: Component, files: list[pathlib.Path], build: pathlib.Path) -> str:
    if component.version_file == "compiler":
        return compiler_version(build)
    if component.version_file.startswith("pkg-config "):
        return output("pkg-config", "--modversion", component.version_file.split()[1]).strip()
    holds = next((path for path in files if str(path).endswith(component.version_file)), None)
    # Not every file that uses a component includes the header that has its version.
    holds = holds or next((candidate for path in files for parent in path.parents
                           if (candidate := parent / component.version_file.lstrip("/")).is_file()), None)
    if holds is None:
        fail(f"{component.name}: {component.version_file} was not found")
    text = holds.read_text()
    found = [re.search(pattern, text) for pattern in component.version]
    if not all(found):
        fail(f"{component.name}: {holds} has no version in the expected form")
    return dotted([match[1] for match in found], of_boost=component.name == "boost")


def packages_of(paths: list[pathlib.Path]) -> dict[pathlib.Path, str]:
    """The Debian source package and its version, NAME@VERSION, as far as one is known: what
    advisories of Debian name.
    """
    if not paths or shutil.which("dpkg-query") is None:
        return {}
    found = subprocess.run(["dpkg-query", "-S", *paths], capture_output=True, text=True).stdout
    owners = {pathlib.Path(line.split(": ", 1)[1]): line.split(": ")[0].split(",")[0] for line in found.splitlines()}
    if not owners:
        return {}
    shown = output("dpkg-query", "-W", "-f", "${Package} ${source:Package} ${source:Version}\\n", *sorted(set(owners.values())))
    sources = {name: f"{source}@{quote(version, safe='')}" for name, source, version in (line.split() for line in shown.splitlines())}
    return {path: sources[owner.split(":")[0]] for path, owner in owners.items()}


def described(component: Component, files: list[pathlib.Path], build: pathlib.Path) -> dict:
    version = version_of(component, files, build)
    archives = [path for path in files if path.suffix == ".a"]
    # The static library, where there is one: its code is what is inside.
    package = next(iter(packages_of((archives or files)[:1]).values()), None)
    linked = "static library" if archives or component.version_file == "compiler" else "headers"
    return {
        "type": "library",
        "bom-ref": component.name,
        "name": component.name,
        "version": version,
        "licenses": [{"expression": component.licence}],
        "purl": f"pkg:deb/debian/{package}" if package else f"pkg:generic/{quote(component.name)}@{version}",
        "externalReferences": [{"type": "website", "url": component.upstream}],
        "properties": [{"name": "vmem:linked", "value": linked}],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("version")
    parser.add_argument("targets", nargs="+")
    args = parser.parse_args()
    targets = [str(pathlib.Path(target).relative_to(args.build)) if target.startswith("/") else target for target in args.targets]

    by_component: dict[Component, list[pathlib.Path]] = {}
    others = []
    for path in bundled_files(args.build, targets):
        owner = next((each for each in COMPONENTS if re.search(each.files, str(path))), None)
        if owner is not None:
            by_component.setdefault(owner, []).append(path)
        elif not re.search(DECLARATIONS, str(path)):
            others.append(path)
    packages = packages_of(others)
    for path in others:
        if not (packages[path].split("@")[0] in SYSTEM_PACKAGES if path in packages else re.search(SYSTEM_HEADERS, str(path))):
            fail(f"{path} belongs to no component; add its library to COMPONENTS in scripts/sbom.py")
    components = [described(component, files, args.build) for component, files in sorted(by_component.items(), key=lambda item: item[0].name)]
    identity = json.dumps([args.version, targets, components])
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": FORMAT,
        # The same content has the same number, so that builds can be compared.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": "vmem",
                "name": "vmem",
                "version": args.version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": "vmem", "dependsOn": [each["bom-ref"] for each in components]}],
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
