"""Starts the processes of a scenario and watches them: that they live, that honest programs go on
and see no wrong byte, and that memory, descriptors and logs stay within bounds.
"""
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import sockets

HERE = pathlib.Path(__file__).resolve().parent
# A larger mapping is what a daemon lends, or a range of addresses for pages: honest programs fill
# it.
MOST_MAPPING_BYTES = 256 << 20
SAMPLE_EVERY_S = 0.5
START_S = 60  # on a machine whose cores are all in use
END_S = 60


@dataclasses.dataclass(frozen=True)
class Bounds:
    """How much each process may grow, compared with what it had before the attack."""

    # 64 connections that prove nothing were seen to take 35 MiB, for 78,000 in a row.
    memory_bytes: int = 64 << 20
    descriptors: int = 128  # during the attack: 64 connections that prove nothing, and newcomers
    descriptors_afterwards: int = 8
    log_lines: int = 400  # each cause of a warning is logged at powers of two
    stall_s: float = 15  # without an operation of an honest program


def resident_bytes(pid: int) -> int:
    """The memory of a process, without the pages that it lends or has."""
    total = counted = 0
    with open(f"/proc/{pid}/smaps") as mappings:
        for line in mappings:
            if line.startswith("Rss:"):
                total += counted * int(line.split()[1]) * 1024
            elif "-" in (bounds := line.split(maxsplit=1)[0]) and not bounds.endswith(":"):
                begin, end = (int(each, 16) for each in bounds.split("-"))
                counted = end - begin < MOST_MAPPING_BYTES
    return total


class Process:
    """A process of a scenario with all below it. Its stdout is read line by line, its stderr goes
    to a file.
    """

    def __init__(self, name: str, command: list[str], folder: str, environment: dict[str, str] | None = None):
        self.name = name
        self.log = pathlib.Path(folder) / f"{name}.log"
        self.lines: list[str] = []
        self.new_line = threading.Condition()
        self.expected_to_run = True
        with self.log.open("wb") as log:
            # Sockets get mode 0777 then: only their folder and the check of the peer's user keep
            # others out.
            self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, umask=0,
                                          env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | (environment or {}))
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.popen.stdout:
            with self.new_line:
                self.take_line(line.rstrip())
                self.new_line.notify_all()

    def take_line(self, line: str) -> None:
        self.lines.append(line)

    def wait_until(self, condition, seconds: float) -> bool:
        """Waits until a line makes the condition true, or the process has ended."""
        deadline = time.monotonic() + seconds
        with self.new_line:
            while not condition() and time.monotonic() < deadline and self.popen.poll() is None:
                self.new_line.wait(0.2)
            return bool(condition())

    def send(self, number: int) -> None:
        self.popen.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """The exit code; kills the process if it does not end by itself."""
        self.expected_to_run = False
        if self.popen.poll() is None:
            self.send(number)
        try:
            code = self.popen.wait(END_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise RuntimeError(f"{self.name} did not end within {END_S} s of signal {number}") from None
        return code

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    # What it takes, with all below it. 0 for what has ended.

    def memory_bytes(self) -> int:
        return sum(self._each(resident_bytes))

    def descriptors(self) -> int:
        return sum(self._each(lambda pid: len(os.listdir(f"/proc/{pid}/fd"))))

    def _each(self, ask) -> list[int]:
        found = []
        for pid in sockets.with_children(self.popen.pid):
            try:
                found.append(ask(pid))
            except (FileNotFoundError, ProcessLookupError):
                pass
        return found

    def log_lines(self) -> int:
        return self.log.read_bytes().count(b"\n")


class Daemon(Process):
    def __init__(self, name: str, vmem: str, folder: str, arguments: list[str], listen: str = "127.0.0.1:0"):
        super().__init__(name, [vmem, "daemon", "--listen", listen, *arguments], folder)
        if not self.wait_until(lambda: self.lines, START_S):
            raise RuntimeError(f"{name} did not start: {self.said()}")
        self.address = re.search(r"listens on (\S+)", self.lines[0])[1]


class Honest(Process):
    """A running honest.py."""

    def __init__(self, name: str, folder: str, arguments: list[str], under: list[str] | None = None,
                 environment: dict[str, str] | None = None):
        self.figures: dict = {"operations": 0, "wrong": 0, "failed": {}, "slowest_ms": 0}
        self.progressed = time.monotonic()
        self.longest_stall_s = 0.0
        command = [*(under or []), sys.executable, str(HERE / "honest.py"), *arguments]
        super().__init__(name, command, folder, environment)

    def take_line(self, line: str) -> None:
        if not line.startswith("{"):
            return
        figures = json.loads(line)
        now = time.monotonic()
        if figures["operations"] > self.figures["operations"]:
            if self.figures["operations"]:
                self.longest_stall_s = max(self.longest_stall_s, now - self.progressed)
            self.progressed = now
        self.figures = figures

    def wait_for_operations(self, count: int, seconds: float) -> bool:
        return self.wait_until(lambda: self.figures["operations"] >= count, seconds)

    def finish(self) -> list[str]:
        """Ends it, after it has read all its pages once more."""
        return self.judge(self.end())

    def judge(self, code: int) -> list[str]:
        """Problems with its end and its report."""
        self.reader.join(5)
        wrong = []
        if code != 0 or not self.figures.get("final"):
            wrong.append(f"{self.name} ended with {code} before its last report: {self.said()}")
        return wrong + self.complaints()

    def complaints(self) -> list[str]:
        if not self.figures["wrong"]:
            return []
        return [f"{self.name} read wrong bytes {self.figures['wrong']} times: {self.said()}"]


class Watch:
    """Samples processes until `finish`, in a thread of its own."""

    def __init__(self, processes: list[Process], bounds: Bounds):
        self.processes, self.bounds = processes, bounds
        self.failures: list[str] = []
        self.before = {each.name: self._sample(each) for each in processes}
        self.most = {name: dict(sample) for name, sample in self.before.items()}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @staticmethod
    def _sample(process: Process) -> dict[str, int]:
        return {"memory_bytes": process.memory_bytes(), "descriptors": process.descriptors(),
                "log_lines": process.log_lines()}

    def _run(self) -> None:
        while not self.stop.wait(SAMPLE_EVERY_S):
            for each in self.processes:
                self._look(each)

    def _look(self, process: Process) -> None:
        if process.popen.poll() is not None:
            return self._fail(f"{process.name} ended with {process.popen.returncode}: {process.said()}")
        for what, value in self._sample(process).items():
            self.most[process.name][what] = max(self.most[process.name][what], value)
            grown = value - self.before[process.name][what]
            if grown > getattr(self.bounds, what):
                self._fail(f"{process.name}: {what} grew by more than {getattr(self.bounds, what)}, from "
                           f"{self.before[process.name][what]}")
        if isinstance(process, Honest):
            if time.monotonic() - process.progressed > self.bounds.stall_s:
                self._fail(f"{process.name} did nothing for {self.bounds.stall_s} s")
            for complaint in process.complaints():
                self._fail(complaint.split(":")[0])

    def _fail(self, why: str) -> None:
        if why not in self.failures:
            print(f"  FAILED: {why}", flush=True)
            self.failures.append(why)

    def finish(self, seconds: float = 10) -> list[str]:
        """Checks that soon after the attack the samples are as before it."""
        deadline = time.monotonic() + seconds
        while late := self._not_given_back():
            if time.monotonic() > deadline:
                self.failures += late
                break
            time.sleep(0.2)
        self.stop.set()
        self.thread.join()
        return self.failures

    def _not_given_back(self) -> list[str]:
        grown = {each.name: each.descriptors() - self.before[each.name]["descriptors"] for each in self.processes}
        return [f"{name} has {more} descriptors more than before the attack" for name, more in grown.items()
                if more > self.bounds.descriptors_afterwards]

    def figures(self) -> dict:
        """Of each process: before the attack and at most."""
        return {name: {what: [self.before[name][what], most] for what, most in all_most.items()}
                for name, all_most in self.most.items()}
