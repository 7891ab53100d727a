#!/usr/bin/env python3
"""Which test runs where: in `make test`, or in one part of `make nightly`.

IN_TEST says which tests of the sanitizers' presets belong to `make test`; of the release build,
all do that are not labelled `long`. Every other test belongs to one part of the nightly, chosen by
a hash of its name, so that a new test is in some part from its first day. The tests are those that
CTest lists.

    scripts/shards.py list                       of all built presets: programs and parts
    scripts/shards.py list NAME                  the part of every test whose name has NAME
    scripts/shards.py turn                       the nightly's part at this commit, which CI runs
    scripts/shards.py programs PRESET            what `make test` needs of a preset
    scripts/shards.py run PRESET PART [ARG ...]  ctest with those tests; PART: test, 0 to 19, or
                                                 all. The end of what a failed test printed is added
                                                 to build/failures.txt
    scripts/shards.py fuzz PART [ARG ...]        ctest with the release build's tests of that part
                                                 of the nightly, and those of `make test` whose
                                                 rounds the nightly raises
    scripts/shards.py check PRESET ...           each part as CTest selects it: every test is in
                                                 exactly one, and has its module as a label
"""

import collections
import datetime
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS_OF_NIGHTLY = 20
TEST = "test"
ALL = "all"
NIGHTLY = tuple(map(str, range(PARTS_OF_NIGHTLY)))
PARTS = (TEST, *NIGHTLY)
NOT_BUILT = "_NOT_BUILT"
FAILURES = ROOT / "build" / "failures.txt"
FAILURE_LINES = 25
# Whose tests run as often as variables of the environment say, which the nightly sets to more than
# `make test` does.
SEEDED = (
    "allocation_failure_test",
    "api_fuzz_test",
    "cluster_simulator_test",
    "dying_disks_test",
    "joint_simulator_test",
    "option_fuzz_test",
    "rdma_processes_test",
    "rdma_stream_test",
    "remote_tier_test",
    "runtime_killed_test",
    "runtime_model_test",
    "sharing_test",
)

# Preset -> program -> regular expression of its tests that `make test` leaves to the nightly (""
# leaves none). Programs that are not named are left whole.
IN_TEST = {
    # All that reads bytes, addresses and pages, without the programs that run alone (other
    # processes, UCX) and without what needs the benchmark or the vmem program: those are half of
    # the build and of the time. Without what takes long and only races or computes.
    "asan-ubsan": {
        "api_fuzz_test": "",
        "base_test": "",
        "cluster_simulator_test": "",
        "cluster_test": "",
        "compress_test": "zstd_19|ChooserInAPipeline",
        "fuzz_addresses": "",
        "fuzz_emu_config": "",
        "fuzz_envelope": "",
        "fuzz_etcd_answers": "",
        "fuzz_keyring": "",
        "fuzz_memory_service": "",
        "fuzz_options": "",
        "fuzz_peer_wire": "",
        "fuzz_sizes": "",
        "fuzz_stored_pages": "",
        "fuzz_stream_frames": "",
        "fuzz_stream_link": "",
        "fuzz_tls_stranger": "",
        "fuzz_tls_tampered": "",
        "fuzz_topology_cache": "",
        "fuzz_ucx_introduction": "",
        "fuzz_wire": "",
        "gpu_driver_conformance_test": "",
        "gpu_emulated_driver_test": "",
        "gpu_test": "",
        "joint_simulator_test": "",
        "mover_pages_test": "",
        "mover_test": "MoverFuzz|HitPathRace|OfOneCall|CallsEndInTimeWithTheDisksError",
        "option_fuzz_test": "Command",
        "options_test": "",
        "pagetable_test": "ATakerAndAHolder",
        "peer_test": "",
        "policy_test": "PolicyFuzz|HitRatio",
        "public_cpp_test": "",
        "rdma_stream_test": "",
        "rdma_test": "",
        "remote_tier_test": "",
        "runtime_bad_input_test": "",
        "runtime_file_test": "",
        "runtime_test": "",
        "sharing_test": "",
        "suballocator_test": "Model",
        "tiers_test": "",
        "topology_test": "",
        "undeclared_test": "Model|LoseNothingWhenTracking",
    },
    # All of it is the nightly's: building it takes as long as its tests.
    "tsan": {},
}


def listed(preset: str, *selection: str) -> list[dict]:
    """What `ctest -N` lists for the preset. A test's number is its place in the whole list, from 1.
    """
    done = subprocess.run(["ctest", "--preset", preset, *selection, "--show-only=json-v1"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"shards: ctest cannot list the tests of {preset} (build it first): {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)["tests"]


def is_built(test: dict) -> bool:
    return "command" in test and not test["name"].endswith(NOT_BUILT)


def program_of(test: dict) -> str:
    if not is_built(test):
        return test["name"].removesuffix(NOT_BUILT)
    return pathlib.Path(test["command"][0]).name


def part_of_nightly(name: str) -> str:
    return NIGHTLY[zlib.crc32(name.encode()) % PARTS_OF_NIGHTLY]


def part_of(preset: str, test: dict) -> str:
    if preset in IN_TEST:
        left = IN_TEST[preset].get(program_of(test))
        in_test = left is not None and not (left and re.search(left, test["name"]))
    else:
        in_test = "long" not in labels_of(test)
    return TEST if in_test else part_of_nightly(test["name"])


def selection(numbers: list[int]) -> list[str]:
    """ctest's arguments for the tests of these numbers and no others."""
    return ["-I", ",".join(["0", "0", "0", *map(str, numbers)])]


def numbers_in(preset: str, tests: list[dict], part: str) -> list[int]:
    return [number for number, test in enumerate(tests, 1) if part == ALL or part_of(preset, test) == part]


def long_or_seeded_in(tests: list[dict], part: str) -> list[int]:
    return [
        number
        for number, test in enumerate(tests, 1)
        if (program_of(test) in SEEDED or part_of("release", test) != TEST)
        and part in (ALL, part_of_nightly(test["name"]))
    ]


def failures_in(preset: str, results: pathlib.Path) -> str:
    """The end of what each failed test printed, from ctest's JUnit file."""
    text = ""
    for case in xml.etree.ElementTree.parse(results).getroot().iter("testcase"):
        if case.get("status") == "fail":
            printed = (case.findtext("system-out") or "").rstrip().splitlines()[-FAILURE_LINES:]
            text += f"== {preset}: {case.get('name')} failed after {float(case.get('time', 0)):.1f} s\n"
            text += "".join(f"{line[:200]}\n" for line in printed)
    return text


def run(preset: str, numbers: list[int], arguments: list[str]) -> int:
    print(f"{preset}: {len(numbers)} tests", flush=True)
    if not numbers:
        return 0  # an empty selection would be all of them
    results = ROOT / "build" / preset / "Testing" / "results.xml"
    results.unlink(missing_ok=True)
    command = ["ctest", "--preset", preset, *selection(numbers), "--output-junit", str(results), *arguments]
    status = subprocess.run(command, cwd=ROOT).returncode
    if status != 0 and results.exists():
        with FAILURES.open("a") as failures:
            failures.write(failures_in(preset, results))
    return status


def labels_of(test: dict) -> list[str]:
    return next((each["value"] for each in test.get("properties", []) if each["name"] == "LABELS"), [])


def without_module(tests: list[dict], modules: set[str]) -> list[str]:
    """Names of tests that `ctest -L MODULE` finds for no module."""
    return [test["name"] for test in tests if is_built(test) and not modules & set(labels_of(test))]


def modules() -> set[str]:
    return {folder.name for folder in (ROOT / "tests").iterdir() if (folder / "CMakeLists.txt").exists()} | {"examples"}


def check(preset: str) -> bool:
    """Asks CTest for the tests of each part, and compares their union with the tests that it has.
    """
    tests = listed(preset)
    problems = []
    unknown = set(IN_TEST.get(preset, {})) - {program_of(test) for test in tests}
    problems += [f"IN_TEST names {program}, which the preset does not have" for program in sorted(unknown)]
    problems += [f"{program_of(test)} is not built" for test in tests if not is_built(test)]
    problems += [f"{name} has no module as a label" for name in without_module(tests, modules())]
    seen = collections.Counter()
    sizes = []
    for part in PARTS:
        numbers = numbers_in(preset, tests, part)
        names = [test["name"] for test in listed(preset, *selection(numbers))] if numbers else []
        sizes.append(f"{part}: {len(names)}")
        seen.update(names)
    whole = collections.Counter(test["name"] for test in tests)
    problems += [f"{name} is in no part" for name in sorted(whole - seen)]
    problems += [f"{name} is in more than one part" for name in sorted(seen - whole)]
    for problem in problems:
        print(f"shards: {preset}: {problem}")
    print(f"shards: {preset}: {len(tests)} tests ({', '.join(sizes)}){'' if problems else ', each in exactly one part'}")
    return not problems


def built_presets() -> list[str]:
    return [preset for preset in ("release", *IN_TEST) if (ROOT / "build" / preset / "CTestTestfile.cmake").exists()]


def show(part_of_name: str | None) -> None:
    for preset in built_presets():
        tests = listed(preset)
        if part_of_name is not None:
            for test in tests:
                if part_of_name in test["name"]:
                    print(f"{preset}  {part_of(preset, test):4}  {test['name']}")
            continue
        table = collections.defaultdict(collections.Counter)
        for test in tests:
            table[program_of(test)][part_of(preset, test)] += 1
        print(f"{preset:32}" + "".join(f"{part:>7}" for part in PARTS))
        for program in sorted(table):
            print(f"  {program:30}" + "".join(f"{table[program][part] or '-':>7}" for part in PARTS))


def part_of_commit() -> str:
    """Counts commits, so that each new one takes the next part. A shallow clone cannot count, and
    takes its commit's hash.
    """
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    if not (commit := git("rev-parse", "HEAD")):
        days = datetime.date.today().toordinal()  # an archive
        return NIGHTLY[days % PARTS_OF_NIGHTLY]
    if git("rev-parse", "--is-shallow-repository") == "true":
        return NIGHTLY[int(commit, 16) % PARTS_OF_NIGHTLY]
    return NIGHTLY[int(git("rev-list", "--count", "HEAD")) % PARTS_OF_NIGHTLY]


def main() -> int:
    match sys.argv[1:]:
        case ["list"]:
            show(None)
        case ["list", name]:
            show(name)
        case ["turn"]:
            print(part_of_commit())
        case ["programs", preset] if preset in IN_TEST:
            print(*(f"bin/{program}" for program in IN_TEST[preset]))
        case ["run", preset, part, *arguments] if part in (*PARTS, ALL):
            return run(preset, numbers_in(preset, listed(preset), part), arguments)
        case ["fuzz", part, *arguments] if part in (*NIGHTLY, ALL):
            return run("release", long_or_seeded_in(listed("release"), part), arguments)
        case ["check", *presets] if presets:
            return 0 if all([check(preset) for preset in presets]) else 1
        case _:
            sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
