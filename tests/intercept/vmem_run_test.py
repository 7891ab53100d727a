#!/usr/bin/env python3
"""vmem_run_test.py VMEM DRIVER_FOLDER INTERCEPT_PROGRAM: `vmem run` and the Python package, on the
emulated driver.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

VMEM, DRIVER_FOLDER, PROGRAM = (os.path.abspath(path) for path in sys.argv[1:4])
HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent / "python"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("VMEM_")},
    "LD_LIBRARY_PATH": DRIVER_FOLDER,
    "VMEM_EMU": "hbm=512MiB,host=1GiB",
}
SIZES = ("--hbm", "64MiB", "--host", "512MiB")


def run(*command, folder=None, **variables):
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**ENVIRONMENT, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        timeout=120,
    )


class VmemRun(unittest.TestCase):
    def test_the_emulated_driver_needs_no_link_by_hand(self):
        for given, variables in ((("--driver", "emulated"), {}), ((), {"VMEM_DRIVER": "emulated"})):
            with self.subTest(given):
                result = run(VMEM, "run", *given, *SIZES, "--", PROGRAM, "oversubscribed", LD_LIBRARY_PATH="", **variables)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("1 process with 64 MiB of HBM", result.stderr)
        result = run(VMEM, "run", "--driver", "emulated", "--", "sh", "-c", "echo $VMEM_DRIVER,$LD_LIBRARY_PATH", LD_LIBRARY_PATH="/a")
        self.assertRegex(result.stdout, "^,/.*/vmem/emulated:/a\n$")

    def test_wrong_settings_of_the_emulated_driver_are_answered_by_all_which_are_documented(self):
        result = run(VMEM, "run", "--driver", "emulated", "--", "true", VMEM_EMU="gpus=2")
        self.assertEqual(result.returncode, 3)
        known = result.stderr.partition("there are ")[2].partition("; `vmem options --emulated`")[0]
        settings = known.replace(" and ", ", ").split(", ")
        self.assertIn("hbm", settings)
        listed = run(VMEM, "options", "--emulated").stdout
        guide = (HERE.parent.parent / "docs" / "guide" / "emulated-driver.md").read_text()
        source = (HERE.parent.parent / "src" / "gpu" / "emu" / "config.cpp").read_text()
        self.assertEqual(sorted(settings), sorted(re.findall(r'if \(key == "(\w+)"\)', source)))
        for name in settings:
            self.assertRegex(listed, rf"(?m)^  (.*, )?{name}=")
            self.assertRegex(guide, rf"(?m)^\|.*`{name}`.*\|")

    def test_it_says_at_the_end_what_it_did(self):
        result = run(VMEM, "run", *SIZES, "--", PROGRAM, "oversubscribed")
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 2, result.stderr)
        self.assertRegex(lines[0], r"^vmem run: 1 process with 64 MiB of HBM and 512 MiB of host memory: [1-9]\d* launches and copies")
        self.assertRegex(lines[1], r"^vmem run: moved [1-9][\d.]* [MG]iB into HBM and [1-9][\d.]* [MG]iB out")
        for level in ("error", "off"):
            self.assertEqual(run(VMEM, "run", "--log", level, *SIZES, "--", PROGRAM, "oversubscribed").stderr, "")

    def test_the_processes_of_a_run_are_counted_together(self):
        line = 'for i in 1 2 3; do "$0" oversubscribed; done'
        result = run(VMEM, "run", *SIZES, "--", VMEM, "run", *SIZES, "--", "sh", "-c", line, PROGRAM)
        self.assertEqual(result.stderr.count("vmem run: "), 2, result.stderr)
        self.assertIn("vmem run: 3 processes with 192 MiB of HBM", result.stderr)

    def test_processes_that_are_killed_are_counted_without_figures(self):
        result = run(VMEM, "run", *SIZES, "--", PROGRAM, "ends_without_exit_handlers")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("vmem run: 1 process used GPU memory through vmem\nvmem run: no figures: killed", result.stderr)

    def test_it_says_when_nothing_used_the_gpu(self):
        result = run(VMEM, "run", "--", "true")
        self.assertIn("vmem run: nothing allocated GPU memory, so vmem did nothing\nvmem run: not seen", result.stderr)
        result = run(VMEM, "run", "--", "true", LD_LIBRARY_PATH="")
        self.assertEqual(len(result.stderr.splitlines()), 2, result.stderr)

    def test_a_program_does_not_go_on_where_vmem_cannot_start(self):
        result = run(VMEM, "run", "--hbm", "64MiB", "--nvme", "/proc/nowhere:1GiB", "--", PROGRAM, "wrong_option")
        self.assertEqual((result.returncode, result.stdout), (2, "the program began\n"), result.stderr)
        self.assertIn("vmem: cannot start: ", result.stderr)
        self.assertIn("/proc/nowhere", result.stderr)
        self.assertNotIn("vmem run: ", result.stderr)

    def test_a_program_runs_beyond_hbm(self):
        result = run(VMEM, "run", *SIZES, "--", PROGRAM, "oversubscribed")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_strict_ends_at_the_first_launch_that_reaches_further(self):
        relaxed = run(VMEM, "run", *SIZES, "--", PROGRAM, "reaches_what_it_does_not_name")
        self.assertEqual(relaxed.returncode, 0, relaxed.stderr)
        strict = run(VMEM, "run", "--strict", *SIZES, "--", PROGRAM, "reaches_what_it_does_not_name")
        self.assertNotEqual(strict.returncode, 0)
        self.assertIn("kernel 'follow'", strict.stderr)

    def recorded(self, *options, case="oversubscribed"):
        """The path of a trace of one of the program's cases."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        trace = os.path.join(folder.name, "a.trace")
        result = run(VMEM, "trace", "record", "--trace", trace, *options, *SIZES, "--", PROGRAM, case)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"vmem run: recorded {trace}", result.stderr)
        return trace

    def test_a_trace_is_recorded_shown_exported_and_bounded(self):
        trace = self.recorded()
        shown = run(VMEM, "trace", "show", trace)
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertIn("emulated driver", shown.stdout)
        self.assertRegex(shown.stdout, r"(?m)^\d+\.\d+ s: [1-9]\d* launches by 1 threads")
        self.assertRegex(shown.stdout, r"(?m)^from host memory: [1-9]")
        self.assertRegex(shown.stdout, r"(?m)^ +[1-9]\d*  add$")
        events = run(VMEM, "trace", "show", "--events", trace).stdout
        self.assertRegex(events, r"(?m)^ +\d+\.\d+ launch   thread \d+ stream \d+ epoch \d+ \w+: \d+")
        exported = json.loads(run(VMEM, "trace", "export", trace, "-o", "-").stdout)
        kinds = {event["ph"] for event in exported["traceEvents"]}
        self.assertLessEqual({"M", "X", "C", "s", "f"}, kinds)
        bounded = run(VMEM, "trace", "bound", trace, "--hbm", "64MiB", "--in", "10", "--out", "10")
        self.assertEqual((bounded.returncode, bounded.stderr), (0, ""))
        self.assertRegex(bounded.stdout, r"(?m)^  least bytes in +\d*\.\d*[1-9]\d* GiB")
        self.assertRegex(bounded.stdout, r"(?m)^  bound +[\d.]+ ms in \d+ phases$")
        replayed = run(VMEM, "trace", "replay", trace, "--hbm", "64MiB", "--page", "2MiB", "--in", "10", "--out", "10")
        self.assertEqual((replayed.returncode, replayed.stderr), (0, ""))
        self.assertRegex(replayed.stdout, r"(?m)^[1-9]\d* launches in [\d.]+ ms, of which the GPU computes [\d.]+$")
        self.assertRegex(replayed.stdout, r"(?m)^  in +\d*\.\d*[1-9]\d* GiB, link busy")
        self.assertNotIn("old contents", replayed.stdout)
        shown = run(VMEM, "trace", "replay", trace, "--hbm", "64MiB", "--page", "2MiB", "--no-look-ahead", "--json", "-")
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        busy = {event["name"] for event in json.loads(shown.stdout)["traceEvents"] if event["ph"] == "X"}
        self.assertLessEqual({"computing", "link in", "mover"}, busy)
        chain = ("--host", "96MiB", "--below", "4GiB", "--below-in", "1", "--peer", "16MiB", "--peer-rate", "100")
        planned = run(VMEM, "plan", trace, "--hbm", "64MiB", "--page", "2MiB", "--within", "0", "--json", "-", *chain)
        self.assertEqual((planned.returncode, planned.stderr), (0, ""))
        (row,) = json.loads(planned.stdout)["rows"]
        self.assertGreater(row["below_in_gib"] + row["below_out_gib"] + row["peer_in_busy_ms"], 0)
        for command in (("trace", "replay", trace, "--hbm", "64MiB"), ("plan", trace)):
            over = run(VMEM, *command, "--json", trace)
            self.assertEqual(over.returncode, 2)
            self.assertIn("itself; name another file", over.stderr)
        for flag, value in (("--host", "1MiB"), ("--host", ""), ("--peer", "many"), ("--below", "99TiB9")):
            self.assertEqual(run(VMEM, "plan", trace, flag, value).returncode, 2, (flag, value))

    def test_a_trace_says_which_stream_waits_for_which(self):
        trace = self.recorded("--trace-epoch", "1", case="streams_wait_for_events")
        events = run(VMEM, "trace", "show", "--events", trace).stdout
        records = re.findall(r"(?m) signal +thread \d+ stream (\d+) records event 1$", events)
        waits = re.findall(r"(?m) signal +thread \d+ stream (\d+) waits for event 1$", events)
        self.assertEqual((len(records), len(waits)), (3, 3), events)
        self.assertTrue(set(records).isdisjoint(waits))
        launches = re.findall(r"(?m) launch +thread \d+ stream (\d+) epoch (\d+) add:", events)
        self.assertEqual(len(launches), len(set(launches)), "each launch is an epoch of its own")

    def test_a_recorded_program_is_planned(self):
        trace = self.recorded("--trace-epoch", "1")
        planned = run(VMEM, "plan", trace, "--hbm", "64MiB,48MiB", "--page", "2MiB", "--json", "-")
        self.assertEqual((planned.returncode, planned.stderr), (0, ""))
        plan = json.loads(planned.stdout)
        self.assertEqual([row["hbm_bytes"] for row in plan["rows"]], [64 << 20, 48 << 20])
        self.assertGreater(plan["rows"][1]["in_gib"], 0)
        text = run(VMEM, "plan", trace, "--hbm", "64MiB", "--page", "2MiB", "--within", "50").stdout
        self.assertRegex(text, r"(?m)^ +64 MiB +[\d.]+ +[\d.]+ ")
        self.assertRegex(text, r"of HBM is the least whose periods take at most 50 % longer")
        for arguments, words in ((["--hbm", "4MiB"], "--hbm is '4MiB'"), (["--page", "3MiB"], "--page is '3MiB'"),
                                 (["--hbm", "32MiB", "--page", "64MiB"], "32 MiB of HBM is too little")):
            refused = run(VMEM, "plan", trace, *arguments)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(words, refused.stderr)

    def test_a_traces_name_comes_from_the_flag_or_the_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            command = ("sh", "-c", 'cd / && exec "$0" oversubscribed', PROGRAM)
            for arguments, variables, name in (
                (("run",), {"VMEM_TRACE": "environment"}, "environment"),
                (("trace", "record"), {"VMEM_TRACE": "both"}, "both"),
                (("trace", "record"), {}, "vmem.trace"),
            ):
                with self.subTest(name):
                    result = run(VMEM, *arguments, *SIZES, "--", *command, folder=folder, **variables)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertTrue(os.path.exists(os.path.join(folder, name)), os.listdir(folder))

    def test_bad_traces_are_refused_with_words(self):
        trace = self.recorded()
        again = run(VMEM, "trace", "record", "--trace", trace, *SIZES, "--", PROGRAM, "oversubscribed")
        self.assertEqual(again.returncode, 2)
        self.assertIn("exists, and is left as it is", again.stderr)
        with open(trace, "rb") as file:
            whole = file.read()
        for name, content, expected in (
            ("text", b"hello", "is no trace of vmem"),
            ("newer", whole[:8] + b"\x03" + whole[9:], "has version 3"),
            ("damaged", whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:], "is damaged"),
        ):
            with self.subTest(name):
                path = trace + name
                with open(path, "wb") as file:
                    file.write(content)
                for command in (("show", path), ("export", path, "-o", "-"), ("bound", path, "--hbm", "1GiB"), ("replay", path, "--hbm", "1GiB")):
                    result = run(VMEM, "trace", *command)
                    self.assertEqual((result.returncode, result.stdout), (2, ""), command)
                    self.assertIn(expected, result.stderr)
        for arguments, expected in (
            (("--hbm", "64MiB"), "does not say how fast the link is"),
            (("--hbm", "2MiB", "--in", "10", "--out", "10"), "nothing runs in less than that"),
            (("--hbm", "much", "--in", "10", "--out", "10"), "--hbm is 'much'"),
            (("--hbm", "1GiB", "--in", "10", "--out", "10", "--from", "1000"), "no launch of device 0"),
            (("--hbm", "1GiB", "--in", "10", "--out", "10", "--device", "1"), "--device is 1, and 1 were recorded"),
            (("--hbm", "1GiB", "--in", "-1"), "--in"),
            ((), "--hbm is missing"),
        ):
            result = run(VMEM, "trace", "bound", trace, *arguments)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(expected, result.stderr)
        for arguments, expected in (
            (("--hbm", "2MiB"), "--hbm is '2MiB'"),
            (("--hbm", "1GiB", "--page", "1MiB"), "--page is '1MiB'"),
            (("--hbm", "1GiB", "--page", "6MiB"), "no power of two"),
            (("--hbm", "64MiB", "--page", "256MiB"), "more than an eighth"),
            (("--hbm", "1GiB", "--in", "0.001"), "--in"),
            (("--hbm", "1GiB", "--from", "1000"), "no launch comes after 1000.000 s"),
            ((), "--hbm is missing"),
        ):
            result = run(VMEM, "trace", "replay", trace, *arguments)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(expected, result.stderr)
        itself = run(VMEM, "trace", "export", trace, "-o", trace)
        self.assertIn("names the trace itself", itself.stderr)
        self.assertIn("name a command: record, show, export, bound, replay", run(VMEM, "trace").stderr)
        self.assertIn("vmem trace record [OPTIONS] -- python x", run(VMEM, "trace", "record", "python", "x").stderr)
        missing = run(VMEM, "run", "--trace", "/no/such/folder/a", *SIZES, "--", PROGRAM, "oversubscribed")
        self.assertEqual(missing.returncode, 2)
        self.assertIn("/no/such/folder/a", missing.stderr)

    def test_a_program_without_cuda_is_left_alone(self):
        result = run(VMEM, "run", "--", "sh", "-c", "echo untouched; exit 7")
        self.assertEqual((result.returncode, result.stdout), (7, "untouched\n"), result.stderr)

    def borrowing(self, *command):
        """With a secret and a node to borrow from, `vmem run` stays beside the program."""
        secret = tempfile.NamedTemporaryFile("w", suffix=".secret")
        self.addCleanup(secret.close)
        secret.write("0123456789abcdef0123456789abcdef")
        secret.flush()
        return (VMEM, "run", "--remote", "127.0.0.1:9", "--secret", secret.name, "--", *command)

    def test_beside_a_program_that_borrows_it_ends_as_the_program_does(self):
        result = run(*self.borrowing("sh", "-c", "echo said; exit 7"))
        self.assertEqual((result.returncode, result.stdout), (7, "said\n"), result.stderr)
        self.assertEqual(run(*self.borrowing("sh", "-c", "kill -9 $$")).returncode, -signal.SIGKILL)
        self.assertEqual(run(*self.borrowing("no-such-program")).returncode, 127)

    def test_beside_a_program_that_borrows_it_passes_signals_on(self):
        command = self.borrowing("sh", "-c", "trap 'echo heard; exit 5' TERM; echo ready; while :; do sleep 0.01; done")
        with subprocess.Popen([str(part) for part in command], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as it:
            self.assertEqual(it.stdout.readline(), "ready\n")
            it.terminate()
            self.assertEqual(it.stdout.readline(), "heard\n")
            self.assertEqual(it.wait(timeout=60), 5)

    def test_a_program_that_borrows_does_not_outlive_it(self):
        command = self.borrowing("sh", "-c", "echo ready; exec sleep 1000")
        with subprocess.Popen([str(part) for part in command], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as it:
            self.assertEqual(it.stdout.readline(), "ready\n")
            it.kill()
            self.assertEqual(it.stdout.read(), "", "its output ends with the program")

    def test_without_a_driver_such_a_program_runs_too(self):
        result = run(VMEM, "run", "--", "true", LD_LIBRARY_PATH="")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_arguments_arrive_as_they_are(self):
        result = run(VMEM, "run", "--", "printf", "%s|", "a b", "--hbm", "", "*")
        self.assertEqual(result.stdout, "a b|--hbm||*|", result.stderr)

    def assert_refused(self, result, *words):
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_a_wrong_option_stops_before_the_program(self):
        for option, words in (
            (("--hbm", "tiny"), "(from --hbm)"),
            (("--hbm=31MiB",), "less than 32 MiB"),
            (("--host=15MiB",), "less than 16 MiB"),
            (("--page=16MiB", "--hbm=64MiB"), "more than 8MiB"),
            (("--no-such-option", "1"), "--no-such-option"),
            (("--strict", "--drained"), "choose one"),
            (("--strict=maybe",), "neither on nor off"),
            (("--devices", "7"), "device 7"),
            (("--driver", "/lib/libcuda.so.1"), "--driver is '/lib/libcuda.so.1'"),
            (("--protect",), "--protect is for programs that say what they write"),
            (("--hbm",), "--hbm needs a value"),
            (("--hbm", "1GiB", "--hbm", "2GiB"), "--hbm is given more than once"),
        ):
            with self.subTest(option):
                self.assert_refused(run(VMEM, "run", *option, "--", "echo", "started"), "vmem run: ", words)

    def test_options_are_checked_without_a_program(self):
        result = run(VMEM, "run", "--check", "--hbm", "64MiB")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        self.assertEqual(run(VMEM, "run", "--check", "--hbm", "64MiB", "--", "echo", "started").stdout, "")
        self.assert_refused(run(VMEM, "run", "--check", "--devices", "7"), "device 7")

    def test_a_wrong_variable_is_named(self):
        for name, value in (("VMEM_DRIVER", "/lib/libcuda.so.1"), ("VMEM_PROTECT", "on")):
            self.assert_refused(run(VMEM, "run", "--", "echo", "started", **{name: value}), f"environment variable {name} is")
        result = run(VMEM, "run", "--strict", "--", "echo", "started", VMEM_DRAINED="on")
        self.assert_refused(result, "drained=on (from VMEM_DRAINED)")

    def test_a_switch_takes_off_what_the_environment_turned_on(self):
        result = run(VMEM, "run", "--strict=off", "--", "sh", "-c", "echo $VMEM_STRICT", VMEM_STRICT="on")
        self.assertEqual(result.stdout, "off\n", result.stderr)

    def test_an_unknown_option_is_answered_by_the_nearest(self):
        result = run(VMEM, "run", "--acquire_wait", "5s", "--", "echo", "started")
        self.assert_refused(result, "vmem run: there is no option --acquire_wait", "the nearest is --acquire-wait")

    def test_a_program_without_dashes_before_it_is_refused(self):
        self.assert_refused(run(VMEM, "run", "echo"), "put the program after --: vmem run [OPTIONS] -- echo;")
        self.assert_refused(run(VMEM, "run", "--hbm=1GiB", "echo", "-n", "a b"), "-- echo -n 'a b';")
        self.assert_refused(run(VMEM, "run", "--hbm=1GiB", "python", "--hbm", "2GiB"), "[OPTIONS] -- python;")
        self.assert_refused(run(VMEM, "run", "1GiB", "--", "echo"), "1GiB is neither an option nor")

    def test_help_has_one_usage_and_offers_what_can_be_given(self):
        result = run(VMEM, "run", "--help")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout.count("Usage:"), 1)
        self.assertIn("Usage: vmem run [OPTIONS] -- PROGRAM [ARGUMENTS]", result.stdout)
        self.assertIn("emulated", result.stdout)
        self.assertNotIn("--protect", result.stdout)
        variables = result.stdout[result.stdout.index("environment variables") :]
        self.assertIn("--hbm", variables)
        self.assertNotIn("--no-python", variables)

    def test_an_installation_without_its_python_package_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(VMEM).parent.parent
            for part in ("bin", "lib"):
                os.mkdir(os.path.join(folder, part))
            for name in ("bin/vmem", "lib/libvmem_preload.so", "lib/libvmem_gpu.so.0"):
                shutil.copy(root / name, os.path.join(folder, name))
            vmem = os.path.join(folder, "bin", "vmem")
            self.assert_refused(run(vmem, "run", "--", "true"), "share/vmem/python", "--no-python")
            self.assertEqual(run(vmem, "run", "--no-python", "--", "true").returncode, 0)

    def test_a_missing_program_is_named(self):
        result = run(VMEM, "run", "--", "no-such-program")
        self.assertEqual(result.returncode, 127)
        self.assertIn("cannot run no-such-program: no folder of PATH", result.stderr)
        self.assertIn(os.environ["PATH"], result.stderr)
        self.assertIn("./nothing: No such file", run(VMEM, "run", "--", "./nothing").stderr)
        self.assertEqual(run(VMEM, "run", "--", HERE).returncode, 126)
        self.assertEqual(run(VMEM, "run").returncode, 2)
        self.assert_refused(run(VMEM, "run", "--", ""), "the program's name, is empty")

    def test_a_driver_without_memory_mapping_is_refused(self):
        result = run(VMEM, "run", "--", "echo", "started", VMEM_EMU="vmm=0")
        self.assertEqual((result.returncode, result.stdout), (3, ""))
        self.assertIn("vmem doctor", result.stderr)


class Python(unittest.TestCase):
    def python(self, script, *command, **variables):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(textwrap.dedent(script))
            file.flush()
            return run(*command, file.name, PYTHONPATH=HERE / "fake_torch", **variables)

    def test_torch_gets_the_allocator_and_answers_for_its_memory(self):
        result = self.python(
            """
            import ctypes, torch
            driver = ctypes.CDLL("libcuda.so.1")
            context = ctypes.c_void_p()
            assert driver.cuInit(0) == 0
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert driver.cuCtxSetCurrent(context) == 0
            a = torch.current
            assert set(a._allocator.functions) == {"record_stream", "reset", "begin_allocate_to_pool", "end_allocate_to_pool", "release_pool"}
            pointer = a.alloc(5 << 20, 0, None)
            assert 0x7d0000000000 <= pointer < 0x7e0000000000, hex(pointer)
            stats = torch._C._cuda_memoryStats(0)
            assert stats["allocated_bytes"]["all"]["current"] == 5 << 20, stats
            small = a.alloc(1000, 0, None)
            a.free(pointer, 5 << 20, 0, None)
            stats = torch._C._cuda_memoryStats(0)
            assert stats["allocated_bytes"]["all"] == dict(current=1000, peak=(5 << 20) + 1000,
                                                           allocated=(5 << 20) + 1000, freed=5 << 20), stats
            assert stats["reserved_bytes"]["all"]["current"] >= (5 << 20) + 1000
            torch._C._cuda_resetPeakMemoryStats(0)
            assert torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 1000
            ctypes.CFUNCTYPE(None)(a._allocator.functions["reset"])()
            assert torch._C._cuda_memoryStats(0)["reserved_bytes"]["all"]["current"] == 1000
            assert a.alloc(5 << 20, 0, None) is not None
            print("fine")
            """,
            *(VMEM, "run", *SIZES, "--", sys.executable),
        )
        self.assertEqual((result.returncode, result.stdout), (0, "fine\n"), result.stderr)

    def test_asking_whether_torch_is_there_is_no_import(self):
        result = self.python(
            "import importlib.util as u; u.find_spec('torch'); import torch; assert torch.current is not None",
            *(VMEM, "run", "--", sys.executable),
        )
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_enable_from_standard_input_is_refused(self):
        script = f"import sys; sys.path.append({str(PACKAGE)!r}); import vmem.torch; vmem.torch.enable(hbm='64MiB')"
        result = run("sh", "-c", 'printf "%s" "$0" | "$1" -', script, sys.executable)
        self.assertEqual(result.returncode, 1)
        self.assertIn("there is no script", result.stderr)

    def test_python_can_be_left_alone(self):
        result = self.python(
            "import torch; assert torch.current is None", *(VMEM, "run", "--no-python", "--", sys.executable)
        )
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_programs_own_sitecustomize_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "sitecustomize.py").write_text("print('mine')\n")
            result = run(VMEM, "run", "--", sys.executable, "-c", "print('script')", PYTHONPATH=folder)
        self.assertEqual(result.stdout, "mine\nscript\n", result.stderr)

    def test_enable_starts_the_script_under_vmem(self):
        result = self.python(
            f"""
            import sys
            sys.path.append({str(PACKAGE)!r})
            import vmem.torch
            vmem.torch.enable(hbm="64MiB", host="512MiB")
            import os, torch
            assert torch.current is not None
            print(os.environ["VMEM_HBM"], sys.argv[1:])
            """,
            sys.executable,
            PATH=f"{pathlib.Path(VMEM).parent}:{os.environ['PATH']}",
        )
        self.assertEqual((result.returncode, result.stdout), (0, "64MiB []\n"), result.stderr)

    def enabling(self, before, options, **variables):
        """A script that calls enable(options) after the lines `before`, and prints whether it went
        on under vmem.
        """
        script = (
            f"import sys\nsys.path.append({str(PACKAGE)!r})\n"
            + textwrap.dedent(before)
            + f"import vmem.torch\ntry:\n    vmem.torch.enable({options})\nexcept Exception as error:\n"
            + "    sys.exit(f'{type(error).__name__}: {error}')\nprint(vmem.torch.running())\n"
        )
        variables.setdefault("PYTHONPATH", HERE / "fake_torch")
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(script)
            file.flush()
            return run(sys.executable, file.name, PATH=f"{pathlib.Path(VMEM).parent}:{os.environ['PATH']}", **variables)

    def test_enable_raises_where_it_cannot_work(self):
        for before, options, variables, words in (
            ("", "", {"PYTHONPATH": ""}, "RuntimeError: vmem.torch.enable: this Python has no PyTorch"),
            ("", "", {"LD_LIBRARY_PATH": ""}, "RuntimeError: vmem.torch.enable: there is no CUDA driver (libcuda.so.1)"),
            ("", "hbm='tiny'", {}, "ValueError: vmem: option hbm='tiny'"),
            ("", "hmb='1GiB'", {}, "ValueError: vmem: there is no option --hmb; the nearest is --hbm"),
            ("", "strict=True, drained=True", {}, "choose one"),
            ("", "devices=7", {}, "ValueError: vmem: --devices names device 7"),
            ("", "", {"VMEM_EMU": "vmm=0"}, "RuntimeError: vmem: device 0 and its driver cannot map memory"),
            ("sys.modules['ipykernel'] = sys\n", "", {}, "start Jupyter with `vmem run -- jupyter lab`"),
        ):
            with self.subTest(words):
                result = self.enabling(before, options, **variables)
                self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
                self.assertIn(words, result.stderr)

    def test_enable_takes_the_emulated_driver(self):
        result = self.enabling("", "hbm='64MiB', host='512MiB', driver='emulated'", LD_LIBRARY_PATH="")
        self.assertEqual((result.returncode, result.stdout), (0, "True\n"), result.stderr)

    def test_enable_says_that_what_stands_before_it_runs_twice(self):
        first = textwrap.dedent(
            f"""
            'A script.'
            import sys
            from os import path
            import vmem.torch
            vmem.torch.enable(hbm="64MiB", host="512MiB", strict=False)
            print("once")
            """
        )
        before = first.replace("import vmem", "print('twice')\nimport vmem")
        inside = first.replace("vmem.torch.enable(", "def start():\n    vmem.torch.enable(").replace("print", "start()\nprint")
        for script, says, printed in ((first, 0, "once\n"), (before, 1, "twice\ntwice\nonce\n"), (inside, 1, "once\n")):
            with self.subTest(script):
                path = f"{pathlib.Path(VMEM).parent}:{os.environ['PATH']}"
                with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
                    file.write(script)
                    file.flush()
                    result = run(sys.executable, file.name, PYTHONPATH=f"{HERE / 'fake_torch'}:{PACKAGE}", PATH=path)
                self.assertEqual((result.returncode, result.stdout), (0, printed), result.stderr)
                self.assertEqual(result.stderr.count(f"vmem: starting {file.name} again"), says, result.stderr)

    def test_enable_after_cuda_was_initialised_is_refused(self):
        result = self.python(
            f"""
            import sys, torch
            sys.path.append({str(PACKAGE)!r})
            torch.cuda.is_initialized = lambda: True
            import vmem.torch
            vmem.torch.enable(hbm="64MiB")
            """,
            sys.executable,
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn("CUDA is initialised", result.stderr)

    def test_the_allocator_without_vmem_under_it_is_refused(self):
        # As PyTorch loads a pluggable allocator: nobody would see the launches.
        library = pathlib.Path(VMEM).parent.parent / "lib" / "libvmem_preload.so"
        script = f"""
            import ctypes
            library = ctypes.CDLL({str(library)!r})
            library.vmem_torch_alloc.restype = ctypes.c_void_p
            library.vmem_torch_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
            assert library.vmem_torch_alloc(4 << 20, 0, None) is None
            """
        result = run(sys.executable, "-c", textwrap.dedent(script))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("too late", result.stderr)
        self.assertIn("use `vmem run`", result.stderr)

    def test_two_of_it_are_one(self):
        result = run(VMEM, "run", *SIZES, "--", VMEM, "run", *SIZES, "--", PROGRAM, "oversubscribed")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_module_runs_a_script(self):
        result = self.python(
            "import os, sys, torch; print(os.environ['VMEM_HBM'], torch.current is not None)",
            *(sys.executable, "-c", f"import sys, runpy; sys.path.append({str(PACKAGE)!r}); sys.argv[0:1] = ['vmem']; "
              "runpy.run_module('vmem', run_name='__main__', alter_sys=False)", "--hbm", "64MiB"),
            PATH=f"{pathlib.Path(VMEM).parent}:{os.environ['PATH']}",
        )
        self.assertEqual((result.returncode, result.stdout), (0, "64MiB True\n"), result.stderr)

    def module(self, *arguments, **variables):
        path = f"{pathlib.Path(VMEM).parent}:{os.environ['PATH']}"
        return run(sys.executable, "-m", "vmem", *arguments, PYTHONPATH=PACKAGE, PATH=path, **variables)

    def test_the_module_knows_which_options_stand_alone(self):
        code = "import os, sys; print(os.environ.get('VMEM_STRICT'), os.environ.get('VMEM_HBM'), sys.argv[1:])"
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(code)
            file.flush()
            for given, printed in (
                (("--strict", file.name), "on None []"),
                (("--no-python", "--hbm", "64MiB", "--strict", "--", file.name, "--hbm", "x"), "on 64MiB ['--hbm', 'x']"),
                (("--", file.name), "None None []"),
                (("--hbm=64MiB", "-c", code, "--", "-h"), "None 64MiB ['--', '-h']"),
            ):
                with self.subTest(given):
                    result = self.module(*given)
                    self.assertEqual((result.returncode, result.stdout), (0, printed + "\n"), result.stderr)

    def test_the_modules_options_are_refused_by_name(self):
        for given, words in (
            ((), "name the script"),
            (("--strict",), "name the script"),
            (("--hbm",), "--hbm needs a value: auto, or a size"),
            (("--hbm", "--strict", "s.py"), "--hbm needs a value"),
            (("--strct", "s.py"), "no option '--strct'; the nearest is --strict"),
            (("--acquire_wait=1s", "s.py"), "--acquire-wait"),
            (("--strict", "--drained", "s.py"), "choose one"),
            (("",), "empty"),
        ):
            with self.subTest(given):
                result = self.module(*given)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertIn(words, result.stderr)

    def test_the_module_has_help_and_a_version(self):
        for given in (("--help",), ("-h",), ("--hbm", "64MiB", "--help")):
            result = self.module(*given)
            self.assertEqual((result.returncode, result.stdout.count("Usage:")), (0, 1), result.stderr)
            for word in ("python -m vmem [OPTIONS] [--] SCRIPT", "--hbm", "--no-python"):
                self.assertIn(word, result.stdout)
        self.assertEqual(self.module("--version").stdout, run(VMEM, "--version").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
