#!/usr/bin/env python3
"""house_test.py SCRIPTS: scripts/house.py finds what breaks a limit, and lets debt shrink and not
grow.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import house  # noqa: E402


class Text(unittest.TestCase):
    def test_a_comment_may_end_at_column_100_and_not_beyond(self):
        fits = "// " + "x" * 97
        self.assertEqual(house.wide_comments(f"{fits}\n{fits}y\n"), [2])

    def test_code_may_be_wider_unless_a_comment_makes_it_so(self):
        code = "int a = " + "1" * 100 + ";"
        self.assertEqual(house.wide_comments(f"{code}\n{code}  // why\n"), [2])

    def test_lines_of_a_block_comment_count(self):
        self.assertEqual(house.wide_comments("/*\n" + "x" * 101 + "\n*/\n" + "y" * 101 + "\n"), [2])

    def test_scripts_comments_and_docstrings_end_at_column_100(self):
        wide = "x" * 100
        self.assertEqual(house.wide_script_comments("a.sh", f"# {wide}\necho {wide}\n# fits\n"), [1])
        text = f'def f():\n    """Short.\n\n    {wide}\n    """\n    return "# {wide}"  \n'
        self.assertEqual(house.wide_script_comments("a.py", text), [4])
        self.assertEqual(house.wide_script_comments("a.py", f"a = 1  # {wide}\n"), [1])

    def test_long_files_and_friends_are_found(self):
        text = "class A {\n  friend class B;\n};\n" + "\n" * 500
        rules = {finding.rule: finding.value for finding in house.text_findings("src/a/a.hpp", text)}
        self.assertEqual(rules, {"file lines": 503, "friends": 1})


@unittest.skipUnless(shutil.which("ctags"), "universal-ctags is not installed")
class Classes(unittest.TestCase):
    def tags(self, text: str) -> list:
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a.hpp").write_text(text)
            return house.ctags(["a.hpp"], pathlib.Path(folder))

    def findings(self, methods: int, members: int) -> dict:
        body = "".join(f"  void m{i}();\n" for i in range(methods)) + "".join(f"  int d{i}_ = 0;\n" for i in range(members))
        text = f"namespace vmem {{\nclass A {{\n public:\n  A();\n  ~A();\n{body}}};\n}}\n"
        return {finding.rule: (finding.where, finding.value) for finding in house.class_findings(self.tags(text))}

    def test_classes_within_the_limits_are_fine(self):
        self.assertEqual(self.findings(40, 25), {})

    def test_classes_beyond_them_are_found(self):
        self.assertEqual(self.findings(41, 26), {"methods": ("a.hpp:A", 41), "data members": ("a.hpp:A", 26)})

    def test_records_may_have_any_number_of_members(self):
        text = "struct R {\n" + "".join(f"  int d{i} = 0;\n" for i in range(60)) + "};\n"
        self.assertEqual(list(house.class_findings(self.tags(text))), [])

    def test_functions_of_more_than_70_lines_are_long(self):
        text = "void f() {\n" + "  g();\n" * 69 + "}\nvoid h() {\n" + "  g();\n" * 68 + "}\n"
        lengths = house.function_lengths(self.tags(text))
        self.assertEqual([lines for lines, _ in lengths], [71, 70])
        self.assertEqual(house.long_functions(lengths), ["a.hpp:1 f (71 lines)"])


class Modules(unittest.TestCase):
    def test_includes_go_down_and_along_links(self):
        files = {
            "src/low/a.hpp": '#include "high/b.hpp"\n#include "low/c.hpp"\n',
            "src/high/b.cpp": '#include "low/a.hpp"\n#include "middle/d.hpp"\n',
        }
        found = list(house.include_findings(files, ["low", "middle", "high"], {"high": {"low"}}))
        self.assertEqual([(finding.where, finding.value) for finding in found], [("src/low/a.hpp", 1), ("src/high/b.cpp", 1)])

    def test_the_projects_links_are_read(self):
        allowed = house.links()
        self.assertIn("base", allowed["runtime"])
        self.assertIn("migration", allowed["intercept"])
        self.assertNotIn("runtime", allowed["migration"])


class Cycles(unittest.TestCase):
    def graph(self, files: dict[str, str]) -> dict[str, set[str]]:
        """Of sources that are compiled here."""
        with tempfile.TemporaryDirectory() as folder:
            root, objects = pathlib.Path(folder), {}
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            for path in files:
                if path.endswith(".cpp"):
                    objects[path] = root / f"{path}.o"
                    subprocess.run(["g++", "-std=c++20", "-I", root / "src", "-c", root / path, "-o", objects[path]], check=True)
            return house.call_graph("src/m", files, objects)

    def test_files_that_call_each_other_are_a_cycle_and_others_are_not(self):
        graph = self.graph(
            {
                "src/m/a.cpp": "void b(); void c();\nvoid a() { b(); c(); }\n",
                "src/m/b.cpp": "void a();\nvoid b() { a(); }\n",
                "src/m/c.cpp": "void c() {}\n",
            }
        )
        self.assertEqual(house.cycles(graph), [["src/m/a", "src/m/b"]])

    def test_a_call_through_an_interface_reaches_who_implements_it(self):
        seam = "struct Seam {\n  virtual ~Seam() = default;\n  virtual void ends() = 0;\n};\n"
        files = {
            "src/m/seam.hpp": "#pragma once\n" + seam,
            "src/m/low.cpp": '#include "m/seam.hpp"\nvoid low(Seam& seam) { seam.ends(); }\n',
            "src/m/high.cpp": '#include "m/seam.hpp"\nvoid low(Seam&);\nstruct High : Seam {\n  void ends() override { low(*this); }\n};\n'
            "void high() {\n  High here;\n  here.ends();\n}\n",
        }
        self.assertEqual(house.cycles(self.graph(files)), [["src/m/high", "src/m/low"]])


class Limits(unittest.TestCase):
    FINDING = house.Finding("file lines", "src/a.cpp", 600)

    def judge(self, value: int, debt: int | None = None, reason: int | None = None):
        reasons = [] if reason is None else [{"rule": "file lines", "where": "src/a.cpp", "value": reason, "reason": "a table"}]
        limits = {"reasons": reasons, "debt": {} if debt is None else {"file lines": {"src/a.cpp": debt}}}
        problems, left = house.judge([house.Finding("file lines", "src/a.cpp", value)], limits)
        return problems + house.paid(limits["debt"], left)

    def test_what_breaks_a_limit_is_told_with_its_place(self):
        self.assertEqual(self.judge(600), ["src/a.cpp: file lines: 600, at most 500"])

    def test_debt_may_stay_and_not_grow(self):
        self.assertEqual(self.judge(600, debt=600), [])
        self.assertEqual(self.judge(601, debt=600), ["src/a.cpp: file lines: 601, at most 600"])

    def test_debt_that_shrank_has_to_be_written_down(self):
        self.assertEqual(self.judge(599, debt=600), ["src/a.cpp: file lines: 600 before, 599 now"])

    def test_a_reason_allows_its_value(self):
        self.assertEqual(self.judge(600, reason=600), [])
        self.assertEqual(self.judge(601, reason=600), ["src/a.cpp: file lines: 601, at most 600"])

    def test_a_reason_that_is_needed_no_more_is_a_problem(self):
        limits = {"reasons": [{"rule": "friends", "where": "src/a.hpp", "value": 1, "reason": "tests"}], "debt": {}}
        self.assertEqual(len(house.judge([], limits)[0]), 1)


if __name__ == "__main__":
    unittest.main()
