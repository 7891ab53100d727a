#!/usr/bin/env python3
"""h200.sh and h200-tiers.sh with a stand-in for vmem: every scenario is a run of its own, and all
records are in one file.

    measure_test.py FOLDER_OF_THE_SCRIPTS
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

STAND_IN = """#!{python}
import json, os, sys
if sys.argv[1] == "doctor":
    sys.exit()
scenario, path = sys.argv[2], sys.argv[sys.argv.index("--json") + 1]
if scenario == os.environ.get("FAILS"):
    sys.exit(3)
print("row of", scenario)
with open(path, "w") as file:
    json.dump([{{"scenario": scenario, "command": sys.argv[1:]}}], file, indent=2)
    file.write("\\n")
"""


class Measure(unittest.TestCase):
    def run_script(self, name, *arguments, **environment):
        with tempfile.TemporaryDirectory() as folder:
            for each in ("measure.sh", name + ".sh"):
                shutil.copy(os.path.join(sys.argv[-1], each), folder)
            os.mkdir(os.path.join(folder, "bin"))
            program = os.path.join(folder, "bin", "vmem")
            with open(program, "w", encoding="utf-8") as file:
                file.write(STAND_IN.format(python=sys.executable))
            os.chmod(program, 0o755)
            out = os.path.join(folder, "out")
            ran = subprocess.run(
                ["sh", os.path.join(folder, name + ".sh"), out, *(each.format(folder=folder) for each in arguments)],
                capture_output=True,
                text=True,
                env={**os.environ, **environment},
            )
            with open(os.path.join(out, name + ".json"), encoding="utf-8") as file:
                return ran, json.load(file), sorted(os.listdir(folder))

    def test_the_table_of_goals(self):
        ran, records, _ = self.run_script("h200", os.devnull)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(len(records), 11)
        self.assertIn("row of matmul", ran.stdout)

    def test_what_lies_below_host_memory(self):
        ran, records, left = self.run_script("h200-tiers", "{folder}", DRIVER="emulated")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual({each["scenario"] for each in records}, {"map", "stream", "tier", "compress", "net"})
        self.assertTrue(all("emulated" in each["command"] for each in records))
        self.assertEqual([each for each in left if each.startswith("vmem-tiers")], [], "the disk's folder is removed")

    def test_one_that_fails_takes_nothing_along(self):
        ran, records, _ = self.run_script("h200-tiers", "{folder}", FAILS="map")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("h200-tiers: map failed", ran.stderr)
        self.assertEqual(len(records), 4)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
