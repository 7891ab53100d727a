"""Stops and kills processes at random moments, while a program works and compares every byte.

Calls may fail with TIMEOUT or OUT_OF_MEMORY while a daemon is away. They may fail with LOST only
after as many different daemons were killed as each page has copies. No program reads a wrong byte,
and none ends by itself.

tests/runtime/remote_test.cpp (RemoteDeaths) kills daemons, and stops one once, below a program of
its own. Here programs are stopped and killed as well, moments and durations are drawn from a seed,
and nodes talk TLS, too.
"""
import random
import shutil
import signal
import socket
import subprocess
import time

from scenarios import DATA_PAGES, SIZES, WARM_OPERATIONS, WARM_S, Scenario, WithSecret
from watch import Daemon, Honest

KIND = "stops and kills"
CALL_WAIT_S = 5
BUSY_S = 5  # that a call may take longer on a machine whose cores are all in use
LONGEST_STOP_S = 4
AFTERWARDS_S = 60
ALLOWED = {"TIMEOUT", "LOST", "OUT_OF_MEMORY"}


class Restless(Scenario):
    """Two daemons that are started again at the same addresses."""

    kills_daemons = kills_programs = False

    def start(self) -> None:
        self.chance = random.Random(self.seed)
        self.addresses = [f"127.0.0.1:{lasting_port(self.chance)}" for _ in range(2)]
        self.daemons = [self.daemon(number) for number in range(2)]
        self.programs = [self.program("program0")]
        self.counts = {"stops": 0, "daemon_kills": 0, "program_kills": 0}
        self.killed_daemons: set[int] = set()
        self.failures: list[str] = []
        self.past: dict[str, dict] = {}  # figures of programs that were killed
        self.wait_for_programs()

    def daemon(self, number: int) -> Daemon:
        trust = [f"--{name}={value}" for name, value in self.trust().items()]
        return Daemon(f"daemon{number}", self.vmem, self.folder, ["--lend", "128MiB", "--id", str(number + 1), *trust],
                      self.addresses[number])

    def program(self, name: str, pages: int = DATA_PAGES, operations: int = 0) -> Honest:
        return self.honest(name, [*SIZES, *self.remote(), f"replicas={self.replicas}", "remote_wait=2s",
                                  f"call_wait={CALL_WAIT_S}s"], pages, operations)

    def remote(self) -> list[str]:
        return [f"remote={','.join(self.addresses)}", *(f"{name}={value}" for name, value in self.trust().items())]

    def wait_for_programs(self) -> None:
        if not self.programs[-1].wait_for_operations(WARM_OPERATIONS, WARM_S):
            raise RuntimeError(f"{self.programs[-1].name} did not begin: {self.programs[-1].said()}")

    def step(self) -> None:
        actions = [self.stop_daemon, self.stop_program]
        actions += [self.kill_daemon] * 2 if self.kills_daemons else []
        actions += [self.kill_program] if self.kills_programs else []
        self.chance.choice(actions)()
        time.sleep(self.chance.random() * 1.5)
        for each in self.processes():
            if each.popen.poll() is not None:
                raise RuntimeError(f"{each.name} ended by itself with {each.popen.returncode}: {each.said()}")

    def stop_daemon(self) -> None:
        """One, or both."""
        chosen = self.chance.sample(self.daemons, self.chance.choice([1, 1, 2]))
        self.stop_for_a_while(chosen)

    def stop_program(self) -> None:
        self.stop_for_a_while(self.programs[-1:])

    def stop_for_a_while(self, processes: list) -> None:
        for each in processes:
            each.send(signal.SIGSTOP)
        time.sleep(self.chance.random() ** 2 * LONGEST_STOP_S)
        for each in processes:
            each.send(signal.SIGCONT)
        self.counts["stops"] += len(processes)

    def kill_daemon(self) -> None:
        number = self.chance.randrange(2)
        self.daemons[number].end(signal.SIGKILL)
        self.counts["daemon_kills"] += 1
        self.killed_daemons.add(number)
        time.sleep(self.chance.random())
        self.daemons[number] = self.daemon(number)

    def kill_program(self) -> None:
        """Checks that a successor finds room at once: without a secret, daemons see the end of a
        process.
        """
        killed = self.programs.pop()
        killed.end(signal.SIGKILL)
        self.counts["program_kills"] += 1
        self.judge(killed)
        self.past[killed.name] = killed.figures
        self.programs.append(self.program(f"program{self.counts['program_kills']}"))
        self.wait_for_programs()

    def judge(self, program: Honest) -> None:
        self.failures += program.complaints()
        failed = program.figures["failed"]
        if not failed.keys() <= ALLOWED:
            self.failures.append(f"{program.name}: {failed}: {program.said()}")
        if failed.get("LOST") and len(self.killed_daemons) < self.replicas:
            self.failures.append(f"{program.name} lost pages with {self.replicas} copies after "
                                 f"{len(self.killed_daemons)} daemons were killed: {program.said()}")
        longest_ms = (CALL_WAIT_S + BUSY_S + LONGEST_STOP_S) * 1000
        if program.figures["slowest_ms"] > longest_ms:
            self.failures.append(f"{program.name}: a call took {program.figures['slowest_ms']} ms, and has at most "
                                 f"{longest_ms}: {program.said()}")

    def finish(self) -> None:
        program = self.programs[-1]
        if not program.wait_for_operations(program.figures["operations"] + WARM_OPERATIONS, AFTERWARDS_S):
            self.failures.append(f"{program.name} does not go on: {program.figures} {program.said()}")
        self.failures += self.end()
        self.judge(program)


class StopsOneCopy(Restless):
    name = "stops, one copy"


class KillsOneCopy(Restless):
    name = "stops and kills, one copy"
    kills_daemons = kills_programs = True


class KillsTwoCopies(WithSecret, Restless):
    name = "stops and kills, two copies, with a secret"
    kills_daemons = True
    replicas = 2


def lasting_port(chance: random.Random) -> int:
    """A port outside of the range that the kernel assigns to connections."""
    while True:
        port = chance.randrange(10_000, 30_000)
        with socket.socket() as made:
            try:
                made.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def stop_all(build: str, seed: int, seconds: float) -> list[dict]:
    kinds = [StopsOneCopy, KillsOneCopy, KillsTwoCopies]
    return [run(kind(build, seed + number), seconds / len(kinds)) for number, kind in enumerate(kinds)]


def run(scenario: Restless, seconds: float) -> dict:
    print(f"{scenario.name}:", flush=True)
    begun = time.monotonic()
    try:
        scenario.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            scenario.step()
        scenario.finish()
        failures = scenario.failures
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        failures = [*getattr(scenario, "failures", []), str(error)]
    finally:
        scenario.kill()
    programs = getattr(scenario, "past", {}) | {each.name: each.figures for each in scenario.programs}
    counts = getattr(scenario, "counts", {})
    print(f"  {counts}; {total(programs)}", flush=True)
    for failure in failures:
        print(f"  FAILED: {failure}", flush=True)
    if failures:
        print(f"  logs: {scenario.folder}", flush=True)
    else:
        shutil.rmtree(scenario.folder)
    return {"scenario": scenario.name, "failures": failures, "counts": counts, "programs": programs,
            "seconds": round(time.monotonic() - begun, 1)}


def total(programs: dict[str, dict]) -> str:
    failed: dict[str, int] = {}
    for figures in programs.values():
        for status, times in figures["failed"].items():
            failed[status] = failed.get(status, 0) + times
    return (f"{len(programs)} programs, {sum(each['operations'] for each in programs.values())} operations, "
            f"{sum(each['wrong'] for each in programs.values())} wrong, failed calls {failed}, slowest call "
            f"{max((each['slowest_ms'] for each in programs.values()), default=0)} ms")
