#!/usr/bin/env python3
"""compare.py with stand-ins for Python, nvcc and vmem, which answer at once: every experiment runs, and says what differs.

    compare_test.py COMPARE_PY
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

STAND_IN = '''#!{python}
import json, os, sys
words = sys.argv[1:]
if os.path.basename(sys.argv[0]) == "vmem":
    if words[0] == "--version":
        print("vmem 0 (commit stand-in)")
        sys.exit()
    os.environ["UNDER_VMEM"] = "1"
    words = words[words.index("--") + 1:]
    os.execv(words[0], words)
if os.path.basename(sys.argv[0]) == "nvcc":
    os.symlink(sys.argv[0].replace("nvcc", "python"), words[words.index("-o") + 1])
    sys.exit()
under = "UNDER_VMEM" in os.environ
def result(case, steps):
    bad = under and case == os.environ.get("DIFFERENT")
    if under and case == os.environ.get("CRASHES"):
        sys.exit("it crashed here")
    return {{"case": case, "steps_s": [0.5] * steps, "digests": ["other" if bad else "d"] * steps, "peak_bytes": 4 << 30}}
if words[0] == "-c":
    print(json.dumps({{"device": "stand-in", "torch": "0", "cuda": "0", "devices": 2}}))
elif "--steps" in words:
    steps = int(words[words.index("--steps") + 1])
    out = open(words[words.index("--out") + 1], "a") if "--out" in words else sys.stdout
    last = next(word for word in ("--out", "--turn", "--steps") if word in words)
    for turn in range(steps // int(words[words.index("--turn") + 1]) if "--turn" in words else 0):
        print("ready", flush=True)
        assert sys.stdin.readline() == "\\n"
    for case in words[words.index(last) + 2:]:
        print(json.dumps(result(case, steps)), file=out, flush=True)
elif words == ["launches"]:
    print(json.dumps({{"median_ns": 2100.0 if under else 2000.0}}))
else:
    print(json.dumps(result("program", 4)))
'''


class Compare(unittest.TestCase):
    def run_compare(self, *arguments, **environment):
        with tempfile.TemporaryDirectory() as folder:
            programs = os.path.join(folder, "programs", "deep", "down")
            os.makedirs(programs)
            os.makedirs(os.path.join(folder, "programs", "bin"))
            script = shutil.copy(sys.argv[-1], programs)
            for path in ("bin/vmem", "bin/python", "bin/nvcc"):
                path = os.path.join(folder, "programs", path)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(STAND_IN.format(python=sys.executable))
                os.chmod(path, 0o755)
            tools = os.path.join(folder, "programs", "bin")
            record = os.path.join(folder, "record.json")
            ran = subprocess.run(
                [sys.executable, script, "--json", record, "--python", os.path.join(tools, "python"), *arguments],
                capture_output=True,
                text=True,
                env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **environment},
            )
            with open(record, encoding="utf-8") as file:
                return ran, json.load(file)

    def test_every_experiment(self):
        ran, rows = self.run_compare()
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual([row["scenario"] for row in rows if not row["verified"]], [])
        names = {row["scenario"].split(":")[0] for row in rows}
        self.assertLessEqual({"fits", "same", "strict", "two GPUs", "sharing a GPU"}, names)
        launch = next(row for row in rows if row["scenario"].startswith("a launch"))
        self.assertEqual((launch["details"]["added_ns"], launch["goal"]["met"]), (100.0, True))
        self.assertTrue(all(row["commit"] == "stand-in" for row in rows))

    def test_what_differs_is_a_failure(self):
        ran, rows = self.run_compare("--only", "same:streams", "--only", "same:conv", DIFFERENT="streams")
        self.assertEqual(ran.returncode, 1)
        self.assertEqual([row["scenario"] for row in rows if not row["verified"]], ["same: streams", "strict: streams"])
        self.assertIn("step 0 differs: other instead of d", ran.stderr)

    def test_what_crashes_takes_nothing_along(self):
        ran, rows = self.run_compare("--only", "same:streams", "--only", "same:conv", CRASHES="streams")
        self.assertEqual(ran.returncode, 1)
        self.assertEqual([row["scenario"] for row in rows if row["verified"]], ["same: conv", "strict: conv"])
        self.assertIn("it crashed here", ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
