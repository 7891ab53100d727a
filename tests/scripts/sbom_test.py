#!/usr/bin/env python3
"""sbom_test.py SCRIPTS: scripts/sbom.py reads versions of libraries, and refuses unknown libraries.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import sbom  # noqa: E402

RULES = """
rule object
  command = cp $source $out && printf '$out: $headers' > $out.d
  depfile = $out.d
  deps = gcc
build a.o: object
  source = a.cpp
  headers = {headers}
rule link
  command = cp $in $out
build a.so: link a.o
"""


class Versions(unittest.TestCase):
    def test_one_number_holds_fmts_and_boosts_versions(self):
        self.assertEqual(sbom.dotted(["90100"]), "9.1.0")
        self.assertEqual(sbom.dotted(["110002"]), "11.0.2")
        self.assertEqual(sbom.dotted(["107400"], of_boost=True), "1.74.0")

    def test_several_numbers_and_words_stay(self):
        self.assertEqual(sbom.dotted(["1", "9", "4"]), "1.9.4")
        self.assertEqual(sbom.dotted(["3.0.19"]), "3.0.19")


class Builds(unittest.TestCase):
    """On a folder with a build file of Ninja, and libraries that only look like some."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.build = self.root / "tree/build"
        self.build.mkdir(parents=True)
        (self.build / "CMakeCache.txt").write_text(f"CMAKE_MAKE_PROGRAM:FILEPATH=ninja\nCMAKE_HOME_DIRECTORY:INTERNAL={self.root}/tree\n")
        (self.build / "a.cpp").write_text("")

    def header(self, name: str, text: str = "") -> pathlib.Path:
        path = self.root / "usr/include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def sbom(self, *headers: pathlib.Path) -> subprocess.CompletedProcess:
        rules = RULES.format(headers=" ".join(map(str, headers)))
        (self.build / "build.ninja").write_text(rules)
        subprocess.run(["ninja", "-C", self.build, "a.so"], check=True, capture_output=True)
        command = [sys.executable, SCRIPTS / "sbom.py", self.build, self.root / "sbom.json", "1.2.3", "a.so"]
        return subprocess.run(command, capture_output=True, text=True)

    def test_an_included_library_is_listed_with_its_version(self):
        text = "#define LZ4_VERSION_MAJOR 1\n#define LZ4_VERSION_MINOR 9\n#define LZ4_VERSION_RELEASE 4\n"
        done = self.sbom(self.header("lz4.h", text), self.header("stdio.h"))
        self.assertEqual(done.stderr, "")
        listed = sbom.json.loads((self.root / "sbom.json").read_text())
        self.assertEqual([(each["name"], each["version"]) for each in listed["components"]], [("lz4", "1.9.4")])
        self.assertEqual(listed["metadata"]["component"]["version"], "1.2.3")

    def test_an_unknown_library_is_refused_by_name(self):
        done = self.sbom(self.header("newlib/new.hpp"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("newlib/new.hpp belongs to no component", done.stderr)

    def test_what_is_loaded_at_run_time_is_not_listed(self):
        self.assertEqual(self.sbom(self.header("cuda.h"), self.header("ucp/api/ucp.h")).stderr, "")
        self.assertEqual(sbom.json.loads((self.root / "sbom.json").read_text())["components"], [])

    def test_a_version_in_another_form_is_an_error(self):
        done = self.sbom(self.header("lz4.h", "#define LZ4_VERSION 1\n"))
        self.assertIn("lz4", done.stderr)
        self.assertIn("no version in the expected form", done.stderr)


if __name__ == "__main__":
    unittest.main()
