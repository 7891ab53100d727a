#!/usr/bin/env python3
"""Tests compare.py with stand-ins for Python, nvcc and vmem: every experiment runs and reports
differences.

    compare_test.py COMPARE_PY
"""

import glob
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

STAND_IN = '''#!{python}
import json, os, sys
words = sys.argv[1:]
if os.path.basename(sys.argv[0]) == "vmem":
    if words[0] == "--version":
        print("vmem 0 (commit stand-in)")
        sys.exit()
    if words[0] == "plan":
        hbm = int(words[words.index("--hbm") + 1])
        row = {{"hbm_bytes": hbm, "ms": 900.0, "bound_ms": 600.0, "maps": 30}}
        with open(words[words.index("--json") + 1], "w") as file:
            json.dump({{"periods": 2, "launches": 29, "fits": {{"ms": 300.0}}, "rows": [row]}}, file)
        sys.exit()
    os.environ["UNDER_VMEM"] = "1"
    words = words[words.index("--") + 1:]
    os.execv(words[0], words)
if os.path.basename(sys.argv[0]) == "nvcc":
    os.symlink(sys.argv[0].replace("nvcc", "python"), words[words.index("-o") + 1])
    sys.exit()
under = "UNDER_VMEM" in os.environ
def launch_ns():
    """Native launches get slower from run to run; vmem adds little to the first, and 400 ns to every other."""
    log = os.path.join(os.path.dirname(sys.argv[0]), "under" if under else "native")
    with open(log, "a+") as file:
        file.write("run\\n")
        file.seek(0)
        run = len(file.readlines())
    return 2000.0 + 100 * run + (0 if not under else 50 if run == 1 else 400)
def result(case, steps, turns=False):
    bad = under and case == os.environ.get("DIFFERENT")
    if under and case == os.environ.get("CRASHES"):
        sys.exit("it crashed here")
    seconds = [1.0] * (steps // 2) + [0.5] * (steps - steps // 2) if turns else [0.5] * steps
    return {{"case": case, "steps_s": seconds, "digests": ["other" if bad else "d"] * steps, "peak_bytes": 4 << 30, "steady_peak_bytes": 3 << 30, **({{"vmem_per_step": {{"acquires": 10}}}} if under else {{}})}}
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
        print(json.dumps(result(case, steps, "--turn" in words)), file=out, flush=True)
elif words == ["launches"]:
    print(json.dumps({{"median_ns": launch_ns()}}))
else:
    print(json.dumps(result("program", 4)))
'''


class Compare(unittest.TestCase):
    def run_compare(self, *arguments, **environment):
        with tempfile.TemporaryDirectory() as folder:
            programs = os.path.join(folder, "programs", "deep", "down")
            os.makedirs(programs)
            os.makedirs(os.path.join(folder, "programs", "bin"))
            for path in glob.glob(os.path.join(os.path.dirname(sys.argv[-1]), "*.py")):
                shutil.copy(path, programs)
            script = os.path.join(programs, os.path.basename(sys.argv[-1]))
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

    def test_kinds_get_parts_of_the_peak_of_a_steady_step(self):
        _, rows = self.run_compare("--only", "kinds:conv", "--quick")
        self.assertEqual([row["options"]["hbm_bytes"] for row in rows], [2 << 30, 3 << 29])

    def test_kinds_are_planned_too_and_figures_are_of_a_step(self):
        for row in self.run_compare("--only", "kinds:conv", "--quick")[1]:
            planned = row["details"]["planned"]
            self.assertEqual(planned["steps"], 3, "29 launches of a period, where a step has 10")
            self.assertEqual((planned["ms"], planned["bound_ms"], planned["fits_ms"], planned["maps"]), (300, 200, 100, 10))

    def test_a_plan_without_periods_is_of_a_part_of_the_steps(self):
        sys.path.insert(0, os.path.dirname(sys.argv[-1]))
        runs = importlib.import_module("runs")
        plan = {"periods": 0, "launches": 54, "fits": {"ms": 540.0}, "rows": [{"ms": 1080.0}]}
        self.assertAlmostEqual(runs.planned_step(plan, 10)["ms"], 200.0)
        self.assertEqual(runs.planned_step("vmem plan: no launches", 10), {"error": "vmem plan: no launches"})

    def test_every_experiment(self):
        ran, rows = self.run_compare()
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual([row["scenario"] for row in rows if not row["verified"]], [])
        names = {row["scenario"].split(":")[0] for row in rows}
        self.assertLessEqual({"fits", "same", "strict", "two GPUs", "sharing a GPU"}, names)
        self.assertTrue(all(row["commit"] == "stand-in" for row in rows))

    def test_what_a_launch_adds_is_the_median_of_pairs_and_no_difference_of_minima(self):
        launch = next(row for row in self.run_compare("--only", "others")[1] if row["scenario"].startswith("a launch"))
        details = launch["details"]
        self.assertEqual((details["added_ns"], launch["goal"]["met"]), (400.0, False), "the minima differ by 50 ns")
        self.assertEqual(details["added_least_and_most_ns"], [50.0, 400.0])
        self.assertEqual(details["added_quartiles_ns"], [400.0, 400.0, 400.0])
        self.assertEqual(launch["limit"], statistics.median(details["native_ns"]))
        self.assertEqual(launch["achieved"], statistics.median(details["vmem_ns"]))

    def test_what_is_done_by_turns_counts_all_of_them(self):
        rows = self.run_compare("--only", "fits", "--only", "turns", "--quick")[1]
        self.assertEqual([row["options"]["hbm_bytes"] for row in rows if row["scenario"].startswith("turns")], [3 << 29])
        for row in rows:
            self.assertEqual((row["limit"], row["achieved"], row["ratio"]), (0.75, 0.75, 1.0), "the later half took 0.5")
            self.assertEqual(row["details"]["quartiles_s"], [0.5, 0.75, 1.0])

    def test_strict_runs_take_as_many_steps_as_the_others(self):
        _, rows = self.run_compare("--only", "same:streams", "--only", "two_gpus:ddp")
        steps = {row["scenario"]: len(row["details"]["steps_s"]) for row in rows}
        self.assertEqual(steps["strict: streams"], steps["same: streams"])
        self.assertEqual(steps["strict, two GPUs: ddp"], steps["two GPUs: ddp"])

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


class Peaks(unittest.TestCase):
    def program(self, name, **modules):
        sys.path.insert(0, os.path.dirname(sys.argv[-1]))
        with mock.patch.dict(sys.modules, modules):
            return importlib.import_module(name)

    def test_of_cupy_is_what_was_held_at_once(self):
        cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(MemoryHook=object))
        peak = self.program("cupy_cases", cupy=cupy).Peak()
        peak.malloc_postprocess(device_id=0, size=10, mem_size=512, mem_ptr=1)
        peak.malloc_postprocess(device_id=0, size=1000, mem_size=1024, mem_ptr=2)
        peak.free_postprocess(device_id=0, mem_size=512, mem_ptr=1)
        peak.malloc_postprocess(device_id=0, size=10, mem_size=512, mem_ptr=3)
        self.assertEqual(peak.most, 1536)

    def test_of_jax_is_what_its_allocator_counted(self):
        jax = self.program("jax_cases", **{each: mock.MagicMock() for each in ("jax", "jax.numpy", "numpy")})
        counted = mock.Mock(memory_stats=lambda: {"peak_bytes_in_use": 7, "bytes_in_use": 3})
        self.assertEqual(jax.peak_bytes(counted), 7)
        self.assertIsNone(jax.peak_bytes(mock.Mock(memory_stats=lambda: None)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
