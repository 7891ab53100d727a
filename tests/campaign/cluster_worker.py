#!/usr/bin/env python3
"""A program of a cluster that publishes or reads regions, and keeps pages of its own on daemons.

An owner publishes regions under names of its own, in several versions, and closes them. A reader
opens the regions that the file `regions.json` of the folder names, reads random pages, and closes
them. An auditor reads every page of them once, and ends. Each byte is compared: a page's content
follows from the region's name, its version and the page's number.

Each line on stdout is a JSON object: an event, with the time of the monotonic clock at which the
call began, or the figures so far. The last line of a program that ends in order has "final".

    cluster_worker.py reader --library LIBRARY --folder F cluster=etcd://...
"""
import argparse
import ctypes
import json
import pathlib
import random
import signal
import sys
import threading
import time
import zlib

from honest import PAGE, Program, VmemMemory, memcmp

BLOCK_SEED = 22
CALL_WAIT_S, NAME_WAIT_S, CLOSE_WAIT_S = 4, 3, 4
LATE_S = 1  # after a call's deadline
AUDIT_S = 20
MOST_OPEN = 3
MOST_VERSIONS = 20
REPORT_EVERY_S = 0.25
STALL_S = 0.05
STATUS_NAMES = {0: "OK", 1: "INVALID_VALUE", 3: "NOT_INITIALIZED", 5: "INVALID_POINTER", 8: "IN_USE",
                9: "OUT_OF_MEMORY", 10: "ADDRESS_SPACE", 11: "LOST", 12: "TIMEOUT"}


class PublishOptions(ctypes.Structure):
    _fields_ = [("copies", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("expires_s", ctypes.c_uint64),
                ("wait_us", ctypes.c_uint64), ("readers", ctypes.c_char_p)]


class Range(ctypes.Structure):
    _fields_ = [("ptr", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("access", ctypes.c_uint32),
                ("reserved", ctypes.c_uint32)]


class Statistics(ctypes.Structure):
    """The part of vmem_statistics that is used; the rest is room."""

    _fields_ = [("struct_bytes", ctypes.c_uint32), ("counts", ctypes.c_uint32 * 3), ("sizes", ctypes.c_uint64 * 11),
                ("remote_budget_bytes", ctypes.c_uint64), ("remote_used_bytes", ctypes.c_uint64),
                ("remote_stored_bytes", ctypes.c_uint64), ("remote_fetched_bytes", ctypes.c_uint64),
                ("remote_copies_lost", ctypes.c_uint64), ("remote_single_copies", ctypes.c_uint64),
                ("more", ctypes.c_uint64 * 64)]


class Stalls(threading.Thread):
    """How long this process was not scheduled: a call cannot end while it is not."""

    def __init__(self):
        super().__init__(daemon=True)
        self.total_s = 0.0
        self.start()

    def run(self) -> None:
        while True:
            begun = time.monotonic()
            time.sleep(0.01)
            over = time.monotonic() - begun - 0.01
            if over > STALL_S:
                self.total_s += over


class Reporter:
    def __init__(self):
        self.figures = {"operations": 0, "opens": 0, "publications": 0, "pages": 0, "after_owner": 0, "wrong": 0,
                        "failed": {}, "slowest_ms": {}}
        self.reported = 0.0
        self.stalls = Stalls()

    @staticmethod
    def say(**event) -> None:
        print(json.dumps(event), flush=True)

    def report(self, final: bool = False) -> None:
        now = time.monotonic()
        if final or now - self.reported >= REPORT_EVERY_S:
            self.reported = now
            self.say(**self.figures, at=now, **({"final": True} if final else {}))

    def timed(self, what: str, limit_s: float, memory, call, *arguments, expected: str = "", **more) -> str:
        """Makes a call, counts it, and tells if it fails, other than expected, or ends late."""
        begun, stalled = time.monotonic(), self.stalls.total_s
        status = STATUS_NAMES.get(code := call(*arguments), f"status {code}") if call is not None else "OK"
        took = time.monotonic() - begun
        slowest = self.figures["slowest_ms"]
        slowest[what] = round(max(slowest.get(what, 0), took * 1000))
        if status not in ("OK", expected):
            failed = self.figures["failed"]
            failed[f"{what}: {status}"] = failed.get(f"{what}: {status}", 0) + 1
            self.say(event="failed", what=what, status=status, begun=begun, ended=begun + took,
                     message=memory.last_error(), **more)
        if (late := took - limit_s - LATE_S - (self.stalls.total_s - stalled)) > 0:
            self.say(event="late", what=what, status=status, begun=begun, took_s=round(took, 2), limit_s=limit_s,
                     late_s=round(late, 2), message=memory.last_error() if status != "OK" else "")
        return status


class ClusterMemory(VmemMemory):
    """With the calls of vmem/cluster.h, which return a status."""

    def __init__(self, library: str, options: dict[str, str]):
        super().__init__(library, options)
        pointer, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
        self.vmem.vmem_publish.argtypes = [pointer, ctypes.c_char_p, ctypes.POINTER(PublishOptions)]
        self.vmem.vmem_open.argtypes = [ctypes.POINTER(pointer), ctypes.POINTER(word), ctypes.c_char_p, ctypes.c_int,
                                        word]
        self.vmem.vmem_close.argtypes = [pointer, pointer, word]
        self.vmem.vmem_acquire.argtypes = self.vmem.vmem_release.argtypes = [ctypes.POINTER(Range), size, pointer]
        # Its error says how large the library's structure is.
        self.vmem.vmem_stats(ctypes.byref(Statistics()))
        self.statistics_bytes = int(self.last_error().rsplit(" ", 1)[1])

    def malloc(self, bytes_: int) -> tuple[int, int]:
        out = ctypes.c_void_p()
        return self.vmem.vmem_malloc(ctypes.byref(out), bytes_, self.device, None), out.value or 0

    def publish(self, address: int, name: str, copies: int, expires_s: int) -> int:
        options = PublishOptions(copies, 0, expires_s, CLOSE_WAIT_S * 1_000_000)
        return self.vmem.vmem_publish(address, name.encode(), ctypes.byref(options))

    def open(self, name: str, found: list[int]) -> int:
        out, size = ctypes.c_void_p(), ctypes.c_uint64()
        status = self.vmem.vmem_open(ctypes.byref(out), ctypes.byref(size), name.encode(), self.device,
                                     NAME_WAIT_S * 1_000_000)
        found[:] = [out.value or 0, size.value]
        return status

    def close(self, address: int) -> int:
        return self.vmem.vmem_close(address, None, CLOSE_WAIT_S * 1_000_000)

    def hold(self, address: int, bytes_: int) -> int:
        held = Range(address, bytes_, 1, 0)
        status = self.vmem.vmem_acquire(ctypes.byref(held), 1, None)
        return status or self.vmem.vmem_release(ctypes.byref(held), 1, None)

    def load(self, destination: int, address: int, bytes_: int) -> int:
        return self.vmem.vmem_read(destination, address, bytes_)

    def store(self, address: int, source: int, bytes_: int) -> int:
        return self.vmem.vmem_write(address, source, bytes_)

    def statistics(self) -> Statistics:
        made = Statistics(struct_bytes=self.statistics_bytes)
        if self.vmem.vmem_stats(ctypes.byref(made)):
            raise RuntimeError(f"vmem_stats: {self.last_error()}")
        return made


class PrivatePages(Program):
    """Pages of this program alone, more than it has room for."""

    def __init__(self, memory: ClusterMemory, pages: int, seed: int, reporter: Reporter):
        super().__init__(memory, pages, seed)
        self.reporter = reporter
        self.good: dict[int, float] = {}  # page -> when it was last known to be here

    def call(self, what: str, page, function, *arguments) -> str:
        begun = time.monotonic()
        number = self.pages.index(page)
        codes = {name: code for code, name in STATUS_NAMES.items()}
        status = self.reporter.timed(f"private {what}", CALL_WAIT_S, self.memory,
                                     lambda: codes.get(function(*arguments), 99), since=self.good.get(number),
                                     single=self.memory.statistics().remote_single_copies)
        if status == "OK":
            self.good[number] = begun
        if status == "LOST":
            self.memory.free(page.address)
            page.address, page.contents = 0, []
        return status

    def step(self) -> None:
        self.use_one()
        self.reporter.figures["wrong"] += self.figures["wrong"]
        self.figures["wrong"] = 0


class Content:
    def __init__(self):
        self.block = ctypes.create_string_buffer(random.Random(BLOCK_SEED).randbytes(2 * PAGE), 2 * PAGE)
        self.buffer = ctypes.create_string_buffer(PAGE)

    def of(self, name: str, version: int, page: int) -> int:
        """Where in memory the content of a page is."""
        return ctypes.addressof(self.block) + zlib.crc32(f"{name} {version} {page}".encode()) % PAGE

    def is_read(self, name: str, version: int, page: int, bytes_: int) -> bool:
        return memcmp(self.buffer, self.of(name, version, page), bytes_) == 0

    def version_read(self, name: str, page: int, bytes_: int) -> int:
        """Which version's page was read; 0: none's."""
        return next((each for each in range(1, MOST_VERSIONS) if self.is_read(name, each, page, bytes_)), 0)


class Region:
    """A region that is open here. `version` 0: not known yet."""

    def __init__(self, name: str, address: int, bytes_: int, version: int = 0):
        self.name, self.address, self.bytes, self.version = name, address, bytes_, version
        self.opened = time.monotonic()

    def pages(self) -> int:
        return (self.bytes + PAGE - 1) // PAGE

    def bytes_of(self, page: int) -> int:
        return min(PAGE, self.bytes - page * PAGE)


class Worker:
    def __init__(self, asked: argparse.Namespace, memory: ClusterMemory):
        self.asked, self.memory = asked, memory
        self.chance = random.Random(asked.seed)
        self.reporter, self.content = Reporter(), Content()
        self.private = PrivatePages(memory, asked.pages, asked.seed, self.reporter)
        self.regions: list[Region] = []
        self.ending = False

    def timed(self, what: str, limit_s: float, call, *arguments, **more) -> str:
        return self.reporter.timed(what, limit_s, self.memory, call, *arguments, **more)

    def read(self, region: Region, page: int) -> str:
        """Reads a page of a region and compares it."""
        count = region.bytes_of(page)
        status = self.timed("read", CALL_WAIT_S, self.memory.load, ctypes.addressof(self.content.buffer),
                            region.address + page * PAGE, count, name=region.name, version=region.version, page=page)
        if status != "OK":
            return status
        if not region.version:
            region.version = self.content.version_read(region.name, page, count)
            self.reporter.say(event="opened", name=region.name, version=region.version, begun=region.opened)
        if not region.version or not self.content.is_read(region.name, region.version, page, count):
            self.reporter.figures["wrong"] += 1
            other = self.content.version_read(region.name, page, count)
            self.reporter.say(event="wrong", name=region.name, version=region.version, page=page, holds_version=other,
                              head=self.content.buffer.raw[:16].hex())
        self.reporter.figures["pages"] += 1
        if region.name.split("/")[0] not in self.owners():
            self.reporter.figures["after_owner"] += 1
        return status

    def listed(self) -> dict:
        try:
            return json.loads(pathlib.Path(self.asked.folder, "regions.json").read_text())
        except FileNotFoundError:
            return {"names": [], "owners": []}

    def owners(self) -> list[str]:
        return self.listed()["owners"]

    def close(self, region: Region, failed: bool = False) -> None:
        """`failed`: vmem_publish failed for it, so it may be published or not."""
        self.regions.remove(region)
        self.reporter.say(event="closing", name=region.name, version=region.version, begun=time.monotonic())
        status = self.timed("close", CLOSE_WAIT_S, self.memory.close, region.address, name=region.name,
                            version=region.version, expected="INVALID_POINTER" if failed else "")
        if status == "INVALID_POINTER":
            status = STATUS_NAMES[self.memory.vmem.vmem_free(region.address, None)]
        self.reporter.say(event="closed", name=region.name, version=region.version, status=status)

    def run(self) -> None:
        while not self.ending:
            self.step()
            self.reporter.figures["operations"] += 1
            self.reporter.report()
            time.sleep(self.asked.pause_ms / 1000)
        for region in list(self.regions):
            self.close(region)

    def step(self) -> None:
        raise NotImplementedError


class Owner(Worker):
    published = latest = 0  # names, and versions of the last name

    def step(self) -> None:
        roll = self.chance.random()
        if len(self.regions) < MOST_OPEN and roll < 0.2:
            self.published += 1
            self.latest = 1
            self.publish(f"{self.asked.name}/{self.published}", 1)
        elif self.published and roll < 0.25:
            if self.latest + 1 < MOST_VERSIONS:
                self.latest += 1
                self.publish(f"{self.asked.name}/{self.published}", self.latest)
        elif self.regions and roll < (0.5 if len(self.regions) > MOST_OPEN else 0.28):
            self.close(self.chance.choice(self.regions))
        elif self.asked.pages and roll < 0.65:
            self.private.step()
        elif self.regions:
            region = self.chance.choice(self.regions)
            self.read(region, self.chance.randrange(region.pages()))

    def publish(self, name: str, version: int) -> None:
        pages = self.chance.randrange(2, 7)
        bytes_ = pages * PAGE - 4096 * self.chance.randrange(256)
        made: list[int] = [0]
        written = time.monotonic()

        def malloc() -> int:
            status, made[0] = self.memory.malloc(bytes_)
            return status

        if self.timed("malloc", CALL_WAIT_S, malloc) != "OK":
            return
        region = Region(name, made[0], bytes_, version)
        for page in range(pages):
            if self.timed("write", CALL_WAIT_S, self.memory.store, region.address + page * PAGE,
                          self.content.of(name, version, page), region.bytes_of(page)) != "OK":
                return self.give_up(region)
        copies, life_s = self.chance.choice([0, 1, 1, 2]), self.chance.randrange(20, 60)
        self.reporter.say(event="publishing", name=name, version=version, copies=copies, pages=pages,
                          written=written, begun=time.monotonic(), expires=time.monotonic() + life_s)
        # The wait for the registry, then that for nodes.
        status = self.timed("publish", 2 * CLOSE_WAIT_S, self.memory.publish, region.address, name, copies,
                            int(time.time() + life_s), name=name, version=version)
        self.reporter.say(event="published", name=name, version=version, status=status, ended=time.monotonic())
        self.reporter.figures["publications"] += status == "OK"
        self.regions.append(region)
        if status != "OK":
            self.close(region, failed=True)

    def give_up(self, region: Region) -> None:
        self.memory.vmem.vmem_free(region.address, None)


class Reader(Worker):
    def step(self) -> None:
        names = self.listed()["names"]
        roll = self.chance.random()
        if self.asked.pages and roll < 0.3:
            return self.private.step()
        if names and len(self.regions) < MOST_OPEN and roll < 0.5:
            return self.open(self.chance.choice(names))
        if self.regions and roll < 0.6:
            return self.close(self.chance.choice(self.regions))
        if not self.regions:
            return None
        region = self.chance.choice(self.regions)
        page = self.chance.randrange(region.pages())
        if self.chance.random() < 0.3:
            self.timed("acquire", CALL_WAIT_S, self.memory.hold, region.address + page * PAGE, region.bytes_of(page),
                       name=region.name, version=region.version, page=page)
        self.read(region, page)
        return None

    def open(self, name: str) -> Region | None:
        if any(each.name == name for each in self.regions):
            return None
        found: list[int] = []
        if self.timed("open", NAME_WAIT_S, self.memory.open, name, found, name=name, version=0) != "OK":
            return None
        self.reporter.figures["opens"] += 1
        self.regions.append(Region(name, *found))
        return self.regions[-1]


class Publisher(Worker):
    """Publishes one table, and keeps it."""

    TABLE_PAGES = 48

    def step(self) -> None:
        if self.reporter.figures["publications"]:
            return
        address = self.memory.malloc(self.TABLE_PAGES * PAGE)[1]
        for page in range(self.TABLE_PAGES):
            self.memory.store(address + page * PAGE, self.content.of(self.asked.name, 1, page), PAGE)
        status = self.timed("publish", 2 * CLOSE_WAIT_S, self.memory.publish, address, self.asked.name,
                            self.asked.copies, 0)
        self.reporter.figures["publications"] += status == "OK"


class Scanner(Reader):
    """Reads pages of one table at random, more than it has room for, and uses its own, by turns."""

    def step(self) -> None:
        if not self.regions and (names := self.listed()["names"]):
            self.open(names[0])
        if self.asked.pages and self.reporter.figures["operations"] % 2:
            return self.private.step()
        for region in self.regions:
            self.read(region, self.chance.randrange(region.pages()))
        return None


class Timer(Reader):
    """Reads each page of one table once, in random order, and tells how long that took."""

    left: list[int] | None = None

    def step(self) -> None:
        if not self.regions:
            self.open(self.listed()["names"][0])
        elif self.left is None:
            self.left = self.chance.sample(range(self.regions[0].pages()), self.regions[0].pages())
        elif self.left:
            page, begun = self.left.pop(), time.monotonic()
            status = self.read(self.regions[0], page)
            self.reporter.say(event="timed", page=page, status=status, took_s=time.monotonic() - begun,
                              left=len(self.left))


class Auditor(Reader):
    """Reads every page. A call that ends in TIMEOUT is made again for a while."""

    def run(self) -> None:
        for name in self.listed()["audit"]:
            problem = self.audit(name)
            self.reporter.say(event="audited", name=name, problem=problem)

    def audit(self, name: str) -> str:
        until = time.monotonic() + AUDIT_S
        while (region := self.open(name)) is None:
            if time.monotonic() > until:
                return f"cannot be opened: {self.memory.last_error()}"
        for page in range(region.pages()):
            while (status := self.read(region, page)) != "OK":
                if status != "TIMEOUT" or time.monotonic() > until:
                    return f"page {page}: {status}: {self.memory.last_error()}"
        self.close(region)
        return ""


ROLES = {"owner": Owner, "reader": Reader, "auditor": Auditor, "publisher": Publisher, "scanner": Scanner,
         "timer": Timer}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--library", required=True, help="libvmem_gpu.so")
    parser.add_argument("--folder", required=True, help="where regions.json is")
    parser.add_argument("--name", default="", help="first part of the names that an owner publishes")
    parser.add_argument("--pages", type=int, default=0, help="of its own")
    parser.add_argument("--copies", type=int, default=1, help="of the table of a publisher")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause-ms", type=float, default=4, help="after each operation")
    parser.add_argument("options", nargs="*", help="NAME=VALUE of vmem_init")
    asked = parser.parse_intermixed_args()
    waits = {"call_wait": f"{CALL_WAIT_S}s", "remote_wait": f"{CALL_WAIT_S - 1}s"}
    memory = ClusterMemory(asked.library, waits | dict(each.split("=", 1) for each in asked.options))
    worker = ROLES[asked.role](asked, memory)

    def end_soon(*_) -> None:
        worker.ending = True

    signal.signal(signal.SIGTERM, end_soon)
    worker.run()
    for page in worker.private.pages:
        if page.contents:
            worker.private.read(page)
    memory.end()
    worker.reporter.figures["wrong"] += worker.private.figures["wrong"]
    worker.reporter.report(final=True)
    return 1 if worker.reporter.figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
