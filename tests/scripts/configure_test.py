#!/usr/bin/env python3
"""configure.sh in a checkout whose build folder belongs to another one, and what `make install`
builds.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Configure(unittest.TestCase):
    def test_a_copied_build_folder_is_explained(self):
        with tempfile.TemporaryDirectory() as copy:
            (pathlib.Path(copy) / "scripts").mkdir()
            shutil.copy(ROOT / "scripts" / "configure.sh", f"{copy}/scripts/configure.sh")
            build = pathlib.Path(copy) / "build" / "release"
            build.mkdir(parents=True)
            (build / "CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/home/somebody/vmem\n")
            done = subprocess.run([f"{copy}/scripts/configure.sh", "release"], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("build/release was made for /home/somebody/vmem, and was copied here", done.stderr)
            self.assertIn("rm -r build/release", done.stderr)

    def test_installing_builds_no_tests(self):
        commands = subprocess.run(["make", "-n", "install"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        build = next(line for line in commands.splitlines() if "--build" in line)
        self.assertEqual(re.findall(r"--target (.*)", build), ["vmem vmem_emu vmem_preload vmem_ucx_address vmem_program"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
