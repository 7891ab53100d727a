#!/usr/bin/env python3
"""Published pages over links with a rate: one page alone, and one table for three readers.

A page fetched alone is compared with as many bytes that a socket sends on request, over the same
link in the same run: round trip and copy. It comes from its owner, and, by `vmem bench cluster`,
from a daemon. What the owner sends to three readers is what its link has counted. Prints `skipped`
and why where namespaces or `tbf` are not permitted.

    tests/campaign/cluster_links.py --bin build/release/bin [--mbit 100] [--json FILE]
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys

from cluster_world import Program
from honest import PAGE
from linked_cluster import READY_S, LinkedCluster, measure, parser_of
from shaped_links import ShapedLinks

PAGE_RATIO, TABLES_SENT = 1.25, 1.5
LEAST_IDLE = 1 / 3  # otherwise a page waits for the machine's cores, not for the link
WIRE = 1.06  # headers of Ethernet, IP, TCP and TLS, and acknowledgements
TABLE, TABLE_PAGES = "table", 48
ROOM = ["hbm=128MiB", "host=256MiB"]
SERVE = """
import socket, sys
with socket.create_server((sys.argv[1], 9000)) as server:
    print("ready", flush=True)
    made, _ = server.accept()
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while made.recv(1):
        made.sendall(bytes(int(sys.argv[2])))
"""
ASK = """
import socket, sys, time
made = socket.create_connection((sys.argv[1], 9000))
for _ in range(12):
    begun, left = time.monotonic(), int(sys.argv[2])
    made.sendall(b"x")
    while left:
        left -= len(made.recv(left))
    print(time.monotonic() - begun)
    time.sleep(0.05)
"""


class Links(LinkedCluster):
    def __init__(self, build: str, seed: int, links: ShapedLinks):
        super().__init__(build, seed, links)
        self.timed: list[dict] = []

    def hear(self, program: Program, event: dict) -> None:
        super().hear(program, event)
        if event["event"] == "timed":
            self.timed.append(event | {"reader": program.name})

    def run(self, _: argparse.Namespace) -> None:
        publisher = self.program(TABLE, "publisher", 1, ["--copies", "0", *ROOM])
        self.wait("the table", lambda: publisher.figures.get("publications"))
        self.world.tell(names=[TABLE], owners=[TABLE])
        bare = self.bare()
        self.read([2], pause_ms=50)
        alone = statistics.median(each["took_s"] for each in self.timed)
        self.figures.add("a page alone, from its owner", alone * 1000, "ms", limit=bare * 1000,
                         limit_name="a round trip and a copy, by a plain socket", most=PAGE_RATIO, page_bytes=PAGE,
                         link_mbit_s=self.links.mbit_s)
        self.timed.clear()
        before = self.links.sent_bytes(1)
        self.read([2, 3, 4], pause_ms=0)
        sent = (self.links.sent_bytes(1) - before) / (TABLE_PAGES * PAGE)
        self.figures.add("one table for three readers, sent by its owner", sent / WIRE, "tables", most=TABLES_SENT,
                         with_headers=sent, link_mbit_s=self.links.mbit_s)
        self.end(publisher)
        self.read_by_bench()

    @contextlib.contextmanager
    def page_server(self):
        """A plain server of pages on the host of the owner and the daemon."""
        command = [*self.links.inside(1), sys.executable, "-c", SERVE, self.links.address(1), str(PAGE)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            server.stdout.readline()
            try:
                yield f"{self.links.address(1)}:9000"
            finally:
                server.kill()

    def read_by_bench(self) -> None:
        """A daemon on the owner's host keeps the pages that `vmem bench` publishes and fetches."""
        daemon = self.daemon("keeper", 1, ["--listen", f"{self.links.address(1)}:0", "--copies", "128MiB"])
        records = pathlib.Path(self.world.folder, "page.json")
        with self.page_server() as server:
            command = [*self.links.inside(2), self.world.vmem, "bench", "cluster", "--rows", "page", "--driver",
                       "emulated", "--hbm", "128MiB", "--working-set", str(TABLE_PAGES * PAGE), "--page-server", server, "--option",
                       f"secret={self.secret}", "--json", str(records)]
            done = subprocess.run(command, env=os.environ | self.world.environment, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=2 * READY_S)
        if done.returncode != 0:
            return self.figures.fail(f"vmem bench cluster ended with {done.returncode}: {done.stdout}")
        median, p99 = json.loads(records.read_text())
        print(f"  99th percentile: {p99['achieved']:.1f} ms, {p99['ratio']:.2f} of {p99['limit']:.1f} ms", flush=True)
        self.figures.add("a page alone, from a daemon", median["achieved"], "ms", limit=median["limit"],
                         limit_name="a round trip and a copy, by a plain socket", most=PAGE_RATIO, page_bytes=PAGE,
                         link_mbit_s=self.links.mbit_s)
        self.figures.add("share of the cores' time that was idle meanwhile", median["details"]["idle_share"], "",
                         least=LEAST_IDLE)
        self.end(daemon)

    def bare(self) -> float:
        """Seconds for a round trip and a copy of a page, by a plain socket."""
        with self.page_server() as server:
            asked = subprocess.run([*self.links.inside(2), sys.executable, "-c", ASK, server.split(":")[0], str(PAGE)],
                                   text=True, stdout=subprocess.PIPE, check=True, timeout=READY_S)
        return statistics.median(float(each) for each in asked.stdout.split())

    def read(self, hosts: list[int], pause_ms: int) -> None:
        """Programs on these hosts each read the whole table, and end."""
        readers = [self.program(f"reader{host}.{pause_ms}", "timer", host,
                                ["--pause-ms", str(pause_ms), "--seed", str(host), *ROOM]) for host in hosts]
        self.wait("the readers", lambda: len(self.timed) == len(readers) * TABLE_PAGES)
        for reader in readers:
            self.end(reader)


def main() -> int:
    return measure(Links, parser_of(__doc__, mbit_s=100).parse_args(), hosts=5)


if __name__ == "__main__":
    sys.exit(main())
