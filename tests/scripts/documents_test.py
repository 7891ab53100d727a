#!/usr/bin/env python3
"""documents_test.py SCRIPTS [VMEM]: the documents keep to their limits, and name only what exists.

VMEM is the program; without it the names of its commands and options are not checked.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve().parent
PROGRAM = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None

LINES = {"README.md": 160, "ARCHITECTURE.md": 330}
COLUMNS = 100
PARAGRAPH_WORDS = 120
GLOSSARY_WORDS = 40
# Whose names of commands, options and files have to be those of today; decisions are history.
CURRENT = ("README.md", "ARCHITECTURE.md", "SECURITY.md", "docs/benchmarks.md", "docs/extending.md", "docs/guide/*.md", "docs/internals/*.md")
ALL = ("*.md", "docs/**/*.md", "examples/*.md")
FOLDERS = ("bench", "docs", "examples", "include", "python", "scripts", "src", "tests", "tools")
FLAG = re.compile(r"--[a-z][a-z-]+")


def documents(patterns: tuple[str, ...], root: pathlib.Path = ROOT) -> list[pathlib.Path]:
    return sorted({path for pattern in patterns for path in root.glob(pattern)})


def is_table(line: str) -> bool:
    return line.lstrip().startswith("|")


def without_code(text: str) -> list[str]:
    """The lines, with those of code blocks empty."""
    lines, fenced, before = [], False, ""
    indented = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
            lines.append("")
            continue
        # A block begins after an empty line or a heading.
        indented = line.startswith("    ") and (indented or not before.strip() or before.startswith("#"))
        lines.append("" if fenced or indented else line)
        before = line
    return lines


def code_lines(text: str) -> list[str]:
    """The lines of code blocks."""
    kept = without_code(text)
    return [line for line, prose in zip(text.splitlines(), kept, strict=True) if line and not prose and not line.startswith("```")]


def paragraphs(text: str) -> list[str]:
    """Runs of prose; each item of a list is one. No headings, tables, code."""
    found, now = [], []
    for line in without_code(text):
        item = re.match(r"\s*([-*]|\d+\.) ", line)
        ends = not line.strip() or line.startswith(("#", "<!--")) or is_table(line)
        if (ends or item) and now:
            found.append(" ".join(now))
            now = []
        if not ends:
            now.append(line.strip())
    return found + ([" ".join(now)] if now else [])


def anchors(text: str) -> set[str]:
    """Of a document's headings, as GitHub makes them."""
    found: set[str] = set()
    for line in without_code(text):
        if not (heading := re.match(r"#{1,6} (.*)", line)):
            continue
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        again = 0
        while (name := f"{anchor}-{again}" if again else anchor) in found:
            again += 1
        found.add(name)
    return found


def broken_links(path: pathlib.Path, root: pathlib.Path = ROOT) -> list[str]:
    """Relative links of a document to what is not there."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(without_code(path.read_text()))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or root not in file.parents:
            wrong.append(f"{path.relative_to(root)}: {target} is not there")
        elif anchor and anchor not in anchors(file.read_text()):
            wrong.append(f"{path.relative_to(root)}: {file.relative_to(root)} has no heading #{anchor}")
    return wrong


def spans(text: str) -> list[str]:
    """Code spans of the prose, each on one line."""
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", "\n".join(without_code(text)))]


def missing_paths(text: str, root: pathlib.Path = ROOT) -> list[str]:
    wanted = [span for span in spans(text) if re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w./-]+", span)]
    return [name for name in wanted if not (root / name).exists()]


class Commands:
    """What the program offers: flags by subcommand."""

    def __init__(self, help_of, table: list[str]):
        """`help_of(*words)`: what the program prints for these words and --help.

        `table`: the flags of `vmem options`.
        """
        subcommands = re.findall(r"^  ([a-z]+) ", help_of().partition("Subcommands:")[2], re.MULTILINE)
        self.flags = {name: set(FLAG.findall(help_of(name))) for name in subcommands}
        for name in subcommands:
            for further in re.findall(r"^  ([a-z]+) ", help_of(name).partition("Subcommands:")[2], re.MULTILINE):
                self.flags[name] |= set(FLAG.findall(help_of(name, further)))
        self.flags["run"] |= set(table)
        self.all = set().union(*self.flags.values(), {"--version", "--help"})

    def wrong_in_command(self, command: str) -> str | None:
        """Of `vmem SUBCOMMAND ...`, up to the program that it starts."""
        words = command.partition(" -- ")[0].partition("#")[0].split()[1:]
        if not words or words[0].startswith("-"):
            return next((word for word in words if FLAG.fullmatch(word) and word not in self.all), None)
        name = words[0].rstrip(".,:;)")
        if not re.fullmatch(r"[a-z]+", name):
            return None
        if name not in self.flags:
            return f"vmem {name}"
        for word in words[1:]:
            flag = FLAG.match(word)
            if flag and flag[0] not in self.flags[name] | {"--help"}:
                return f"vmem {name} {flag[0]}"
        return None

    def wrong_in(self, text: str) -> list[str]:
        commands = [span for span in spans(text) if re.match(r"vmem [a-z-]", span)]
        commands += [match[0] for line in code_lines(text) for match in re.finditer(r"(?:(?<=^)|(?<=[\s$]))vmem [a-z-][^|&;]*", line)]
        found = [self.wrong_in_command(command) for command in commands]
        found += [flag for span in spans(text) if span.startswith("--") for flag in FLAG.findall(span.partition(" -- ")[0]) if flag not in self.all]
        return [each for each in found if each]


def program_help(*words: str) -> str:
    return subprocess.run([PROGRAM, *words, "--help"], check=True, capture_output=True, text=True).stdout


def glossary(text: str) -> list[str]:
    section = text.partition("## Glossary")[2].partition("\n## ")[0]
    entries = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)[1:]
    return [word.strip() for entry in entries for word in entry.split(",") if not re.fullmatch(r"-+", entry)]


class Documents(unittest.TestCase):
    def test_readme_and_architecture_keep_to_their_lines_and_columns(self):
        for name, limit in LINES.items():
            lines = (ROOT / name).read_text().splitlines()
            self.assertLessEqual(len(lines), limit, name)
            wide = [f"{name}:{at}: {len(line)} columns" for at, line in enumerate(lines, 1) if len(line) > COLUMNS]
            self.assertEqual(wide, [])

    def test_prose_is_not_wider(self):
        wide = []
        for path in documents(CURRENT):
            for at, line in enumerate(without_code(path.read_text()), 1):
                if len(line) > COLUMNS and not is_table(line) and not re.match(r"\d+\. `", line):
                    wide.append(f"{path.relative_to(ROOT)}:{at}: {len(line)} columns")
        self.assertEqual(wide, [])

    def test_no_paragraph_is_too_long(self):
        long = [
            f"{path.relative_to(ROOT)}: {len(each.split())} words: {each[:60]}"
            for path in documents(ALL)
            for each in paragraphs(path.read_text())
            if len(each.split()) > PARAGRAPH_WORDS
        ]
        self.assertEqual(long, [])

    def test_links_lead_somewhere(self):
        self.assertEqual([wrong for path in documents(ALL) for wrong in broken_links(path)], [])

    def test_files_that_are_named_exist(self):
        wrong = [f"{path.relative_to(ROOT)}: {name}" for path in documents(CURRENT) for name in missing_paths(path.read_text())]
        self.assertEqual(wrong, [])

    @unittest.skipIf(PROGRAM is None, "no build")
    def test_commands_and_options_that_are_named_exist(self):
        table = json.loads(subprocess.run([PROGRAM, "options", "--json", "-"], check=True, capture_output=True, text=True).stdout)
        commands = Commands(program_help, [option["flag"] for option in table])
        wrong = [f"{path.relative_to(ROOT)}: {each}" for path in documents(CURRENT) for each in commands.wrong_in(path.read_text())]
        self.assertEqual(wrong, [])

    def test_the_glossary_is_short(self):
        words = glossary((ROOT / "ARCHITECTURE.md").read_text())
        self.assertGreater(len(words), 20)
        self.assertLessEqual(len(words), GLOSSARY_WORDS, words)
        self.assertEqual(len(words), len(set(words)))


class Checks(unittest.TestCase):
    """That each check can fail."""

    def test_a_paragraph_ends_at_items_tables_headings_and_code(self):
        text = "# h\none two\nthree\n- four\n  five\n- six\n| t |\nseven\n```\ncode\n```\n\n    code\n"
        self.assertEqual(paragraphs(text), ["one two three", "- four five", "- six", "seven"])

    def test_anchors_are_github_s(self):
        self.assertEqual(anchors("# A page's `life`: now\n## Same\n## Same\n"), {"a-pages-life-now", "same", "same-1"})

    def test_links_to_missing_files_and_headings_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            (root / "a.md").write_text("# Here\n[b](b.md) [c](a.md#here) [d](#there) [e](../e.md) [f](https://f)\n\n    [g](g.md)\n")
            found = broken_links(root / "a.md", root)
            self.assertEqual(len(found), 3, found)
            for words in ("b.md is not there", "no heading #there", "../e.md is not there"):
                self.assertTrue(any(words in each for each in found), words)

    def test_missing_files_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(missing_paths("see `src/gone.hpp`, `gone.hpp`, `src/x y`", pathlib.Path(folder)), ["src/gone.hpp"])

    def test_unknown_commands_and_options_are_found(self):
        helps = {
            (): "Subcommands:\n  run   Runs\n  secret   Makes\n",
            ("run",): "  --hbm VALUE\n",
            ("secret",): "Subcommands:\n  new   Makes\n",
            ("secret", "new"): "  --identity NAME\n",
        }
        commands = Commands(lambda *words: helps[words], ["--host"])
        right = "`vmem run --hbm 1GiB -- python --gone` `--hbm` `vmem run --host 1` `make --gone` `vmem secret new --identity`\n\n    vmem run --hbm 1 # --gone\n"
        self.assertEqual(commands.wrong_in(right), [])
        wrong = "`vmem fly` `vmem run --gone` `--lost 3`\n\n    $ X=1 vmem run --away -- x\n"
        self.assertEqual(commands.wrong_in(wrong), ["vmem fly", "vmem run --gone", "vmem run --away", "--lost"])

    def test_words_of_the_glossary_are_counted_one_by_one(self):
        self.assertEqual(glossary("## Glossary\n| word | meaning |\n|---|---|\n| a, b | x |\n| c | y |\n## Next\n"), ["a", "b", "c"])


if __name__ == "__main__":
    unittest.main()
