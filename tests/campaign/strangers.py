#!/usr/bin/env python3
"""Hostile bytes on every socket that vmem's processes have open, while honest programs work and
verify their bytes.

For each scenario (without a secret, with one, with certificates, under `vmem run`, GPU memory lent
between programs): starts its processes, finds their sockets in /proc, compares them with what
SECURITY.md promises, and attacks each as this user, and as another one if this is root. Meanwhile
and afterwards no process may end, no program may read a wrong byte or stand still, new programs
have to find their place, and memory, descriptors and logs stay within bounds.

    tests/campaign/strangers.py --bin build/release/bin --seconds 120 --connections 100000
    tests/campaign/strangers.py --bin build/release/bin --seconds 120 --stops

The attack ends after that many seconds or connections, whichever comes first; both are divided
among the scenarios. With --stops processes are stopped and killed instead (stops.py).
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
import scenarios  # noqa: E402
import sockets  # noqa: E402
import stops  # noqa: E402
from watch import Watch  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
KIND = "hostile bytes on every port and socket"
NOBODY = 65534
# Two addresses: the limits before the proof are per host, and honest programs come from 127.0.0.1.
SOURCES = 2
ATTACKERS = [(None, 0.4), (None, 0.4), (NOBODY, 0.2)]  # user, share of the connections
NEWCOMER_EVERY_S = 5
NEWCOMER_S = 60  # to find its place and work, on a busy machine
NEWCOMER_TRIES = 5


class Newcomers:
    """Programs that start one after another during the attack: none may be kept out."""

    def __init__(self, scenario: scenarios.Scenario):
        self.scenario = scenario
        self.failures: list[str] = []
        self.started = self.refused = 0
        self.slowest_s = 0.0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stop.is_set():
            if why := self._one():
                self.failures.append(why)
            self.stop.wait(NEWCOMER_EVERY_S)

    def _one(self) -> str:
        """Why it did not start in several tries, or what was wrong; "" if nothing was."""
        begun = time.monotonic()
        for attempt in range(NEWCOMER_TRIES):
            program = self.scenario.newcomer(1 + self.started + self.refused)
            try:
                code = program.popen.wait(NEWCOMER_S)
            except subprocess.TimeoutExpired:
                program.popen.kill()
                program.popen.wait()
                return f"{program.name} did not finish in {NEWCOMER_S} s: {program.figures} {program.said()}"
            problems = program.judge(code)
            if program.figures["operations"]:
                self.started += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
                return " ".join(problems)
            self.refused += 1
        return f"a newcomer was refused {NEWCOMER_TRIES} times: {program.said()}"

    def finish(self) -> list[str]:
        self.stop.set()
        self.thread.join()
        if not self.started and not self.failures:
            self.failures.append("no newcomer started")
        return self.failures

    def figures(self) -> dict:
        return {"started": self.started, "refused": self.refused, "slowest_s": round(self.slowest_s, 1)}


def look(scenario: scenarios.Scenario) -> tuple[list[tuple[str, sockets.Found]], list[str]]:
    """All sockets of the scenario's processes, each with its process's name, and the promises that
    they break.
    """
    all_found, broken = [], []
    for process in scenario.processes():
        for pid in sockets.with_children(process.popen.pid):
            found = sockets.find(pid)
            all_found += [(process.name, each) for each in found]
            broken += sockets.broken_promises(found, scenario.has_secret, scenario.asked(),
                                              scenario.borrows_only(process, pid))
    return all_found, broken


class Attack:
    """Attackers, as processes of their own, on all sockets of a scenario."""

    def __init__(self, found: list[tuple[str, sockets.Found]], recorded: list[bytes], seed: int, connections: int,
                 seconds: float, sources: int):
        self.found = [each for each in found if each[1].family != "unlisted"]
        self.opened = [self._open(each) for _, each in self.found]
        chance = random.Random(seed)
        until = time.monotonic() + seconds
        self.attackers = []
        for user, share in ATTACKERS if os.geteuid() == 0 else ATTACKERS[:2]:
            targets = [{"family": each.family, "address": each.address, "type": each.type, "opened": opened}
                       for (_, each), opened in zip(self.found, self.opened)]
            orders = {"targets": targets, "recorded": [each.hex() for each in recorded], "seed": chance.getrandbits(63),
                      "connections": max(1, int(connections * share)), "until": until, "user": user,
                      "sources": [f"127.0.0.{2 + number}" for number in range(sources)]}
            attacker = subprocess.Popen([sys.executable, "-B", str(HERE / "hostile.py")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True,
                                        pass_fds=[each for each in self.opened if each is not None])
            attacker.stdin.write(json.dumps(orders))
            attacker.stdin.close()
            self.attackers.append(attacker)

    @staticmethod
    def _open(found: sockets.Found) -> int | None:
        if found.family != "unix" or found.is_abstract():
            return None
        return os.open(found.address, os.O_PATH)

    def finish(self) -> tuple[list[dict], list[str]]:
        """Counts of each socket."""
        failures = []
        counts = [{} for _ in self.found]
        for attacker in self.attackers:
            said = attacker.stdout.read()
            if attacker.wait() != 0:
                failures.append(f"an attacker ended with {attacker.returncode}")
                continue
            for total, more in zip(counts, json.loads(said)):
                add(total, more)
        for each in self.opened:
            if each is not None:
                os.close(each)
        return counts, failures


def add(total: dict, more: dict) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            add(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value


def attack(scenario: scenarios.Scenario, seconds: float, connections: int, sources: int) -> dict:
    """Runs a scenario under attack, and returns what the summary says about it."""
    begun = time.monotonic()
    scenario.start()
    recorded = scenarios.record_client_hellos(scenario)
    scenario.warm_up()
    found, failures = look(scenario)
    watch = Watch(scenario.processes(), scenario.bounds)
    newcomers = Newcomers(scenario)
    try:
        attack_begun = time.monotonic()
        attacked = Attack(found, recorded, scenario.seed, connections, seconds, sources)
        counts, attack_failures = attacked.finish()
        attack_seconds = time.monotonic() - attack_begun
    finally:
        newcomers_failures = newcomers.finish()
    described = [{"scenario": scenario.name, "process": name, "socket": f"{each.family} {each.address}"} | count
                 for (name, each), count in zip(attacked.found, counts)]
    failures += attack_failures + newcomers_failures + aftermath(scenario, watch)
    failures += [f"{each['socket']}: {promise} {times} times" for each in described
                 for promise, times in each.get("broken", {}).items()]
    failures += [f"{each['socket']} was not attacked" for each in described if not each.get("let_in")]
    return {"scenario": scenario.name, "failures": failures, "sockets": described, "growth": watch.figures(),
            "programs": {each.name: each.figures | {"longest_stall_s": round(each.longest_stall_s, 1)}
                         for each in scenario.programs},
            "newcomers": newcomers.figures(), "attack_seconds": round(attack_seconds, 1),
            "seconds": round(time.monotonic() - begun, 1)}


def aftermath(scenario: scenarios.Scenario, watch: Watch) -> list[str]:
    """Checks that after the attack all programs work as before it, and end in order."""
    before = {each.name: each.figures["operations"] for each in scenario.programs}
    failures = watch.finish()
    for each in scenario.programs:
        if not each.wait_for_operations(before[each.name] + 10, scenario.bounds.stall_s):
            failures.append(f"{each.name} does not go on after the attack: {each.said()}")
    failures += look(scenario)[1]
    failures += scenario.end()
    failures += [f"{each.name}: calls failed: {each.figures['failed']}: {each.said()}" for each in scenario.programs
                 if each.figures["failed"]]
    return list(dict.fromkeys(failures))


def attack_all(chosen: list, build: str, seed: int, seconds: float, connections: int, sources: int) -> list[dict]:
    results = []
    for number, kind in enumerate(chosen):
        scenario = kind(build, seed + number)
        print(f"{scenario.name}:", flush=True)
        try:
            result = attack(scenario, seconds / len(chosen), connections // len(chosen), sources)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            result = {"scenario": scenario.name, "failures": [str(error)], "sockets": []}
        finally:
            scenario.kill()
        report(scenario, result)
        results.append(result)
    return results


def report(scenario: scenarios.Scenario, result: dict) -> None:
    """Prints the figures, and keeps the logs where something failed."""
    for each in result["sockets"]:
        print(f"  {each['process']}: {each['socket']}: {each.get('made', 0)} connections, "
              f"{each.get('let_in', 0)} let in, {each.get('refused', 0)} refused, {each.get('queue_full', 0)} never "
              f"accepted, {each.get('answered', 0)} answered")
    if "programs" in result:
        for name, figures in result["programs"].items():
            print(f"  {name}: {figures['operations']} operations, {figures['wrong']} wrong, slowest call "
                  f"{figures['slowest_ms']} ms, longest stall {figures['longest_stall_s']} s")
        print(f"  newcomers: {result['newcomers']}; {result['attack_seconds']} s of attack")
    for failure in result["failures"]:
        print(f"  FAILED: {failure}", flush=True)
    if result["failures"]:
        print(f"  logs: {scenario.folder}", flush=True)
    else:
        shutil.rmtree(scenario.folder)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="the build's folder of programs, build/release/bin")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--json", help="a file for the summary")
    parser.add_argument("--stops", action="store_true", help="stop and kill processes instead of attacking sockets")
    parser.add_argument("--sources", type=int, default=SOURCES,
                        help="hosts (127.0.0.2 ...) that attackers connect from")
    parser.add_argument("--scenario", action="append", choices=[each.name for each in scenarios.ALL],
                        help="only this one; may be given several times")
    return parser.parse_args()


def main() -> int:
    asked = parse()
    build = str(pathlib.Path(asked.bin).resolve().parent)
    begun = time.monotonic()
    print(f"seed {asked.seed}", flush=True)
    if asked.stops:
        results = stops.stop_all(build, asked.seed, asked.seconds)
    else:
        chosen = [each for each in scenarios.ALL if not asked.scenario or each.name in asked.scenario]
        results = attack_all(chosen, build, asked.seed, asked.seconds, asked.connections, asked.sources)
    all_sockets = [each for result in results for each in result.get("sockets", [])]
    summary = {"kind": stops.KIND if asked.stops else KIND, "seed": asked.seed,
               "connections": sum(each.get("made", 0) for each in all_sockets), "sockets": all_sockets,
               "failures": [f"{each['scenario']}: {why}" for each in results for why in each["failures"]],
               "seconds": round(time.monotonic() - begun, 1),
               "scenarios": [{name: value for name, value in each.items() if name != "sockets"} for each in results]}
    if asked.json:
        pathlib.Path(asked.json).write_text(json.dumps(summary, indent=1) + "\n")
    attacked = "" if asked.stops else f"{summary['connections']} connections to {len(all_sockets)} sockets, "
    print(f"{summary['kind']}: {attacked}{summary['seconds']} s, {len(summary['failures'])} failures "
          f"(seed {asked.seed})")
    return 1 if summary["failures"] else 0


if __name__ == "__main__":
    # A CTest timeout or Ctrl-C must not leave daemons behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(1)
