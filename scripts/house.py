#!/usr/bin/env python3
"""Checks the structure of the sources against limits (`make house`); prints where they are
exceeded.

RULES lists what is measured, and the limits. scripts/house.json lists places that may exceed one:
"reasons" holds those that stay, each with its reason and value; "debt" holds those that exceeded a
limit when the rule was introduced. Debt may only shrink: house.py --update records lower values.

    scripts/house.py                 the check; needs the release build for the calls between files
    scripts/house.py --table         the figures of every rule
    scripts/house.py --update        after the check: writes debt that shrank to house.json
"""

import argparse
import ast
import collections
import dataclasses
import io
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMITS = "scripts/house.json"
BUILD = "build/release"
SOURCES = ("src", "include", "tools", "bench", "tests", "examples")
SUFFIXES = (".hpp", ".cpp", ".h", ".cu", ".cuh")
# Only the comments of these are measured.
SCRIPTS = (".py", ".sh", ".cmake", "CMakeLists.txt", "Makefile", ".toml", ".ci/run")
# Folders whose files may not call each other in a cycle.
ACYCLIC = ("src/migration",)

# Rule -> limit of each place.
RULES = {
    "methods": 40,  # of a class in src/, without constructors and destructors
    "data members": 25,  # of a class in src/ that has methods
    "file lines": 500,
    "wide comments": 0,  # lines of a file with a comment beyond 100 columns
    "friends": 0,  # of a class, but for those that "reasons" names
    # Of a file in src/: of a module above, or of one that CMake does not link.
    "upward includes": 0,
    "files in one cycle": 0,  # of calls, of a folder in ACYCLIC
}
COMMENT_COLUMNS = 100
FUNCTION_LINES = 70
# Of all functions in src/.
MEDIAN_LINES, PERCENTILE_95_LINES, MOST_LONG_FUNCTIONS = 6, 25, 3


@dataclasses.dataclass(frozen=True)
class Finding:
    rule: str
    where: str  # a file, or FILE:CLASS
    value: int
    what: str = ""  # the places themselves


# ---- classes and functions ----


@dataclasses.dataclass(frozen=True)
class Tag:
    """A line of ctags: what is declared or defined, and in which scope."""

    name: str
    path: str
    kind: str
    line: int
    end: int | None
    scope: str
    text: str


def ctags(paths: list[str], root: pathlib.Path = ROOT) -> list[Tag]:
    command = ["ctags", "--output-format=json", "--fields=+neKZS", "--kinds-C++=+p", "--language-force=C++", "-f", "-", *paths]
    try:
        done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("house: ctags is missing; scripts/bootstrap.sh --lint installs it (Debian: universal-ctags)")
    tags = []
    for line in done.stdout.splitlines():
        tag = json.loads(line)
        if tag.get("_type") == "tag":
            tags.append(
                Tag(tag["name"], tag["path"], tag["kind"], tag["line"], tag.get("end"), tag.get("scope", ""), tag.get("pattern", ""))
            )
    return tags


def class_findings(tags: list[Tag]) -> Iterator[Finding]:
    """Counts methods where the class declares them: in files that hold the class's own text."""
    classes = {(tag.path, f"{tag.scope}::{tag.name}".removeprefix("::")): tag for tag in tags if tag.kind in ("class", "struct")}
    methods, members = collections.Counter(), collections.Counter()
    for tag in tags:
        own = classes.get(key := (tag.path, tag.scope))
        if own is None or not (own.line <= tag.line <= (own.end or own.line)):
            continue
        if tag.kind in ("prototype", "function"):
            methods[key] += tag.name.removeprefix("~") != own.name and not tag.name.startswith("operator =")
        elif tag.kind == "member" and not re.search(r"\bstatic\b", tag.text):
            members[key] += 1
    for key in classes:
        path, name = key
        where = f"{path}:{name.split('::', 1)[-1] if name.startswith('vmem::') else name}"
        if methods[key] > RULES["methods"]:
            yield Finding("methods", where, methods[key])
        if methods[key] and members[key] > RULES["data members"]:
            yield Finding("data members", where, members[key])


def function_lengths(tags: list[Tag]) -> list[tuple[int, Tag]]:
    return [(tag.end - tag.line + 1, tag) for tag in tags if tag.kind == "function" and tag.end is not None]


def long_functions(lengths: list[tuple[int, Tag]]) -> list[str]:
    return [f"{tag.path}:{tag.line} {tag.name} ({lines} lines)" for lines, tag in lengths if lines > FUNCTION_LINES]


def percentile(values: list[int], of_100: int) -> int:
    return sorted(values)[(len(values) - 1) * of_100 // 100]


# ---- text ----


def wide_comments(text: str) -> list[int]:
    """Lines whose comment ends beyond COMMENT_COLUMNS; `//` in a string counts as one."""
    wide, inside = [], False
    for number, line in enumerate(text.splitlines(), 1):
        starts = line.find("/*")
        if len(line) > COMMENT_COLUMNS and (inside or starts >= 0 or re.search(r"(^|\s)//", line)):
            wide.append(number)
        if starts >= 0:
            inside = True
        if inside and line.find("*/", starts + 2 if starts >= 0 else 0) >= 0:
            inside = False
    return wide


def docstring_lines(text: str) -> set[int]:
    """Numbers of the lines of docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node.body[0] for node in ast.walk(ast.parse(text)) if isinstance(node, documented) and ast.get_docstring(node) is not None]
    return {number for node in nodes for number in range(node.lineno, node.end_lineno + 1)}


def wide_script_comments(path: str, text: str) -> list[int]:
    """Lines of a script whose comment or docstring ends beyond COMMENT_COLUMNS."""
    if path.endswith(".py"):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        commented = {token.start[0] for token in tokens if token.type == tokenize.COMMENT and "noqa" not in token.string}
        commented |= docstring_lines(text)
    else:
        commented = {number for number, line in enumerate(text.splitlines(), 1) if re.search(r"(^|\s)# ", line)}
    return [number for number, line in enumerate(text.splitlines(), 1) if len(line) > COMMENT_COLUMNS and number in commented]


def script_findings(path: str, text: str) -> Iterator[Finding]:
    if wide := wide_script_comments(path, text):
        yield Finding("wide comments", path, len(wide), "lines " + ", ".join(map(str, wide)))


def text_findings(path: str, text: str) -> Iterator[Finding]:
    lines = text.count("\n")
    if lines > RULES["file lines"]:
        yield Finding("file lines", path, lines)
    if wide := wide_comments(text):
        yield Finding("wide comments", path, len(wide), "lines " + ", ".join(map(str, wide)))
    if path.startswith("src/") and (friends := re.findall(r"^\s*friend\s+(.+?);", text, re.MULTILINE)):
        yield Finding("friends", path, len(friends), ", ".join(friends))


# ---- modules ----


def modules(root: pathlib.Path = ROOT) -> list[str]:
    """Folders of src/, bottom-up, as src/CMakeLists.txt adds them."""
    return re.findall(r"^add_subdirectory\((\w+)\)", (root / "src/CMakeLists.txt").read_text(), re.MULTILINE)


def links(root: pathlib.Path = ROOT) -> dict[str, set[str]]:
    """Folder of src/ -> folders whose headers it may include.

    Those are the ones that its targets link, and what these link publicly.
    """
    public, all_links, folder_of = collections.defaultdict(set), collections.defaultdict(set), {}
    for file in sorted((root / "src").rglob("CMakeLists.txt")):
        text = re.sub(r"#.*", "", file.read_text())
        folder = file.relative_to(root / "src").parts[0]
        for name, arguments in re.findall(r"vmem_module\(\s*(\w+)([^)]*)\)", text):
            target, section = f"vmem_{name}", ""
            folder_of[target] = folder
            for word in arguments.split():
                if word in ("SOURCES", "PUBLIC", "PRIVATE"):
                    section = word
                elif word.startswith("vmem_") and section in ("PUBLIC", "PRIVATE"):
                    all_links[folder].add(word)
                    if section == "PUBLIC":
                        public[target].add(word)
        for words in re.findall(r"target_link_libraries\(([^)]*)\)", text):
            all_links[folder] |= {word for word in words.split()[1:] if word.startswith("vmem_")}
    allowed = {}
    for folder in all_links.keys() | set(folder_of.values()):
        reached, waiting = set(), list(all_links[folder])
        while waiting:
            target = waiting.pop()
            if target not in reached:
                reached.add(target)
                waiting += public[target]
        allowed[folder] = {folder_of[target] for target in reached if target in folder_of}
    return allowed


def include_findings(files: dict[str, str], order: list[str], allowed: dict[str, set[str]]) -> Iterator[Finding]:
    for path, text in files.items():
        parts = pathlib.PurePath(path).parts
        if parts[0] != "src" or len(parts) < 3:
            continue
        module, wrong = parts[1], []
        for included in re.findall(r'^\s*#include "([^"]+)"', text, re.MULTILINE):
            other = included.split("/")[0]
            if other == module or other not in order:
                continue
            if order.index(other) > order.index(module):
                wrong.append(f"{included} (a module above)")
            elif other not in allowed.get(module, set()):
                wrong.append(f"{included} (not linked in CMake)")
        if wrong:
            yield Finding("upward includes", path, len(wrong), ", ".join(wrong))


def documented_modules(root: pathlib.Path = ROOT) -> list[str]:
    """The modules in the order of ARCHITECTURE's table."""
    return re.findall(r"^\| `src/(\w+)/` \|", (root / "ARCHITECTURE.md").read_text(), re.MULTILINE)


# ---- calls between files ----


def symbols(objects: dict[str, pathlib.Path]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """File -> symbols that its object defines for others, and symbols of others that it uses."""
    defined, used = {}, {}
    for source, path in objects.items():
        defined[source], used[source] = set(), set()
        listing = subprocess.run(["nm", "--format=posix", path], check=True, capture_output=True, text=True).stdout
        for line in listing.splitlines():
            name, kind = line.split()[:2]
            if kind in "TDBR":
                defined[source].add(name)
            elif kind == "U":
                used[source].add(name)
    return defined, used


def stem(path: str) -> str:
    return str(pathlib.PurePath(path).with_suffix(""))


def call_graph(folder: str, files: dict[str, str], objects: dict[str, pathlib.Path]) -> dict[str, set[str]]:
    """Which files of the folder call which: a source and its header count as one.

    A file calls the files whose symbols its object uses, and those that it includes. A call of an
    interface's virtual function is a call of every file that implements the interface; calls from
    one implementation to another are not counted. Calls through std::function are not seen.
    """
    graph = collections.defaultdict(set)
    own = {path: text for path, text in files.items() if path.startswith(folder + "/")}
    stems = {stem(path) for path in own}
    includes = collections.defaultdict(set)
    for path, text in own.items():
        for included in re.findall(r'^\s*#include "([^"]+)"', text, re.MULTILINE):
            if (other := stem(f"src/{included}")) in stems:
                includes[stem(path)].add(other)
    defined, used = symbols(objects)
    owner = {symbol: stem(source) for source, names in defined.items() for symbol in names}
    for source in objects:
        graph[stem(source)] |= {owner[symbol] for symbol in used[source] if symbol in owner}
    for name, others in includes.items():
        graph[name] |= others
    for interface in interfaces(own):
        derives = re.compile(rf"^\s*(?:class|struct)\s+\w+(?:\s+final)?\s*:[^{{;]*\b{interface.name}\b", re.MULTILINE)
        behind, implementations = set(), [text for text in own.values() if derives.search(text)]
        for path, text in own.items():
            # The class's methods may be defined in its own source, or in others.
            if derives.search(text) or any(defines_methods_of(each, text) for each in implementations):
                behind.add(stem(path))
        for path, text in own.items():
            knows = interface.header in includes[stem(path)] | {stem(path)}
            if knows and stem(path) not in behind and interface.call.search(text):
                graph[stem(path)] |= behind
    return {name: others - {name} for name, others in graph.items()}


@dataclasses.dataclass(frozen=True)
class Interface:
    name: str
    header: str  # as a stem
    call: re.Pattern  # of one of its virtual functions


def interfaces(files: dict[str, str]) -> Iterator[Interface]:
    """Classes with a pure virtual function."""
    for path, text in files.items():
        for match in re.finditer(r"^\s*(?:class|struct)\s+(\w+)[^;{]*\{(.*?)^\s*\};", text, re.MULTILINE | re.DOTALL):
            if names := re.findall(r"virtual[^;{]*?\b(\w+)\([^;{]*=\s*0;", match[2]):
                yield Interface(match[1], stem(path), re.compile(rf"(?:\.|->)(?:{'|'.join(names)})\("))


def defines_methods_of(header: str, source: str) -> bool:
    """Whether the source defines methods of a class that the header declares."""
    names = set(re.findall(r"^\s*(?:class|struct)\s+(\w+)[^;]*?\{", header, re.MULTILINE))
    return any(re.search(rf"^[^/\n]*\b{name}::~?\w+\([^;]*\{{", source, re.MULTILINE) for name in names)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of files that all reach each other, of two or more (Tarjan's strongly connected
    components).
    """
    index, low, stack, found = {}, {}, [], []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            members = []
            while True:
                members.append(stack.pop())
                if members[-1] == node:
                    break
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def objects_of(folder: str, build: pathlib.Path) -> dict[str, pathlib.Path]:
    """Source -> object. The build lists what it compiles."""
    commands = build / "compile_commands.json"
    if not commands.exists():
        sys.exit(f"house: {build.relative_to(ROOT)} is not built; the calls between files are read from its objects: make build")
    found = {}
    for command in json.loads(commands.read_text()):
        source = pathlib.Path(command["file"]).resolve()
        if source.is_relative_to(ROOT / folder):
            words = shlex.split(command["command"])
            found[str(source.relative_to(ROOT))] = pathlib.Path(command["directory"]) / words[words.index("-o") + 1]
    if missing := [str(path) for path in found.values() if not path.exists()]:
        sys.exit(f"house: {missing[0]} is not built; run: make build")
    return found


def cycle_findings(files: dict[str, str], build: pathlib.Path) -> Iterator[Finding]:
    for folder in ACYCLIC:
        found = cycles(call_graph(folder, files, objects_of(folder, build)))
        if found:
            largest = max(found, key=len)
            names = ", ".join(pathlib.PurePath(name).name for name in largest)
            yield Finding("files in one cycle", folder, len(largest), names)


# ---- limits ----


def files_of_tree(suffixes: tuple[str, ...], folders: tuple[str, ...] = (), root: pathlib.Path = ROOT) -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *folders], cwd=root, check=True, capture_output=True, text=True)
    paths = [path for path in listed.stdout.splitlines() if path.endswith(suffixes) and (root / path).is_file()]
    return {path: (root / path).read_text() for path in paths}


def all_findings(files: dict[str, str], tags: list[Tag], build: pathlib.Path) -> Iterator[Finding]:
    yield from class_findings(tags)
    for path, text in files.items():
        yield from text_findings(path, text)
    for path, text in files_of_tree(SCRIPTS).items():
        yield from script_findings(path, text)
    yield from include_findings(files, modules(), links())
    yield from cycle_findings(files, build)


def judge(findings: Iterable[Finding], limits: dict) -> tuple[list[str], dict[str, dict[str, int]]]:
    """Problems, and the debt that is left."""
    reasons = {(each["rule"], each["where"]): each for each in limits["reasons"]}
    debt = limits["debt"]
    problems, left, seen = [], collections.defaultdict(dict), set()
    for finding in findings:
        key = (finding.rule, finding.where)
        seen.add(key)
        allowed = RULES[finding.rule]
        if key in reasons:
            allowed = reasons[key]["value"]
        else:
            allowed = max(allowed, debt.get(finding.rule, {}).get(finding.where, 0))
            left[finding.rule][finding.where] = finding.value
        if finding.value > allowed:
            what = f" ({finding.what})" if finding.what else ""
            problems.append(f"{finding.where}: {finding.rule}: {finding.value}, at most {allowed}{what}")
    problems += [f"{LIMITS}: the reason for '{where}' ({rule}) is needed no more" for rule, where in reasons if (rule, where) not in seen]
    return problems, {rule: dict(sorted(places.items())) for rule, places in sorted(left.items())}


def paid(before: dict, after: dict) -> list[str]:
    """Debt that has shrunk: it has to be written down, or it could grow again."""
    return [
        f"{where}: {rule}: {value} before, {after.get(rule, {}).get(where, 0)} now"
        for rule, places in before.items()
        for where, value in places.items()
        if after.get(rule, {}).get(where, 0) < value
    ]


def figures(lengths: list[tuple[int, Tag]]) -> list[str]:
    lines = [each for each, _ in lengths]
    long = long_functions(lengths)
    measured = (
        ("median of functions' lines", percentile(lines, 50), MEDIAN_LINES),
        ("95th percentile of functions' lines", percentile(lines, 95), PERCENTILE_95_LINES),
        (f"functions above {FUNCTION_LINES} lines ({', '.join(long)})", len(long), MOST_LONG_FUNCTIONS),
    )
    return [f"src: {name}: {value}, at most {most}" for name, value, most in measured if value > most]


def table(findings: list[Finding], lengths: list[tuple[int, Tag]]) -> None:
    lines = [each for each, _ in lengths]
    print(f"functions in src/: {len(lines)}, median {percentile(lines, 50)} lines, 95th percentile {percentile(lines, 95)}")
    for rule in RULES:
        own = sorted((each for each in findings if each.rule == rule), key=lambda each: -each.value)
        print(f"{rule}: {len(own)} places, {sum(each.value for each in own)} in all")
        for each in own[:15]:
            print(f"  {each.value:5} {each.where}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="the figures of every rule")
    parser.add_argument("--update", action="store_true", help=f"write debt that shrank to {LIMITS}")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / BUILD, help="where the release build is")
    arguments = parser.parse_args()
    files = files_of_tree(SUFFIXES, SOURCES)
    tags = ctags([path for path in files if path.startswith("src/")])
    lengths = function_lengths(tags)
    findings = list(all_findings(files, tags, arguments.build.resolve()))
    if arguments.table:
        table(findings, lengths)
        return 0
    limits = json.loads((ROOT / LIMITS).read_text())
    problems, left = judge(findings, limits)
    problems += figures(lengths)
    if modules() != documented_modules():
        problems.append("ARCHITECTURE.md: its table of modules differs from the order in src/CMakeLists.txt")
    shrunk = paid(limits["debt"], left)
    if arguments.update and not problems:
        (ROOT / LIMITS).write_text(json.dumps({**limits, "debt": left}, indent=2) + "\n")
    elif shrunk:
        problems += [f"{each}; write it down: scripts/house.py --update" for each in shrunk]
    for problem in problems:
        print(f"house: {problem}")
    debt = sum(len(places) for places in left.values())
    print(f"house: {len(files)} files, {len(lengths)} functions, {debt} places of debt: {'FAILED' if problems else 'ok'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
