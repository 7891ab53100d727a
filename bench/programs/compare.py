#!/usr/bin/env python3
"""Runs unmodified programs with and without vmem, on a GPU, and compares what they compute and how
long they take.

    compare.py [--only EXPERIMENT ...] [--json FILE] [--python PYTHON] [--limit SECONDS] [--quick]

Needs PyTorch (with transformers and accelerate) for PYTHON, and the vmem program beside this file's
installation or on PATH. Results must equal the native run's, digit for digit, wherever two native
runs equal each other. Prints a table; FILE gets the records. Exit code: 0 everything finished and
nothing differed, 1 not.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from runs import HERE, Bench, planned_step, quartiles

GIB = 1 << 30

# Cases of torch_cases.py that are compared at half of their own peak. What takes less than 2 GiB
# would not be held to anything.
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

# Programs that fit into 16 GiB, each with its rounds, turns and steps of a turn.
FITS = {
    "small_gpt2": (3, 30, 10),
    "llama": (3, 30, 10),
    **{f"kind_{name}": (1, 40, 6) for name in ("transformer", "conv", "unet", "conv3d", "recurrent", "experts", "adapter", "paged")},
}

# Kinds of programs (torch_kinds.py), and the parts of the peak of a steady step that each gets.
KINDS = [
    "transformer",
    "conv",
    "unet",
    "conv3d",
    "recurrent",
    "experts",
    "adapter",
    "paged",
    "embeddings",
    "threads",
    "streams",
    "train_eval",
    "random",
]
KIND_PARTS = (1.5, 2)

# Kinds that the processor limits, with the speed wanted in half of their memory. Its speed differs
# from process to process, so both sides do their steps in turns.
TURNS = {"adapter": 0.85}

# Cases of torch_cases.py for two GPUs, with how many processes they take.
TWO_GPUS = {"ddp": 2, "fsdp": 2, "two_devices": 1}

# Parts of its peak that the large training gets, with the speed wanted against today's ways of
# offloading.
GPT2 = {"1.5": 2.0, "2": 1.3, "3": None}


def fits(bench, names=FITS):
    for name in names:
        by_turns(bench, f"fits: {name}", name, 16 * GIB, 0.99, *((1, 6, 10) if bench.quick else FITS[name]))


def turns(bench, names=TURNS):
    for name in names:
        case = f"kind_{name}"
        native = bench.run([case], 6)[case]
        if "error" in native:
            bench.record(f"turns: {name}", native, "native", native)
            continue
        hbm = native["steady_peak_bytes"] // 2 >> 21 << 21
        by_turns(bench, f"turns: {name} in 1/2", case, hbm, TURNS[name], *((1, 6, 6) if bench.quick else (1, 30, 6)))


def by_turns(bench, scenario, case, hbm, goal, rounds, turns, turn):
    """Two processes, one with vmem, do some steps in turns: hosts have slow seconds, which then
    fall on both. What counts is the ratio of neighbours' turns: the median of all pairs.
    """
    rows = [bench.run_in_turns(case, turns, turn, (None, hbm)) for _ in range(rounds)]
    failed = next((result for row in rows for result in row if "error" in result), None)
    if failed:
        bench.record(scenario, failed, "native", failed, goal, hbm_bytes=hbm)
        return
    by_turn = [[turn_s(result, turn) for result in row] for row in rows]
    ratios = [[native / ours for native, ours in zip(*pair)] for pair in by_turn]
    native, ours = ([each for pair in by_turn for each in pair[kind]] for kind in (0, 1))
    odd = next((row[1] for row in rows if row[1]["digests"] != rows[0][0]["digests"]), rows[0][1])
    about = {
        "native_turns_s": native,
        "process_ratios": [statistics.median(each) for each in ratios],
        "ratio_quartiles": quartiles([each for pair in ratios for each in pair]),
    }
    bench.record(
        scenario,
        {**odd, "turns_s": ours, **about},
        "native",
        {**rows[0][0], "turns_s": native},
        goal,
        rows[0][0],
        ratio=about["ratio_quartiles"][1],
        hbm_bytes=hbm,
        turns=turns * rounds,
        steps_of_a_turn=turn,
    )


def turn_s(result, turn):
    """The median step of each turn, without the first two steps of it: they pay for what the other
    process did to the caches.
    """
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
        strict = bench.run(group, steps, hbm, ["--strict"])
        for name in group:
            repeats = native[name]["digests"] == again[name].get("digests")
            about = {"hbm_bytes": hbm, "peak_bytes": native[name]["peak_bytes"], "repeats": repeats}
            same_as = native[name] if repeats else None
            bench.record(f"same: {name}", ours[name], "native", native[name], None, same_as, **about)
            bench.record(f"strict: {name}", strict[name], "native", native[name], None, same_as, strict=True, **about)


def kinds(bench, names=KINDS):
    steps = 6 if bench.quick else 16
    for name in names:
        case = f"kind_{name}"
        native, again = (bench.run([case], steps)[case] for _ in range(2))
        if "error" in native:
            bench.record(f"kind: {name}", native, "native", native)
            continue
        repeats = native["digests"] == again.get("digests")
        budgets = {part: int(native["steady_peak_bytes"] / part) >> 21 << 21 for part in KIND_PARTS}
        plans = bench.plan(case, steps, budgets.values())
        for part, hbm in budgets.items():
            about = {"hbm_bytes": hbm, "peak_bytes": native["steady_peak_bytes"], "part": part, "repeats": repeats}
            ours = bench.run([case], steps, hbm)[case]
            if "vmem_per_step" in ours:
                ours["planned"] = planned_step(plans[hbm], ours["vmem_per_step"]["acquires"])
            bench.record(f"kind: {name} in 1/{part:g}", ours, "native", native, None, native if repeats else None, **about)


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
        for kind, options in (("two GPUs", []), ("strict, two GPUs", ["--strict"])):
            ours = bench.run([name], steps, hbm, options, processes)[name]
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
    "kinds": kinds,
    "turns": turns,
    "others": others,
    "two_gpus": two_gpus,
    "sharing": sharing,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="EXPERIMENT", help=f"of {', '.join(EXPERIMENTS)}; or same:CASE, kinds:KIND, turns:KIND, fits:CASE, two_gpus:CASE, gpt2:PART")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--limit", type=float, default=300, help="seconds that one program may take (300)")
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds")
    arguments = parser.parse_args()
    chosen = {}
    for name in arguments.only or EXPERIMENTS:
        experiment, _, wanted = name.partition(":")
        known = {"same": SAME, "kinds": KINDS, "two_gpus": TWO_GPUS, "gpt2": GPT2, "fits": FITS, "turns": TURNS}.get(experiment, ())
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
