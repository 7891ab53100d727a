#!/usr/bin/env python3
"""Kills owners, readers and daemons of a cluster at random moments, under load, and starts them
again.

Nobody reads a wrong byte. Calls may fail with TIMEOUT, and with LOST only where no holder of the
page was left (cluster_model.py). Each call ends by its deadline and a second. Afterwards every
region that still has a holder is read whole, and the registry and the daemons hold nothing of
nodes that have ended.

    tests/campaign/cluster_kills.py --bin build/release/bin --kills 50 [--seed N] [--json FILE]

Membership leases are of 6 s. Some processes run in pid namespaces of their own, where that is
permitted: their ends show by their leases only. The seed gives the same plan of kills; how they
meet the load differs from run to run. Logs are kept if something fails.
"""
import argparse
import collections
import contextlib
import dataclasses
import json
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

from cluster_figures import Figures
from cluster_model import Model, Region, fewest
from cluster_world import Lender, Node, Program, World, can_hide, within
from stops import lasting_port

LEASE_S = 6
READY_S = 40  # from its start to its first operation, on a machine whose cores are all in use
SETTLE_S = 15
LIFE_S = 25  # that an audited region has left
MOST_FAILURES = 10
ALLOWED = {"TIMEOUT", "LOST", "OUT_OF_MEMORY"}
GRACE_S = 6  # of a lease whose program a daemon does not see end
DAEMON = ["--lend", "120MiB", "--copies", "128MiB", "--grace", f"{GRACE_S}s"]
# A publisher with room for all that it publishes, and one that keeps pages on daemons.
ROOMY, TIGHT = ["hbm=64MiB", "host=256MiB", "borrow=16MiB"], ["hbm=32MiB", "host=16MiB", "borrow=24MiB"]
READER = ["hbm=32MiB", "host=32MiB", "borrow=24MiB"]


class Slot:
    """A process that is started again after each kill."""

    def __init__(self, name: str, kind: str, hidden: bool, replicas: int = 1, tight: bool = False):
        self.name, self.kind, self.hidden, self.replicas, self.tight = name, kind, hidden, replicas, tight
        self.node: Node | None = None
        self.starts = 0
        self.due = 0.0  # of its next start


class Kills:
    def __init__(self, world: World, figures: Figures, seed: int, heal_s: float):
        self.world, self.figures, self.chance = world, figures, random.Random(seed)
        self.heal_s = heal_s
        self.model = Model(heal_s, LEASE_S)
        self.lock = threading.Lock()
        # Protected by the lock.
        self.events: list[tuple[str, dict]] = []
        hide = can_hide()
        if not hide:
            print("  no process is hidden from daemons: pid namespaces are not permitted here")
        self.slots = [Slot("daemon0", "daemon", False), Slot("daemon1", "daemon", False),
                      Slot("daemon2", "daemon", hide), Slot("owner0", "owner", False),
                      Slot("owner1", "owner", hide, tight=True), Slot("reader0", "reader", False),
                      Slot("reader1", "reader", hide, replicas=2), Slot("reader2", "reader", False)]
        self.ports = {each.name: lasting_port(self.chance) for each in self.slots if each.kind == "daemon"}
        self.changes: list[tuple[float, int]] = []  # of the number of daemons
        self.counts: collections.Counter = collections.Counter()
        self.past: list[dict] = []  # figures of programs that have ended
        self.late = self.lost_unjustly = 0

    # ---- processes ----

    def start(self, slot: Slot) -> None:
        name = f"{slot.name}.{slot.starts}"
        slot.starts += 1
        if slot.kind == "daemon":
            listen = ["--listen", f"127.0.0.1:{self.ports[slot.name]}", "--label", f"rack={slot.name}"]
            slot.node = self.world.daemon(name, [*DAEMON, *listen], slot.hidden)
            self.changes.append((time.monotonic(), 1))
            return
        arguments = ["--seed", str(self.chance.randrange(1 << 31)), f"replicas={slot.replicas}"]
        if slot.kind == "owner":
            arguments += ["--pages", "24", *TIGHT] if slot.tight else ROOMY
        else:
            arguments += [*READER, "--pages", "0" if slot.name == "reader2" else "32"]
        if slot.tight:
            self.model.tight.add(name)
        slot.node = self.world.program(name, slot.kind, arguments, self.hear, slot.hidden)

    def hear(self, program: Program, event: dict) -> None:
        with self.lock:
            self.events.append((program.name, event))
            if program.name.startswith("owner") and event["event"] in ("publishing", "published", "closing", "closed"):
                self.hear_owner(program.name, event)

    def hear_owner(self, name: str, event: dict) -> None:
        if event["event"] == "publishing":
            self.model.publishing(name, event)
        else:
            getattr(self.model, event["event"])(event)

    def tell(self) -> None:
        """Tells readers what is published."""
        now = time.monotonic()
        with self.lock:
            names = sorted({each.name for each in self.model.regions.values()
                            if each.published <= now and self.model.ended_since(self.model.latest(each.name)) > now})
        living = [each.node.name for each in self.slots if each.node and each.node.lives()]
        self.world.tell(names=names, owners=living)

    def kill(self, slot: Slot) -> None:
        at = time.monotonic()
        slot.node.kill()
        self.changes += [(at, -1)] if slot.kind == "daemon" else []
        self.retire(slot, at)
        self.counts[f"{slot.kind}s killed"] += 1
        slot.due = time.monotonic() + self.chance.random() * 1.5

    def retire(self, slot: Slot, at: float) -> None:
        with self.lock:
            self.model.died(slot.node.name, at, slot.kind == "daemon")
        if isinstance(slot.node, Program):
            self.past.append(slot.node.figures)
            if slot.node.was_expelled():
                self.counts["expelled"] += 1
                self.model.ended[slot.node.name] = 0
        self.world.nodes.remove(slot.node)
        slot.node = None

    def look(self) -> None:
        """Starts what is due, and finds what has ended by itself or does not begin."""
        now = time.monotonic()
        for slot in self.slots:
            if slot.node is None:
                if now >= slot.due:
                    self.start(slot)
            elif not slot.node.lives():
                self.fail(f"{slot.node.name} ended by itself with {slot.node.popen.returncode}: {slot.node.said()}")
                self.retire(slot, now)
                slot.due = now + 1
            elif not slot.node.is_ready() and now - slot.node.begun > READY_S:
                raise RuntimeError(f"{slot.node.name} does not begin: {slot.node.said()}")
        self.tell()

    def fail(self, why: str) -> None:
        with self.lock:
            self.figures.fail(why)
        if len(self.figures.failures) >= MOST_FAILURES:
            raise RuntimeError("too many failures")

    def pass_time(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.look()
            time.sleep(min(left, 0.1))

    def all_ready(self) -> str:
        self.look()
        return ", ".join(each.name for each in self.slots if not each.node or not each.node.is_ready())

    # ---- the run ----

    def run(self, kills: int, burst: int) -> None:
        """After each `burst` kills the cluster is left alone until its copies are made again."""
        if waiting := within(READY_S, self.all_ready):
            raise RuntimeError(f"these do not begin: {waiting}")
        self.pass_time(2)
        for number in range(kills):
            alive = [each for each in self.slots if each.node]
            if alive:
                self.kill(self.chance.choice(alive))
            if burst and number % burst == burst - 1:
                self.pass_time(self.heal_s + 1)
            elif self.chance.random() > 0.25:
                self.pass_time(self.chance.random() * 1.9)

    def settle(self) -> None:
        if waiting := within(READY_S, self.all_ready):
            self.fail(f"these do not begin after the kills: {waiting}")
        if left := within(LEASE_S + SETTLE_S, self.not_listed):
            self.fail(f"the registry's nodes after {LEASE_S + SETTLE_S} s: {left}")
        before = {each.node.name: each.node.figures["operations"] for each in self.slots if each.kind != "daemon"}

        def still() -> list[str]:
            self.look()
            return [f"{each.node.name}: {each.node.figures}" for each in self.slots if each.kind != "daemon"
                    and each.node.figures["operations"] <= before.get(each.node.name, 0)]

        if stuck := within(SETTLE_S, still):
            self.fail(f"these do not go on: {stuck}")

    def not_listed(self) -> str:
        """Compares the registry's nodes with the processes that live."""
        self.look()
        listed = self.world.listed_nodes()
        there = collections.Counter(each["kind"] for each in listed)
        wanted = collections.Counter("daemon" if each.kind == "daemon" else "program" for each in self.slots)
        pids = {each["pid"] for each in listed}
        missing = [each.name for each in self.slots if not each.hidden and each.node.popen.pid not in pids]
        return "" if there == wanted and not missing else f"{dict(there)} are listed of {dict(wanted)}; without {missing}"

    def audit(self) -> None:
        """Reads every page that must be there."""
        now = time.monotonic()
        with self.lock:
            regions = {each.name: each for each in self.model.must_be_there(now, LIFE_S)
                       if each is self.model.latest(each.name)}
            names = sorted(regions)
        self.world.tell(names=names, owners=[], audit=names)
        auditor = self.world.program("auditor.0", "auditor", READER, self.hear)
        auditor.popen.wait()
        auditor.reader.join()
        self.past.append(auditor.figures)
        self.world.nodes.remove(auditor)
        with self.lock:
            audited = [event for process, event in self.events if process == auditor.name and event["event"] == "audited"]
            problems = [f"'{each['name']}' must be there whole, and {each['problem']}" for each in audited
                        if each["problem"] and self.is_there(regions[each["name"]])]
        self.counts["audited"] = len(audited)
        if auditor.popen.returncode != 0 or len(audited) != len(names):
            problems.append(f"the auditor ended with {auditor.popen.returncode} after {len(audited)} of {len(names)} "
                            f"regions: {auditor.said()}")
        for each in problems:
            self.fail(each)

    def is_there(self, region: Region) -> bool:
        """Still: owners go on meanwhile, and publish later versions."""
        return region in self.model.must_be_there(time.monotonic(), 0)

    def finish(self) -> None:
        """Ends programs, then daemons, and looks for what is left of them."""
        for kind in ("reader", "owner"):
            for slot in (each for each in self.slots if each.kind == kind):
                for problem in self.world.end_of(slot.node):
                    self.fail(problem)
                self.retire(slot, time.monotonic())
        for problem in (within(LEASE_S + SETTLE_S, self.leased), within(60, self.regions_left),
                        within(SETTLE_S, self.copies_left), within(SETTLE_S, self.keys_left)):
            if problem:
                self.fail(problem)
        for slot in self.slots:
            if slot.kind == "daemon":
                for problem in self.world.end_of(slot.node):
                    self.fail(problem)
                if "0 damaged" not in slot.node.lines[-1]:
                    self.fail(f"{slot.node.name}: {slot.node.lines[-1]}")

    def daemons(self) -> list[Lender]:
        return [each.node for each in self.slots if each.kind == "daemon"]

    def leased(self) -> str:
        for each in self.daemons():
            seen = len(each.lines)
            each.send(signal.SIGUSR1)
            each.wait_until(lambda each=each, seen=seen: len(each.lines) > seen, 5)
        return "; ".join(f"{each.name} holds for programs that have ended: {each.lines[-1]}" for each in self.daemons()
                         if "vmem daemon: 0 nodes borrow" not in each.lines[-1])

    def regions_left(self) -> str:
        left = self.world.listed_regions()
        for each in left:
            if not each["is_being_removed"]:
                with contextlib.suppress(RuntimeError):  # it may have expired meanwhile
                    self.world.command("region", "rm", each["name"])
        return f"regions are not removed: {left}" if left else ""

    def copies_left(self) -> str:
        held = {each["id"]: each["held_copies_bytes"] for each in self.world.listed_nodes()}
        return f"daemons hold copies of regions that were removed: {held}" if any(held.values()) else ""

    def keys_left(self) -> str:
        kinds = collections.Counter(each.split("/")[0] for each in self.world.etcd.keys())
        self.counts["slices left"] = kinds.pop("slices", 0)
        daemons = sum(each.kind == "daemon" for each in self.slots)
        wrong = {kind: number for kind, number in kinds.items()
                 if kind in ("regions", "names", "drain") or kind in ("nodes", "holds") and number > daemons}
        return f"the registry still holds {wrong}" if wrong else ""

    # ---- what was observed ----

    def keep_events(self) -> None:
        """Beside the logs."""
        with self.lock:
            deaths = [dataclasses.asdict(each) for each in self.model.deaths]
            lines = [json.dumps({"process": process} | event) for process, event in self.events]
        pathlib.Path(self.world.folder, "events.json").write_text("\n".join([*map(json.dumps, deaths), *lines]))

    def judge(self) -> None:
        for process, event in self.events:
            slot = next((each for each in self.slots if each.name == process.split(".")[0]), None)
            self.judge_event(process, event, slot.replicas if slot else 1)

    def judge_event(self, process: str, event: dict, replicas: int) -> None:
        kind = event["event"]
        if kind in ("wrong", "late"):
            self.late += kind == "late"
            return self.fail(f"{process}: {event}")
        if kind == "opened" and self.model.is_stale(event):
            return self.fail(f"{process} opened an old version: {event}")
        if kind != "failed":
            return None
        self.counts[event["status"]] += 1
        if event["status"] == "NOT_INITIALIZED" and self.model.ended.get(process) == 0:
            return None  # it was expelled
        if event["status"] not in ALLOWED:
            return self.fail(f"{process}: {event}")
        if event["status"] != "LOST":
            return None
        if event["what"].startswith("private"):
            fewest_daemons = fewest(self.changes, event["since"], event["ended"])
            why = self.model.judge_private(event, replicas, fewest_daemons)
        elif event["what"] == "close":
            return None  # says what nobody has taken over
        else:
            why = self.model.judge(process, event)
        self.counts[f"{'private' if 'private' in event['what'] else 'published'} pages LOST justly"] += bool(why)
        self.lost_unjustly += not why
        return None if why else self.fail(f"{process}: LOST though a holder was left: {event}")

    def total(self, name: str) -> int:
        return sum(each.get(name, 0) for each in self.past)

    def report(self, kills: int) -> None:
        slowest: collections.Counter = collections.Counter()
        for each in self.past:
            for what, ms in each.get("slowest_ms", {}).items():
                slowest[what] = max(slowest[what], ms)
        done = {name: self.total(name) for name in ("publications", "opens", "pages", "after_owner", "operations")}
        print(f"  {dict(self.counts)}\n  {done['publications']} publications, {done['opens']} opens, {done['pages']} "
              f"pages of regions verified, {done['after_owner']} of them after the end of their owner, "
              f"{done['operations']} operations\n  slowest calls in ms: {dict(slowest)}", flush=True)
        self.figures.add(f"wrong bytes after {kills} kills", self.total("wrong"), "pages", most=0, **done, **self.counts)
        self.figures.add(f"LOST though a copy was left, after {kills} kills", self.lost_unjustly, "pages", most=0)
        self.figures.add(f"calls beyond deadline and a second, in {kills} kills", self.late, "calls", most=0,
                         slowest_ms=dict(slowest))


def campaign(asked: argparse.Namespace) -> int:
    world = World(str(pathlib.Path(asked.bin).resolve().parent), asked.seed, lease_s=LEASE_S)
    figures = Figures(world.vmem, asked.seed)
    scenario = Kills(world, figures, asked.seed, asked.heal)
    try:
        scenario.run(asked.kills, asked.burst)
        scenario.settle()
        scenario.audit()
        scenario.finish()
        scenario.judge()
        scenario.report(asked.kills)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        figures.fail(str(error))
    finally:
        world.end(keep=bool(figures.failures))
        if figures.failures:
            scenario.keep_events()
    return figures.end(asked.json, world.folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="the build's folder of programs, build/release/bin")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--burst", type=int, default=10, help="kills between two pauses; 0: no pauses")
    parser.add_argument("--heal", type=float, default=8, help="seconds in which all copies are made again")
    parser.add_argument("--json", help="a file for the figures, as records of vmem bench")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    begun = time.monotonic()
    status = campaign(asked)
    print(f"{asked.kills} kills, {time.monotonic() - begun:.0f} s, seed {asked.seed}: {'FAILED' if status else 'ok'}")
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(1)
