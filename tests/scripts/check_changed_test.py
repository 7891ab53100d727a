#!/usr/bin/env python3
"""check_changed_test.py SCRIPTS: scripts/check_changed.py finds what changed, whose it is, and
which tests use it.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import check_changed as check  # noqa: E402


def target(name: str, folder: str, *sources: str, uses: tuple = (), artifact: str = "") -> check.Target:
    artifacts = frozenset([str(check.BUILD / artifact)] if artifact else [])
    return check.Target(name, folder, frozenset(f"{folder}/{source}" for source in sources), artifacts, frozenset(uses))


TARGETS = {
    each.name: each
    for each in (
        target("vmem_base", "src/base", "log.cpp"),
        target("vmem_policy", "src/migration/policy", "scan.cpp", uses=("vmem_base",)),
        target("vmem_migration", "src/migration", "mover.cpp", "flow/evictor.cpp", uses=("vmem_policy",)),
        target("vmem", "src/runtime", "c_api.cpp", uses=("vmem_migration",), artifact="lib/libvmem_gpu.so"),
        target("base_test", "tests/base", "log_test.cpp", uses=("vmem_base",), artifact="bin/base_test"),
        target("mover_test", "tests/migration", "mover_test.cpp", uses=("vmem_migration",), artifact="bin/mover_test"),
    )
}


def test_of(name: str, *command: object, environment: tuple = (), labels: tuple = ()) -> dict:
    properties = [{"name": "ENVIRONMENT", "value": list(environment)}, {"name": "LABELS", "value": list(labels)}]
    return {"name": name, "command": list(map(str, command)), "properties": properties}


class Changes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        self.git("init", "--quiet", "--initial-branch=main")
        for name in ("kept", "edited", "removed"):
            (self.tree / name).write_text("first")
        self.commit()

    def git(self, *words: str) -> None:
        settings = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *settings, *words], cwd=self.tree, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "one more")

    def changed(self, base: str = "") -> list[str]:
        return check.changed_files(base or check.base_of(self.tree), self.tree)

    def test_on_the_main_branch_it_is_the_working_tree(self):
        (self.tree / "edited").write_text("second")
        (self.tree / "removed").unlink()
        (self.tree / "new file").write_text("new")
        self.assertEqual(self.changed(), ["edited", "new file", "removed"])

    def test_on_a_branch_its_commits_count_and_those_of_the_main_branch_do_not(self):
        self.git("checkout", "--quiet", "-b", "work")
        (self.tree / "edited").write_text("second")
        self.commit()
        self.git("checkout", "--quiet", "main")
        (self.tree / "kept").write_text("second")
        self.commit()
        self.git("checkout", "--quiet", "work")
        (self.tree / "new").write_text("new")
        self.assertEqual(self.changed(), ["edited", "new"])
        self.assertEqual(self.changed("HEAD"), ["new"])


class Owners(unittest.TestCase):
    def owners(self, path: str, included: dict | None = None) -> set[str]:
        return check.owners(path, TARGETS, included or {})

    def test_a_source_belongs_to_what_compiles_it(self):
        self.assertEqual(self.owners("src/migration/flow/evictor.cpp"), {"vmem_migration"})

    def test_a_header_belongs_to_what_included_it(self):
        self.assertEqual(self.owners("src/base/log.hpp", {"src/base/log.hpp": {"vmem_base", "vmem"}}), {"vmem_base", "vmem"})

    def test_a_header_that_nothing_has_included_belongs_to_the_sources_beside_or_above_it(self):
        self.assertEqual(self.owners("src/migration/flow/new.hpp"), {"vmem_migration"})
        self.assertEqual(self.owners("src/migration/page/deep/new.hpp"), {"vmem_migration"})
        self.assertEqual(self.owners("src/migration/policy/new.hpp"), {"vmem_policy"})

    def test_a_source_that_is_no_more_belongs_to_those_beside_it(self):
        self.assertEqual(self.owners("src/base/gone.cpp"), {"vmem_base"})

    def test_rules_of_the_build_belong_to_all_that_they_make(self):
        self.assertEqual(self.owners("src/migration/CMakeLists.txt"), {"vmem_migration", "vmem_policy"})
        self.assertEqual(self.owners("cmake/VmemModule.cmake"), set(TARGETS))
        self.assertEqual(self.owners("CMakeLists.txt"), set(TARGETS))

    def test_a_document_belongs_to_nothing(self):
        self.assertEqual(self.owners("docs/guide.md"), set())

    def test_users_are_found_through_others(self):
        self.assertEqual(check.with_users({"vmem_policy"}, TARGETS), {"vmem_policy", "vmem_migration", "vmem", "mover_test"})


class Tests(unittest.TestCase):
    TESTS = (
        test_of("Mover.One", check.BUILD / "bin/mover_test", "--gtest_filter=Mover.One", labels=("migration",)),
        test_of("Log.One", check.BUILD / "bin/base_test", "--gtest_filter=Log.One"),
        test_of("Python.one", "/usr/bin/python3", check.ROOT / "tests/python/one_test.py", check.BUILD / "lib/libvmem_gpu.so"),
        test_of("Preloaded.one", "/bin/true", environment=(f"LD_PRELOAD={check.BUILD}/lib/libvmem_gpu.so",)),
        test_of("Whole.one", "/bin/sh", check.BUILD),
        test_of("Scripts.one", "/usr/bin/python3", check.ROOT / "tests/scripts/one_test.py", check.ROOT / "scripts"),
    )

    def chosen(self, changed: str, *affected: str) -> list[str]:
        numbers = check.chosen(list(self.TESTS), [changed], set(affected), TARGETS)
        return [self.TESTS[number - 1]["name"] for number in numbers]

    def test_those_that_run_or_load_what_is_affected_are_chosen(self):
        self.assertEqual(self.chosen("src/base/x.cpp", "base_test"), ["Log.One", "Whole.one"])
        self.assertEqual(self.chosen("src/x.cpp", "vmem"), ["Python.one", "Preloaded.one", "Whole.one"])

    def test_those_that_read_what_changed_are_chosen(self):
        self.assertEqual(self.chosen("scripts/lint.py"), ["Scripts.one"])
        self.assertEqual(self.chosen("tests/python/helper.py"), ["Python.one"])
        self.assertEqual(self.chosen("README.md"), [])

    def test_a_program_that_is_not_built_is_no_test(self):
        self.assertEqual(check.chosen([{"name": "mover_test_NOT_BUILT"}], [], {"mover_test"}, TARGETS), [])

    def test_long_tests_and_those_for_hardware_are_left_out(self):
        self.assertTrue(check.left_out(test_of("A", labels=("runtime", "long"))))
        self.assertTrue(check.left_out(test_of("A", labels=("bench", "hardware"))))
        self.assertFalse(check.left_out(test_of("A", labels=("runtime",))))

    def test_groups_are_programs_or_beginnings_of_names(self):
        self.assertEqual([check.group_of(test) for test in self.TESTS[:3]], ["mover_test", "base_test", "Python"])

    def test_changed_headers_are_linted_through_the_sources_named_after_them(self):
        changed = ["src/a/b.hpp", "src/a/c.cpp", "tests/a/d.cpp", "docs/e.md", "tools/f.h"]
        self.assertEqual(check.lint_files(changed), ["src/a/b.", "src/a/c.", "tools/f."])


if __name__ == "__main__":
    unittest.main()
