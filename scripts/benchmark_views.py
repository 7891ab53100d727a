"""Tables that are not a row for each record, which scripts/benchmark_tables.py writes.

A document names the view behind the records: `<!-- table: bench/results/FILE.json#programs -->`.
Views that draw on several files name their folder: `<!-- table: bench/results#results -->`.
"""

import json
import pathlib
import statistics
from collections.abc import Callable

COMMIT_DIGITS = 7
GIB = 1 << 30
# What the records call a program, in a reader's words.
PROGRAMS = {
    "fits: small_gpt2": "transformer training, 8 layers",
    "fits: llama": "Llama-shaped forward, 7.0 GB",
    "fits: kind_transformer": "transformer training",
    "fits: kind_conv": "convolutions",
    "fits: kind_unet": "U-Net",
    "fits: kind_conv3d": "3-D convolutions",
    "fits: kind_recurrent": "recurrent, five streams",
    "fits: kind_experts": "mixture of experts",
    "fits: kind_adapter": "adapter fine-tuning",
    "turns: adapter in 1/2": "adapter fine-tuning, 1/2",
    "fits: kind_paged": "paged KV cache, decode",
    "llama 7.0 GB in 3.5 GiB": "Llama-shaped forward, 7.0 GB",
    "gpt2 training in 1/1.5 of its peak": "GPT-2-shaped training, 1/1.5",
    "gpt2 training in 1/2 of its peak": "GPT-2-shaped training, 1/2",
    "gpt2 training in 1/3 of its peak": "GPT-2-shaped training, 1/3",
}
LIMITS = {"by hand": "double-buffered by hand", "cpu_offload": "accelerate `cpu_offload`", "save_on_cpu": "`save_on_cpu`"}


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e" in text else text


def seconds(value: float) -> str:
    return f"{number(value)} s" if value >= 1 else f"{number(value * 1000)} ms"


def steps(record: dict) -> tuple[float, float]:
    """Seconds of a step, and of the other program's: medians of all turns, where they ran so."""
    details = record["details"]
    if "native_steps_s" in details:
        return statistics.median(details["steps_s"]), statistics.median(details["native_steps_s"])
    return record["achieved"], record["limit"]


def ratio(record: dict) -> str:
    """With its quartiles, where the record has them."""
    quartiles = record["details"].get("ratio_quartiles")
    spread = f" ({quartiles[0]:.2f}, {quartiles[-1]:.2f})" if quartiles else ""
    return f"{record['ratio']:.3f}{spread}"


def goal(record: dict, words: Callable[[float], str] = number) -> str:
    wanted = record.get("goal")
    if not wanted:
        return ""
    sign = "≥" if wanted["bound"] == "at_least" else "≤"
    text = f"{sign} {words(wanted['value'])}"
    return {True: text, False: f"{text} ✗", None: f"({text})"}[wanted["met"]]


def above(record: dict) -> str:
    return " (above its limit)" if record.get("limit_exceeded") else ""


def over_peers(record: dict) -> bool:
    """A stream over peers' memory. Older records have the host's link as limit: not those."""
    return "--peers" in record["command"] and "limit_best" in record["details"]


def commit(record: dict) -> str:
    return f"`{record['commit'][:COMMIT_DIGITS]}`"


def table(columns: str, rows: list[list[str]]) -> str:
    """`columns`: the names, separated by bars."""
    head = f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


class Records:
    """The records of files, which are read once."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.files: dict[str, list[dict]] = {}

    def of(self, name: str) -> list[dict]:
        if name not in self.files:
            self.files[name] = json.loads((self.folder / f"{name}.json").read_text())
        return self.files[name]

    def find(self, name: str, scenario: str, second: str, command: str = "") -> dict:
        """The scenario's first record with that variant or limit. Errors: ValueError."""
        for record in self.of(name):
            if record["scenario"] == scenario and second in (record.get("variant"), record["limit_name"]):
                if command in record["command"]:
                    return check(record)
        raise ValueError(f"{name}.json has no record of {scenario}, {second}")


def check(record: dict) -> dict:
    if not record["verified"]:
        raise ValueError(f"{record['scenario']}: not verified")
    return record


def programs(records: Records, name: str) -> str:
    """Whole programs against the program without vmem, or another way to save memory."""
    rows = []
    for record in map(check, records.of(name)):
        program = PROGRAMS.get(record["scenario"])
        if program is None or record["ratio"] is None:
            continue
        ours, other = steps(record)
        rows.append(
            [
                program,
                f"{number(record['options']['hbm_bytes'] / GIB)} GiB",
                f"{number(record['limit_peak_bytes'] / GIB)} GiB",
                seconds(ours),
                f"{seconds(other)}, {LIMITS.get(record['limit_name'], record['limit_name'])}",
                ratio(record),
                goal(record),
                commit(record),
            ]
        )
    return table("program | HBM | the other's peak | step | the other's step | ratio | goal | commit", rows)


def halves(records: Records, name: str) -> str:
    """Programs in half of what they take, and the same under strict mode."""
    of_strict = {}
    for record in records.of(name):
        kind, _, what = record["scenario"].partition(": ")
        if kind.startswith("strict"):
            of_strict[what] = record
    rows = []
    for record in map(check, records.of(name)):
        kind, _, what = record["scenario"].partition(": ")
        if kind not in ("same", "two GPUs"):
            continue
        strict = of_strict.get(what)
        rows.append(
            [
                what + (", two GPUs" if kind == "two GPUs" else ""),
                f"{number(record['limit_peak_bytes'] / GIB)} GiB",
                f"{number(record['options']['hbm_bytes'] / GIB)} GiB",
                seconds(record["limit"]),
                seconds(record["achieved"]),
                f"{record['ratio']:.2f}",
                "–" if strict is None else f"{check(strict)['ratio']:.2f}",
                commit(record),
            ]
        )
    return table("program | takes | HBM | native step | step | ratio | strict | commit", rows)


def launch(records: Records, name: str) -> str:
    """What a launch costs more: the median of pairs of rounds, and all pairs."""
    record = check(next(each for each in records.of(name) if each["scenario"].startswith("a launch")))
    native, ours = record["details"]["native_ns"], record["details"]["vmem_ns"]
    pairs = sorted(mine - other for mine, other in zip(ours, native, strict=True))
    medians = statistics.median(native), statistics.median(ours)
    row = [
        record["scenario"],
        f"{medians[0]:.0f} ns",
        f"{medians[1]:.0f} ns",
        f"{statistics.median(pairs):+.0f} ns",
        f"{pairs[0]:+.0f} to {pairs[-1]:+.0f} ns",
        goal(record),
        commit(record),
    ]
    return table("launch | native | vmem | median of pairs | pairs | goal | commit", [row])


def commands(records: Records, name: str) -> str:
    """The commands, numbered; then a row for each record."""
    numbers: dict[str, int] = {}
    rows = []
    for record in map(check, records.of(name)):
        command = record["command"].partition(" --json")[0]
        rows.append(
            [
                str(numbers.setdefault(command, len(numbers) + 1)),
                f"{record['scenario']} {record['variant']}",
                "–" if record["limit"] is None else f"{number(record['limit'])} {record['unit']}",
                f"{number(record['achieved'])} {record['unit']}".strip(),
                "–" if record["ratio"] is None else f"{record['ratio']:.2f}{above(record)}",
                goal(record),
                commit(record),
            ]
        )
    listed = "".join(f"{at}. `{command}`\n" for command, at in numbers.items())
    return f"{listed}\n{table('command | figure | limit | achieved | ratio | goal | commit', rows)}"


def by_command(records: Records, name: str, scenario: str) -> str:
    """A row for each command of the scenario: achieved, limit and ratio of each figure."""
    figures: dict[tuple[str, str], dict[str, str]] = {}
    variants: list[str] = []
    for record in map(check, records.of(name)):
        if record["scenario"] != scenario or scenario == "stream" and not over_peers(record):
            continue
        variant = record["variant"]
        if variant not in variants:
            variants.append(variant)
        missed = " ✗" if (record["goal"] or {}).get("met") is False else ""
        options = record["command"].partition(" --json")[0].removeprefix(f"vmem bench {scenario} ")
        figures.setdefault((options, commit(record)), {})[variant] = (
            f"{number(record['achieved'])} of {number(record['limit'])} ({record['ratio']:.2f}{missed}){above(record)}"
        )
    rows = [[f"`{options}`", *(cells.get(each, "–") for each in variants), at] for (options, at), cells in figures.items()]
    return table(" | ".join([f"`vmem bench {scenario}`, GB/s", *variants, "commit"]), rows)


def peers(records: Records, name: str) -> str:
    return by_command(records, name, "peer")


def lent(records: Records, name: str) -> str:
    """`vmem bench stream` over memory that another program lends."""
    return by_command(records, name, "stream")


def over_link(record: dict) -> tuple[float, float]:
    """Bytes that crossed the link, a second, and their share of what bare copies reach."""
    details = record["details"]
    if details.get("processed_gb_per_s") is not None:  # then the figure itself is the link's
        return record["achieved"], record["ratio"]
    moved = details["moved_gb_per_s"]
    return moved, moved / record["limit"]


def results(records: Records, _: str) -> str:
    """README's eight."""

    def row(what: str, achieved: str, limit: str, ratio: str, record: dict) -> list[str]:
        return [what, achieved, limit, ratio, goal(record), commit(record)]

    def program(what: str, scenario: str, limit: str) -> list[str]:
        record = records.find("h200-programs", scenario, limit)
        ours, other = steps(record)
        return row(what, seconds(ours), f"{seconds(other)}, {LIMITS.get(limit, limit)}", f"{record['ratio']:.2f}", record)

    hit = records.find("h200", "hit", "1 page")
    stream = records.find("h200", "stream", "read-write 4x")
    moved, share = over_link(stream)
    matmul = records.find("h200", "matmul", "3x n=32768")
    peer = records.find("h200-peer", "peer", "read-only 4x")
    mapped = records.find("h100-tiers", "map", "4x file")
    rows = [
        row("acquire and release, 1 resident page", f"{number(hit['achieved'])} ns", "", "", hit),
        row("stream 4x HBM, both ways", f"{number(moved)} GB/s", f"{number(stream['limit'])} GB/s, link", f"{share:.2f}", stream),
        row("matrix product, 3x HBM", f"{number(matmul['achieved'])} TFLOP/s", f"{number(matmul['limit'])}, resident",
            f"{matmul['ratio']:.2f}", matmul),
        program("Llama forward that fits", "fits: llama", "native"),
        program("Llama forward, 2x HBM", "llama 7.0 GB in 3.5 GiB", "by hand"),
        program("GPT-2 training, 1.5x HBM", "gpt2 training in 1/1.5 of its peak", "FSDP2 offload"),
        row("another GPU's HBM, reading 4x", f"{number(peer['achieved'])} GB/s", f"{number(peer['limit'])} GB/s, NVLink",
            f"{peer['ratio']:.2f}", peer),
        row("mapped file, 4x memory", f"{number(mapped['achieved'])} GB/s", f"{number(mapped['limit'])} GB/s, disk",
            f"{mapped['ratio']:.2f}", mapped),
    ]
    return table("what | vmem | limit | ratio | goal | commit", rows)


def your_program(records: Records, _: str) -> str:
    """README's first table: which programs work, and how fast."""
    all_of = records.of("h200-programs")

    def span(*prefixes: str) -> str:
        ratios = sorted(record["ratio"] for record in all_of if record["scenario"].startswith(prefixes))
        return f"{ratios[0]:.2f} to {ratios[-1]:.2f} of native"

    def against(scenario: str, limit: str) -> str:
        return f"{records.find('h200-programs', scenario, limit)['ratio']:.2f}"

    tables = records.find("h200-kinds", "kind: embeddings in 1/2", "native")["ratio"]
    fits = [record["ratio"] for record in all_of if record["scenario"].startswith("fits:")]
    llama, training = "llama 7.0 GB in 3.5 GiB", "gpt2 training in 1/1.5 of its peak"
    rows = [
        ["PyTorch that fits into HBM", "yes", f"{min(fits):.3f} to {max(fits):.3f} of native"],
        ["Inference, weights 2x HBM", "yes", f"{against(llama, 'native')} of native, {against(llama, 'by hand')} of double buffering"],
        ["Training, 1.5x HBM", "yes", f"{against(training, 'native')} of native, {against(training, 'FSDP2 offload')} of FSDP2's offload"],
        ["Training with embedding tables, 2x HBM", "yes", f"{tables:.2f} of native"],
        ["PyTorch, CuPy, JAX, CUDA C++: 2x HBM", "yes, equal results", span("same: ")],
        ["Two GPUs: DDP, FSDP2, one process", "yes, equal results", span("two GPUs: ")],
        ["C or C++ that calls vmem", "yes", "the link's speed, or the kernel's"],
        ["Shares GPU memory between processes", "no: refused", "–"],
        ["Linked statically, `RTLD_DEEPBIND`", "no: not seen", "–"],
    ]
    return table("your program | works | speed on an H200", rows)


def kinds(records: Records, name: str) -> str:
    """Kinds of programs at parts of the peak of a steady step: one row for each part."""
    rows = []
    for record in map(check, records.of(name)):
        kind = record["scenario"].removeprefix("kind: ").split(" in 1/")[0]
        moved, took = record["details"]["vmem_per_step"], record["achieved"] * 1000
        plan, all_steps = record["details"].get("planned", {}), record["details"]["steps_s"]
        mean = statistics.mean(all_steps[len(all_steps) // 2 :]) * 1000

        def against(key: str, plan: dict = plan, mean: float = mean) -> str:
            return f"{plan[key]:.0f} ({mean / plan[key]:.2f})" if plan.get(key) else "–"

        def least(key: str, plan: dict = plan) -> str:
            return f" ({plan[key]:.1f})" if key in plan else ""

        rows.append(
            [
                kind,
                f"{record['options']['peak_bytes'] / GIB:.1f}",
                f"1/{record['options']['part']:g}",
                f"{record['limit'] * 1000:.0f}",
                f"{took:.0f} ({record['ratio']:.2f})",
                against("ms"),
                against("schedule_ms"),
                against("bound_ms"),
                f"{moved['migrated_in_bytes'] / GIB:.1f}{least('bound_in_gib')}",
                f"{moved['migrated_out_bytes'] / GIB:.1f}{least('bound_out_gib')}",
                f"{moved['maps']:.0f}",
                commit(record),
            ]
        )
    head = "program | peak, GiB | HBM | native, ms | vmem, ms (of native) | plan | schedule | bound | in, GiB | out, GiB | maps | commit"
    return table(head, rows)


def replays(records: Records, name: str) -> str:
    """One row for each recorded program, one column for each size of HBM."""
    record = records.of(name)
    parts = ("1.25", "1.5", "2", "3", "4")

    def cell(plan: dict, part: str) -> str:
        found = [row for row in plan["rows"] if abs(plan["peak_bytes"] / row["hbm_bytes"] - float(part)) < 0.02]
        return f"{found[0]['ms']:.0f} ({found[0]['ms'] / found[0]['schedule_ms']:.2f})" if found else "–"

    rows = [
        [program, f"{plan['peak_bytes'] / GIB:.1f}", f"{plan['fits']['ms']:.0f}", *(cell(plan, part) for part in parts)]
        for program, plan in record["plans"].items()
    ]
    head = f"`{record['command']}`, commit {commit(record)}.\n\n"
    return head + table("program | peak, GiB | fits, ms | " + " | ".join(f"1/{part}" for part in parts), rows)


VIEWS = {
    "programs": programs,
    "halves": halves,
    "kinds": kinds,
    "launch": launch,
    "commands": commands,
    "lent": lent,
    "peers": peers,
    "replays": replays,
    "results": results,
    "your-program": your_program,
}


def view(path: str, name: str, root: pathlib.Path) -> str:
    """The table that `path#name` stands for. Errors: ValueError, OSError."""
    if name not in VIEWS:
        raise ValueError(f"there is no view '{name}' of {path}; there are {', '.join(VIEWS)}")
    target = root / path
    folder = target if target.is_dir() else target.parent
    source = "" if target.is_dir() else f"Records: `{path}`.\n\n"
    return source + VIEWS[name](Records(folder), target.stem)
