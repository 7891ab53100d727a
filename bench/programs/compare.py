#!/usr/bin/env python3
"""Runs unmodified programs with and without vmem, on a GPU, and compares what they compute and how long they take.

    compare.py [--only EXPERIMENT ...] [--json FILE] [--python PYTHON] [--limit SECONDS] [--quick]

Needs PyTorch (with transformers and accelerate) for PYTHON, and the vmem program beside this file's installation or on PATH. Results
must equal the native run's, digit for digit, wherever two native runs equal each other. Prints a table; FILE gets the records. Exit code:
0 everything finished and nothing differed, 1 not.
"""

import argparse
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
GIB = 1 << 30

# Cases of torch_cases.py that are compared at half of their own peak. What takes less than 2 GiB would not be held to anything.
SAME = [
    "generate",
    "checkpointing",
    "adamw_foreach",
    "adamw_fused",
    "adam_single",
    "sgd_momentum",
    "compiled",
    "compiled_reduce_overhead",
    "graph_replay",
    "streams",
    "batched_linalg",
    "grouped_matmul",
    "conv",
    "embedding",
    "sort_unique",
    "save_load",
    "pinned_loader",
]

# Cases of torch_cases.py for two GPUs, with how many processes they take.
TWO_GPUS = {"ddp": 2, "fsdp": 2, "two_devices": 1}

# Parts of its peak that the large training gets, with the speed wanted against today's ways of offloading.
GPT2 = {"1.5": 2.0, "2": 1.3, "3": None}


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
        """Results by case, with 'error' where one failed. A case that ends the process does not take those behind it along."""
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

    @staticmethod
    def start(command):
        said = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # not pipes: nobody reads while several run
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
        """One process for each budget, all alive from beginning to end, of which one works at a time. Their results."""
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
        """One row: `result`'s step time against another's. The ratio is of speeds: 1 is as fast as the limit."""
        failed = result.get("error") or limit.get("error") or (same_as or {}).get("error")
        different = None if failed or same_as is None else difference(result["digests"], same_as["digests"])
        if failed or different:
            self.failures.append(f"{scenario}: {failed or different}")
        unknown = "two native runs differ, so there is nothing to compare with" if same_as is None else None
        took, allowed = step_s(result), step_s(limit)
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
            details={k: v for k, v in result.items() if k not in ("case", "digests", "error")},
            **wanted,
        )

    def record_launch(self, native, ours):
        """What the hook adds to a launch; runs of each in turn. Hosts have slow moments, so the best run of each counts."""
        failed = next((run["error"] for run in native + ours if "error" in run), None)
        if failed:
            self.failures.append(f"launch: {failed}")
        medians = [[run.get("median_ns") for run in runs] for runs in (native, ours)]
        best = [None, None] if failed else [min(runs) for runs in medians]
        added = None if failed else best[1] - best[0]
        self.add(
            "a launch with eight pointers, all resident",
            failed,
            options={},
            unit="ns",
            limit_name="native",
            limit=best[0],
            achieved=best[1],
            ratio=None,
            details={"added_ns": added, "native_ns": medians[0], "vmem_ns": medians[1]},
            goal={"bound": "at_most", "of": "added_ns", "value": 300, "met": added is not None and added <= 300},
        )


def kill(process):
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)


def shortened(text):
    """What went wrong first stands at its beginning, what it led to at its end."""
    return text if len(text) <= 8000 else f"{text[:6500]}\n...\n{text[-1500:]}"


def difference(digests, wanted):
    """The first step that differs, in words, or None. Where there are fewer steps than wanted, so many are compared."""
    for step, digest in enumerate(digests):
        if digest != wanted[step]:
            return f"step {step} differs: {digest} instead of {wanted[step]}"
    return None if digests else "no step was done"


def step_s(result):
    """The median of the later half of the steps: what comes before is the program's warm-up, and vmem's."""
    steps = result.get("steps_s", [])
    return statistics.median(steps[len(steps) // 2 :]) if steps else None


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


def fits(bench):
    """Two processes, one with vmem, do ten steps in turns: hosts have slow seconds, which then fall on both. What counts is the ratio of
    neighbours' turns: the median of all pairs."""
    rounds, turns, turn = (1, 6, 10) if bench.quick else (3, 30, 10)
    for name, hbm in (("small_gpt2", 16 * GIB), ("llama", 16 * GIB)):
        rows = [bench.run_in_turns(name, turns, turn, (None, hbm)) for _ in range(rounds)]
        failed = next((result for row in rows for result in row if "error" in result), None)
        if failed:
            bench.record(f"fits: {name}", failed, "native", failed, 0.99, hbm_bytes=hbm)
            continue
        by_turn = [[turn_s(result, turn) for result in row] for row in rows]
        ratios = [[native / ours for native, ours in zip(*pair)] for pair in by_turn]
        native, ours = ([each for pair in by_turn for each in pair[kind]] for kind in (0, 1))
        odd = next((row[1] for row in rows if row[1]["digests"] != rows[0][0]["digests"]), rows[0][1])
        about = {
            "native_steps_s": native,
            "process_ratios": [statistics.median(each) for each in ratios],
            "ratio_quartiles": statistics.quantiles([each for pair in ratios for each in pair], n=4),
        }
        bench.record(
            f"fits: {name}",
            {**odd, "steps_s": ours, **about},
            "native",
            {**rows[0][0], "steps_s": native},
            0.99,
            rows[0][0],
            ratio=about["ratio_quartiles"][1],
            hbm_bytes=hbm,
            turns=turns * rounds,
            steps_of_a_turn=turn,
        )


def turn_s(result, turn):
    """The median step of each turn, without the first two steps of it: they pay for what the other process did to the caches."""
    steps = result["steps_s"]
    return [statistics.median(steps[at + 2 : at + turn]) for at in range(0, len(steps), turn)]


def llama(bench):
    hbm, steps = 7 * GIB // 2, 12
    native = bench.run(["llama"], steps)["llama"]
    ours = bench.run(["llama"], steps, hbm)["llama"]
    by_hand = bench.run(["llama_double_buffered"], steps)["llama_double_buffered"]
    offloaded = bench.run(["llama_cpu_offload"], 4)["llama_cpu_offload"]
    bench.record("llama 7.0 GB in 3.5 GiB", ours, "by hand", by_hand, 1 / 1.05, native, hbm_bytes=hbm)
    bench.record("llama 7.0 GB in 3.5 GiB", ours, "cpu_offload", offloaded, 5, native, hbm_bytes=hbm)
    bench.record("llama 7.0 GB in 3.5 GiB", ours, "native", native, None, native, hbm_bytes=hbm)


def gpt2(bench, parts=GPT2):
    steps = 8 if bench.quick else 20
    native = bench.run(["gpt2"], steps)["gpt2"]
    again = bench.run(["gpt2"], steps)["gpt2"]
    if "error" in native:
        bench.record("gpt2 training", native, "native", native)
        return
    repeats = native["digests"] == again.get("digests")
    saved = bench.run(["gpt2_save_on_cpu"], 4)["gpt2_save_on_cpu"]
    sharded = bench.run(["gpt2_fsdp_offload"], 4)["gpt2_fsdp_offload"]
    for part in parts:
        goal = GPT2[part]
        hbm = int(native["peak_bytes"] / float(part)) >> 21 << 21
        ours = bench.run(["gpt2"], steps, hbm)["gpt2"]
        name = f"gpt2 training in 1/{part} of its peak"
        same = native if repeats else None
        bench.record(name, ours, "save_on_cpu", saved, goal, same, hbm_bytes=hbm, repeats=repeats)
        bench.record(name, ours, "FSDP2 offload", sharded, goal, same, hbm_bytes=hbm, repeats=repeats)
        bench.record(name, ours, "native", native, None, same, hbm_bytes=hbm, repeats=repeats)


def same(bench, names=SAME):
    steps = 3 if bench.quick else 6
    native = bench.run(names, steps)
    again = bench.run(names, steps)
    by_hbm = {}
    for name in names:
        if "error" in native[name]:
            bench.record(f"same: {name}", native[name], "native", native[name])
            continue
        by_hbm.setdefault(half_of(native[name]), []).append(name)
    for hbm, group in by_hbm.items():
        ours = bench.run(group, steps, hbm)
        strict = bench.run(group, 2, hbm, ["--strict"])
        for name in group:
            repeats = native[name]["digests"] == again[name].get("digests")
            about = {"hbm_bytes": hbm, "peak_bytes": native[name]["peak_bytes"], "repeats": repeats}
            same_as = native[name] if repeats else None
            bench.record(f"same: {name}", ours[name], "native", native[name], None, same_as, **about)
            bench.record(f"strict: {name}", strict[name], "native", native[name], None, same_as, strict=True, **about)


def half_of(native):
    return max(GIB // 2, native["peak_bytes"] // 2 >> 28 << 28)


def two_gpus(bench, names=TWO_GPUS):
    if bench.devices < 2:
        print("two_gpus: there is one GPU", file=sys.stderr)
        return
    steps = 3 if bench.quick else 6
    for name in names:
        processes = TWO_GPUS[name]
        native, again = (bench.run([name], steps, processes=processes)[name] for _ in range(2))
        if "error" in native:
            bench.record(f"two GPUs: {name}", native, "native", native)
            continue
        hbm, repeats = half_of(native), native["digests"] == again.get("digests")
        about = {"hbm_bytes": hbm, "peak_bytes": native["peak_bytes"], "repeats": repeats}
        for kind, options, count in (("two GPUs", [], steps), ("strict, two GPUs", ["--strict"], 2)):
            ours = bench.run([name], count, hbm, options, processes)[name]
            same_as, strict = native if repeats else None, {"strict": True} if options else {}
            bench.record(f"{kind}: {name}", ours, "native", native, None, same_as, **strict, **about)


def sharing(bench):
    """Two programs on one GPU at the same time, each in half of what it takes."""
    steps = 4 if bench.quick else 12
    names = ["adamw_foreach", "generate"]
    native, again = bench.run(names, steps), bench.run(names, steps)
    script = [bench.python, os.path.join(HERE, "torch_cases.py"), "--steps", str(steps)]
    failed = next((native[name] for name in names if "error" in native[name]), None)
    if failed:
        bench.record("sharing a GPU", failed, "native alone", failed)
        return
    sizes = {name: half_of(native[name]) for name in names}
    ours = bench.run_together([bench.under_vmem([*script, name], sizes[name]) for name in names])
    for name, result in zip(names, ours):
        repeats = native[name]["digests"] == again[name].get("digests")
        same_as = native[name] if repeats else None
        bench.record(f"sharing a GPU: {name}", result, "native alone", native[name], None, same_as, hbm_bytes=sizes[name])


def build_cuda_program(folder):
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    program = os.path.join(folder, "cuda_program")
    source = os.path.join(HERE, "cuda_program.cu")
    built = subprocess.run(
        [nvcc, "-O2", "-std=c++20", "-arch=native", "-cudart", "static", source, "-o", program, "-lcublas"],
        capture_output=True,
        text=True,
    )
    if built.returncode != 0:
        sys.exit(f"compare.py: cannot build {source}:\n{built.stderr}")
    return program


def others(bench):
    """Programs that are not PyTorch's, at half of what they take."""
    with tempfile.TemporaryDirectory() as folder:
        program = build_cuda_program(folder)
        commands = {"CUDA C++ and cuBLAS": [program, "check", "60", "4"]}
        for name, module in (("CuPy", "cupy"), ("JAX", "jax")):
            if subprocess.run([bench.python, "-c", f"import {module}"], capture_output=True).returncode == 0:
                commands[name] = [bench.python, os.path.join(HERE, f"{module}_cases.py")]
        for name, command in commands.items():
            native, again = bench.run_program(command), bench.run_program(command)
            if "error" in native:
                bench.record(f"same: {name}", native, "native", native)
                continue
            hbm = native["peak_bytes"] // 2 >> 28 << 28
            repeats = native["digests"] == again.get("digests")
            ours = bench.run_program(command, hbm)
            bench.record(
                f"same: {name}", ours, "native", native, None, native if repeats else None, hbm_bytes=hbm, repeats=repeats
            )
        native, ours = [], []
        for _ in range(3 if bench.quick else 10):
            native.append(bench.run_program([program, "launches"]))
            ours.append(bench.run_program([program, "launches"], 4 * GIB))
        bench.record_launch(native, ours)


EXPERIMENTS = {
    "fits": fits,
    "llama": llama,
    "gpt2": gpt2,
    "same": same,
    "others": others,
    "two_gpus": two_gpus,
    "sharing": sharing,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="EXPERIMENT", help=f"of {', '.join(EXPERIMENTS)}; or same:CASE, two_gpus:CASE, gpt2:PART")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--limit", type=float, default=300, help="seconds that one program may take (300)")
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds")
    arguments = parser.parse_args()
    chosen = {}
    for name in arguments.only or EXPERIMENTS:
        experiment, _, wanted = name.partition(":")
        known = {"same": SAME, "two_gpus": TWO_GPUS, "gpt2": GPT2}.get(experiment, ())
        if experiment not in EXPERIMENTS or (wanted and wanted not in known):
            parser.error(f"no such experiment: {name}")
        chosen.setdefault(experiment, []).extend([wanted] if wanted else known)
    bench = Bench(arguments)
    for experiment, cases in chosen.items():
        EXPERIMENTS[experiment](bench, *([cases] if cases else []))
    for failure in bench.failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if bench.failures else 0)


if __name__ == "__main__":
    main()
