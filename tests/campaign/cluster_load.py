#!/usr/bin/env python3
"""What a steady load on a cluster does while its registry is away, and while a daemon joins.

The load reads pages of a published table, more than its program has room for, and pages of its own
that overflow to daemons, by turns. Every byte is compared. Figures are printed as ratios to the
rate of the same load just before, in windows of a second; `--json FILE` keeps them.

    tests/campaign/cluster_load.py --bin build/release/bin registry --away 60 --lease 90
    tests/campaign/cluster_load.py --bin build/release/bin join

registry: one of three etcd servers, the leader, is stopped for a time, then all of them for
`--away` seconds. Nobody is expelled, and `--recovery` seconds after their return a program has
joined and published.
join: a daemon joins a cluster whose memory is used up, and its room is used within two seconds.
"""
import argparse
import contextlib
import json
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

from cluster_figures import Figures
from cluster_world import Program, World, within

READY_S = 60
BEFORE_S = 10
ROOM_USED_S = 2
LEAST_IDLE = 1 / 3  # otherwise the load waits for the machine's cores, not for the cluster
BEFORE = "the same load just before"
TABLE = "table"
# With pauses: some of the processors' time is left.
SMALL = ["--pause-ms", "10", "hbm=32MiB", "host=16MiB", "borrow=48MiB", "--pages", "32"]
ROOMY = ["hbm=64MiB", "host=256MiB", "borrow=16MiB"]


class Load:
    def __init__(self, world: World, figures: Figures):
        self.world, self.figures = world, figures

    def hear(self, program: Program, event: dict) -> None:
        if event["event"] in ("wrong", "late"):
            self.figures.fail(f"{program.name}: {event}")

    def start(self, daemons: int) -> None:
        for number in range(daemons):
            self.world.daemon(f"daemon{number}", ["--listen", "127.0.0.1:0", "--lend", "96MiB", "--copies", "128MiB"])
        self.wait("daemons", lambda: all(each.is_ready() for each in self.world.nodes))
        publisher = self.world.program(TABLE, "publisher", ROOMY, self.hear)
        self.wait("the table", lambda: publisher.figures.get("publications"))
        self.world.tell(names=[TABLE], owners=[TABLE])
        self.scanner = self.world.program("scanner", "scanner", SMALL, self.hear)
        # All its own pages are written then, and some are on daemons.
        self.wait("the load", lambda: self.scanner.figures["operations"] > 200)

    def wait(self, what: str, holds) -> None:
        if within(READY_S, lambda: "" if holds() else what):
            raise RuntimeError(f"{what}: not within {READY_S} s: {[each.said() for each in self.world.nodes]}")

    def rates(self, begin: float, end: float) -> list[float]:
        """Of whole seconds."""
        return [self.scanner.rate(begin + second, begin + second + 1) for second in range(int(end - begin))]

    def measure(self, seconds: float) -> tuple[float, float]:
        """Begin and end of a time that passes."""
        begin = time.monotonic()
        time.sleep(seconds)
        return begin, begin + seconds

    def mean(self, span: tuple[float, float]) -> float:
        return self.scanner.rate(*span)

    def finish(self) -> None:
        # Programs first: daemons take with them what they hold.
        for each in sorted(self.world.nodes, key=lambda node: not isinstance(node, Program)):
            for problem in self.world.end_of(each):
                self.figures.fail(problem)
        told = self.scanner.figures
        self.figures.expect(not told["wrong"] and not told["failed"], f"{told['operations']} operations, {told['wrong']} "
                            f"wrong, failed calls {told['failed']}, slowest calls in ms {told['slowest_ms']}")


def core_time() -> tuple[int, int]:
    """Ticks that the cores were idle, and all."""
    ticks = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    # user nice system idle iowait irq softirq steal
    fields = [int(each) for each in ticks[:8]]
    return fields[3] + fields[4], sum(fields)


def idle_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    return (after[0] - before[0]) / max(1, after[1] - before[1])


class Registry(Load):
    def run(self, asked: argparse.Namespace) -> None:
        self.start(daemons=2)
        listed = self.ids()
        base = self.mean(self.measure(BEFORE_S))
        leader = self.leader()
        self.world.etcd.servers[leader].send(signal.SIGSTOP)
        one = self.mean(self.measure(BEFORE_S))
        self.world.etcd.servers[leader].send(signal.SIGCONT)
        self.figures.add("one of three etcd servers stopped", one, "op/s", limit=base, limit_name=BEFORE, least=asked.ratio)
        base = self.mean(self.measure(BEFORE_S))
        for each in self.world.etcd.servers:
            each.send(signal.SIGSTOP)
        none = self.mean(self.measure(asked.away))
        for each in self.world.etcd.servers:
            each.send(signal.SIGCONT)
        self.returned(time.monotonic(), listed, asked.recovery)
        self.figures.add(f"all etcd servers away for {asked.away:.0f} s", none, "op/s", limit=base, limit_name=BEFORE,
                         least=asked.ratio, lease_s=asked.lease)
        self.finish()

    def returned(self, at: float, listed: set[int], most_s: float) -> None:
        """A node joins and publishes, and the list has it beside those of before."""
        owner = self.world.program("late", "publisher", ROOMY, self.hear)
        self.wait("the publication after the return", lambda: owner.figures.get("publications"))
        took = time.monotonic() - at
        problem = within(most_s, lambda: "" if len(self.ids()) == len(listed) + 1 else f"listed are {self.ids()}")
        self.figures.add("a program joins and publishes after their return", took, "s", most=most_s)
        expelled = [each.name for each in self.world.nodes if "no longer node" in each.log.read_text()]
        if problem or not listed <= self.ids() or expelled:
            self.figures.fail(f"the nodes {listed} were there before, {self.ids()} are now; expelled: {expelled}")

    def ids(self) -> set[int]:
        return {each["id"] for each in self.world.listed_nodes()}

    def leader(self) -> int:
        """The number of the server that leads."""
        for number, endpoint in enumerate(self.world.etcd.endpoints):
            with urllib.request.urlopen(f"http://{endpoint}/v3/maintenance/status", b"{}", timeout=5) as answer:
                told = json.load(answer)
            if told["leader"] == told["header"]["member_id"]:
                return number
        raise RuntimeError("no etcd server leads")


class Join(Load):
    def run(self, asked: argparse.Namespace) -> None:
        self.start(daemons=1)
        # It has more pages than there is room for, and tries to write them again and again.
        filler = self.world.program("filler", "scanner",
                                    ["--pause-ms", "10", "hbm=32MiB", "host=16MiB", "--pages", "96"], self.hear)
        self.wait("the filler", lambda: filler.figures["operations"] > 50)
        before = self.rates(*self.measure(BEFORE_S))
        base, slowest = statistics.median(before), min(before)
        begun, cores = time.monotonic(), core_time()
        daemon = self.world.daemon("late", ["--listen", "127.0.0.1:0", "--lend", "96MiB"])
        self.wait("the daemon", daemon.is_ready)
        ready = time.monotonic()
        self.wait("pages on it", lambda: self.received(daemon))
        took = time.monotonic() - ready
        self.figures.add("room of a daemon that joins is used", took, "s", most=ROOM_USED_S)
        self.measure(max(0.0, begun + BEFORE_S - time.monotonic()))
        idle = idle_share(cores, core_time())
        limit, name = (slowest, "the slowest second before") if asked.noisy else (base, "the median second before")
        self.figures.add("the slowest second while a daemon joins", min(self.rates(begun, begun + BEFORE_S)), "op/s",
                         limit=limit, limit_name=name, least=asked.ratio, median_before=base, slowest_before=slowest,
                         idle_share=idle)
        if not asked.noisy:
            self.figures.add("share of the cores' time that was idle meanwhile", idle, "", least=LEAST_IDLE)
        self.finish()

    def received(self, daemon) -> bool:
        seen = len(daemon.lines)
        daemon.send(signal.SIGUSR1)
        daemon.wait_until(lambda: len(daemon.lines) > seen, 5)
        return not re.search(r"; 0 B received", daemon.lines[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", choices=["registry", "join"])
    parser.add_argument("--bin", required=True, help="the build's folder of programs, build/release/bin")
    parser.add_argument("--away", type=float, default=60, help="seconds without any etcd server")
    parser.add_argument("--lease", type=int, default=90, help="seconds of a node's lease")
    parser.add_argument("--recovery", type=float, default=10, help="seconds after which it has to be as before")
    parser.add_argument("--ratio", type=float, default=0.95, help="least ratio of the load's rate to that before")
    parser.add_argument("--noisy", action="store_true",
                        help="join: compare with the slowest second before, on a machine that others use")
    parser.add_argument("--json", help="a file for the figures, as records of vmem bench")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    asked = parser.parse_args()
    print(f"{asked.scenario}: seed {asked.seed}", flush=True)
    is_registry = asked.scenario == "registry"
    world = World(str(pathlib.Path(asked.bin).resolve().parent), asked.seed, 3 if is_registry else 1, asked.lease)
    figures = Figures(world.vmem, asked.seed)
    try:
        (Registry if is_registry else Join)(world, figures).run(asked)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        figures.fail(str(error))
    finally:
        world.end(keep=bool(figures.failures))
    return figures.end(asked.json, world.folder)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(1)
