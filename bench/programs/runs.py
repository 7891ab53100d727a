"""Runs programs with and without vmem, and keeps a record of each comparison; the experiments are
in compare.py.
"""

import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def find_vmem():
    for folder in ("../../bin", "../../../bin", "../../build/release/bin"):
        path = os.path.normpath(os.path.join(HERE, folder, "vmem"))
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("vmem")
    if found is None:
        sys.exit("compare.py: no vmem program beside this file's installation nor on PATH")
    return found


class Bench:
    def __init__(self, arguments):
        self.vmem, self.python, self.quick = find_vmem(), arguments.python, arguments.quick
        self.limit_s, self.json = arguments.limit, arguments.json
        self.records, self.failures = [], []
        version = subprocess.run([self.vmem, "--version"], capture_output=True, text=True, check=True).stdout
        about = self.ask_about()
        self.common = {
            "device": about["device"],
            "emulated": False,
            "commit": version.split("commit ")[-1].rstrip(")\n"),
            "machine": {"cpu": cpu(), "cores": os.cpu_count(), "system": platform.platform(), **about},
            "command": " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]),
        }
        self.devices = about["devices"]

    def ask_about(self):
        script = (
            "import torch, json; p = torch.cuda.get_device_properties(0);"
            "print(json.dumps({'device': p.name, 'torch': torch.__version__, 'cuda': torch.version.cuda,"
            " 'devices': torch.cuda.device_count()}))"
        )
        asked = subprocess.run([self.python, "-c", script], capture_output=True, text=True)
        if asked.returncode != 0:
            sys.exit(f"compare.py: {self.python} has no PyTorch with a GPU:\n{asked.stderr}")
        return json.loads(asked.stdout)

    def under_vmem(self, command, hbm, options=()):
        return command if hbm is None else [self.vmem, "run", "--hbm", str(hbm), *options, "--", *command]

    def run(self, cases, steps, hbm=None, options=(), processes=1):
        """Results by case, with 'error' where one failed. A case that ends the process does not
        take those behind it along.
        """
        launcher = [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        results, left = {}, list(cases)
        while left:
            with tempfile.TemporaryDirectory() as folder:
                out = os.path.join(folder, "out")
                script = [os.path.join(HERE, "torch_cases.py"), "--steps", str(steps), "--out", out, *left]
                began = time.monotonic()
                said = self.finish(self.start(self.under_vmem([self.python, *launcher, *script], hbm, options)))[1]
                if os.path.exists(out):
                    with open(out, encoding="utf-8") as file:
                        for line in file:
                            result = json.loads(line)
                            results[result["case"]] = result
                for each in left:
                    if each in results:
                        results[each]["process_s"] = time.monotonic() - began
                left = [each for each in left if each not in results]
                if not left and said is not None:
                    results[each]["error"] = f"all steps were done, then: {said}"
                if left:
                    results[left[0]] = {"case": left[0], "error": said or "it ended without a result"}
                    left.pop(0)
        return results

    def plan(self, case, steps, budgets):
        """What `vmem plan` says of a step in each budget, by budget, or a text that says why not.
        The case is recorded where all of it fits.
        """
        with tempfile.TemporaryDirectory() as folder:
            trace, out = os.path.join(folder, "trace"), os.path.join(folder, "plan")
            record = [self.vmem, "trace", "record", "--trace", trace, "--trace-epoch", "1", "--"]
            script = [self.python, os.path.join(HERE, "torch_cases.py"), "--steps", str(steps), case]
            wrong = self.finish(self.start(record + script))[1]
            plans = {}
            for hbm in budgets:
                planned = [self.vmem, "plan", trace, "--within", "0", "--hbm", str(hbm), "--json", out]
                wrong_now = wrong or self.finish(self.start(planned))[1]
                if wrong_now is None:
                    with open(out, encoding="utf-8") as file:
                        plans[hbm] = json.load(file)
                    os.remove(out)
                else:
                    plans[hbm] = wrong_now
            return plans

    @staticmethod
    def start(command):
        # Not pipes: nobody reads while several run.
        said = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        return subprocess.Popen(command, stdout=said[0], stderr=said[1], start_new_session=True), *said

    def finish(self, started):
        """Its output, and what went wrong or None."""
        process, *files = started
        late = False
        try:
            process.wait(self.limit_s)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for file in files:
            file.seek(0)
        out, err = (file.read() for file in files)
        if late:
            return out, f"took more than {self.limit_s} s: {shortened(err)}"
        return out, None if process.returncode == 0 else f"exit code {process.returncode}: {shortened(err)}"

    def run_together(self, commands):
        """Each a program whose last line of output is its result, all at the same time."""
        began = time.monotonic()
        results = []
        for started in [self.start(command) for command in commands]:
            out, wrong = self.finish(started)
            if wrong is None and out.strip():
                results.append({**json.loads(out.strip().splitlines()[-1]), "process_s": time.monotonic() - began})
            else:
                results.append({"error": wrong or "it printed nothing"})
        return results

    def run_in_turns(self, case, turns, turn, budgets):
        """One process for each budget, all alive from beginning to end, of which one works at a
        time. Their results.
        """
        script = [self.python, os.path.join(HERE, "torch_cases.py"), "--steps", str(turns * turn), "--turn", str(turn), case]
        logs = [tempfile.TemporaryFile("w+") for _ in budgets]
        processes = [
            subprocess.Popen(
                self.under_vmem(script, hbm),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            for hbm, log in zip(budgets, logs)
        ]
        late = threading.Timer(self.limit_s, lambda: [kill(each) for each in processes])
        late.start()
        said = [each.stdout.readline() for each in processes]
        for number in range(turns):
            for each in range(len(processes)) if number % 2 == 0 else reversed(range(len(processes))):
                if said[each] != "ready\n":
                    continue
                with contextlib.suppress(BrokenPipeError):  # it ended; its log says why
                    print(file=processes[each].stdin, flush=True)
                said[each] = processes[each].stdout.readline()
        results = []
        for process, line, log in zip(processes, said, logs):
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            code = process.wait()
            log.seek(0)
            done = code == 0 and line.startswith("{")
            results.append(json.loads(line) if done else {"case": case, "error": f"exit code {code}: {shortened(log.read())}"})
        late.cancel()
        return results

    def run_program(self, command, hbm=None, options=()):
        return self.run_together([self.under_vmem(command, hbm, options)])[0]

    def add(self, scenario, wrong, **row):
        """`wrong`: what is, or None."""
        self.records.append({"scenario": scenario, "verified": wrong is None, "mismatch": wrong or "", **row, **self.common})
        if self.json:
            with open(self.json, "w", encoding="utf-8") as file:
                json.dump(self.records, file, indent=2)
                file.write("\n")
        show(self.records[-1])

    def record(self, scenario, result, limit_name, limit, goal=None, same_as=None, ratio=None, **options):
        """One row: `result`'s step time against another's. The ratio is of speeds: 1 is as fast as
        the limit.
        """
        failed = result.get("error") or limit.get("error") or (same_as or {}).get("error")
        different = None if failed or same_as is None else difference(result["digests"], same_as["digests"])
        if failed or different:
            self.failures.append(f"{scenario}: {failed or different}")
        unknown = "two native runs differ, so there is nothing to compare with" if same_as is None else None
        took, allowed = median(steady_steps(result)), median(steady_steps(limit))
        ratio = ratio or (allowed / took if took and allowed else None)
        wanted = {}
        if goal is not None:
            wanted["goal"] = {"bound": "at_least", "of": "ratio", "value": goal, "met": bool(ratio and ratio >= goal)}
        self.add(
            scenario,
            failed or different or unknown,
            options=options,
            unit="s/step",
            limit_name=limit_name,
            limit=allowed,
            limit_peak_bytes=limit.get("peak_bytes"),
            achieved=took,
            ratio=ratio,
            details={
                **{k: v for k, v in result.items() if k not in ("case", "digests", "error")},
                "quartiles_s": quartiles(steady_steps(result)),
                "limit_quartiles_s": quartiles(steady_steps(limit)),
            },
            **wanted,
        )

    def record_launch(self, native, ours):
        """What the hook adds to a launch: the median of the differences of neighbouring runs, since
        hosts have slow moments.
        """
        failed = next((run["error"] for run in native + ours if "error" in run), None)
        if failed:
            self.failures.append(f"launch: {failed}")
        native_ns, ours_ns = ([] if failed else [run["median_ns"] for run in runs] for runs in (native, ours))
        pairs = [with_vmem - without for without, with_vmem in zip(native_ns, ours_ns)]
        added = median(pairs)
        self.add(
            "a launch with eight pointers, all resident",
            failed,
            options={},
            unit="ns",
            limit_name="native",
            limit=median(native_ns),
            achieved=median(ours_ns),
            ratio=None,
            details={
                "added_ns": added,
                "added_quartiles_ns": quartiles(pairs),
                "added_least_and_most_ns": [min(pairs), max(pairs)] if pairs else None,
                "native_ns": native_ns,
                "vmem_ns": ours_ns,
            },
            goal={"bound": "at_most", "of": "added_ns", "value": 300, "met": added is not None and added <= 300},
        )


def planned_step(plan, launches):
    """A plan's figures for one step, of so many launches: a period may have several steps, and
    where nothing repeats the plan is of the trace's last third.
    """
    if isinstance(plan, str):
        return {"error": plan}
    steps = plan["launches"] / launches
    steps = max(1, round(steps)) if plan["periods"] else steps
    (row,) = plan["rows"]
    per_step = {key: value / steps for key, value in row.items() if key.endswith(("ms", "gib")) or key == "maps"}
    return {**per_step, "fits_ms": plan["fits"]["ms"] / steps, "steps": steps, "periods": plan["periods"]}


def kill(process):
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)


def shortened(text):
    """What went wrong first stands at its beginning, what it led to at its end."""
    return text if len(text) <= 8000 else f"{text[:6500]}\n...\n{text[-1500:]}"


def difference(digests, wanted):
    """The first step that differs, in words, or None. Where there are fewer steps than wanted, so
    many are compared.
    """
    for step, digest in enumerate(digests):
        if digest != wanted[step]:
            return f"step {step} differs: {digest} instead of {wanted[step]}"
    return None if digests else "no step was done"


def median(values):
    return statistics.median(values) if values else None


def quartiles(values):
    """First quartile, median, third quartile; None of fewer than two values."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else None


def steady_steps(result):
    """The later half of the steps: what comes before is the program's warm-up, and vmem's. Turns
    are no warm-up: all count.
    """
    if "turns_s" in result:
        return result["turns_s"]
    steps = result.get("steps_s", [])
    return steps[len(steps) // 2 :]


def cpu():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        return next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "")


def show(row):
    scale, unit = (1e3, "ms") if row["unit"] == "s/step" else (1, row["unit"])
    figure = lambda value: "-" if value is None else f"{value * scale:.1f} {unit}"  # noqa: E731
    compared = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
    goal = row.get("goal")
    if goal and goal["of"] != "ratio":
        compared = f"{goal['of']} {row['details'][goal['of']]}"
    if goal:
        compared += f" ({goal['bound'].replace('_', ' ')} {goal['value']:.4g}: {'met' if goal['met'] else 'MISSED'})"
    same = "equal" if row["verified"] else row["mismatch"].strip().splitlines()[-1][:200]
    print(
        f"{row['scenario']:44} {figure(row['achieved']):>12} {row['limit_name']:>14} {figure(row['limit']):>12}  {compared}  {same}",
        flush=True,
    )
