#!/usr/bin/env python3
"""option_guide_test.py SCRIPTS: the guide says of each option what the program's table says."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import option_guide  # noqa: E402

OPTION = {
    "name": "call_wait",
    "flag": "--call-wait",
    "environment": "VMEM_CALL_WAIT",
    "default": "30s",
    "values": "a duration such as 5s",
    "switch": False,
    "help": "How long a call waits. " + "word " * 40,
}


class Guide(unittest.TestCase):
    def test_an_option_has_its_three_names_values_and_default(self):
        text = option_guide.document([OPTION])
        for words in ("## call_wait\n", "`--call-wait`", "`VMEM_CALL_WAIT`", "Default: `30s`", "a duration such as 5s."):
            self.assertIn(words, text)

    def test_no_line_is_wider_than_the_documents_may_be(self):
        self.assertLessEqual(max(map(len, option_guide.document([OPTION]).splitlines())), option_guide.WIDTH)

    def test_check_fails_for_a_guide_that_differs_and_names_the_remedy(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "vmem"
            program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps([OPTION])}\nEND\n")
            program.chmod(0o755)
            done = subprocess.run(
                [sys.executable, SCRIPTS / "option_guide.py", "--check", "--program", program], capture_output=True, text=True
            )
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn("run scripts/option_guide.py", done.stdout)

    def test_a_program_that_is_not_there_is_named(self):
        done = subprocess.run(
            [sys.executable, SCRIPTS / "option_guide.py", "--check", "--program", "/nowhere/vmem"], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere/vmem", done.stderr)


if __name__ == "__main__":
    unittest.main()
