#!/usr/bin/env python3
"""A daemon with two addresses, in two networks, of which first one fails, then the other.

One program reads a table of which the daemon has the only copy, another one keeps pages of its own
there. Every byte is compared. While one network works no call fails, the pages come over it, and
each load goes on within `--pause` seconds (`remote_wait` is 3 s, so calls have 0.75 s). Prints
`skipped` and why where namespaces or `tbf` are not permitted.

    tests/campaign/cluster_paths.py --bin build/release/bin [--mbit 400] [--json FILE]
"""
import argparse
import sys
import time

from cluster_world import Program
from linked_cluster import LinkedCluster, measure, parser_of

SPAN_S = 10
LENDER, USER = 1, 2  # hosts
PORT = 7000
TABLE = "table"
SMALL = ["--pause-ms", "20", "hbm=32MiB", "host=16MiB"]
ROOMY = ["hbm=64MiB", "host=256MiB"]
LEAST_SENT = 8 << 20  # bytes of pages in a span


class Paths(LinkedCluster):
    def run(self, asked: argparse.Namespace) -> None:
        addresses = ",".join(f"{self.links.address(LENDER, network)}:{PORT}" for network in range(2))
        daemon = self.daemon("keeper", LENDER, ["--listen", f"0.0.0.0:{PORT}", "--advertise", addresses, "--lend", "96MiB",
                                                "--copies", "128MiB"])
        publisher = self.program(TABLE, "publisher", USER, ROOMY)
        self.wait("the table", lambda: publisher.figures.get("publications"))
        self.end(publisher)
        self.world.tell(names=[TABLE], owners=[])
        users = [self.program("reader", "scanner", USER, SMALL),
                 self.program("writer", "scanner", USER, [*SMALL, "--pages", "32"])]
        # All pages of the second one are written then, and some are on the daemon.
        self.wait("the loads", lambda: all(each.figures["operations"] > 200 for each in users))
        span = self.span(SPAN_S)
        before = [each.rate(*span) for each in users]
        for failed, name in enumerate(("first", "second")):
            works = 1 - failed
            self.links.plug(LENDER, works)
            self.links.pull(LENDER, failed)
            begin, end = self.span(SPAN_S)
            sent = self.links.sent_bytes(LENDER, works)
            later = self.span(SPAN_S)
            sent = self.links.sent_bytes(LENDER, works) - sent
            self.figures.expect(sent >= LEAST_SENT, f"{sent >> 20} MiB sent over the other network then")
            for user, base in zip(users, before, strict=True):
                what = "the reads" if user is users[0] else "the program's own pages"
                self.figures.add(f"pause of {what} after the {name} network has failed", pause(user, begin, end), "s",
                                 most=asked.pause)
                self.figures.add(f"{what} while the {name} network is away", user.rate(*later), "op/s", limit=base,
                                 limit_name="the same load over the first network", least=asked.ratio)
        self.links.plug(LENDER, 1)
        for each in [*users, daemon]:
            self.end(each)
        for told in (each.figures for each in users):
            self.figures.expect(not told["wrong"] and not told["failed"], f"{told['operations']} operations, {told['wrong']} "
                                f"wrong, failed calls {told['failed']}, slowest calls in ms {told['slowest_ms']}")

    @staticmethod
    def span(seconds: float) -> tuple[float, float]:
        begin = time.monotonic()
        time.sleep(seconds)
        return begin, begin + seconds


def pause(user: Program, begin: float, end: float) -> float:
    """The longest time between two reports, which come after operations."""
    times = [at for at, _ in user.history if begin <= at <= end]
    return max(after - before for before, after in zip([begin, *times], [*times, end], strict=True))


def main() -> int:
    parser = parser_of(__doc__, mbit_s=400)
    parser.add_argument("--pause", type=float, default=2, help="seconds that the load may stand still")
    parser.add_argument("--ratio", type=float, default=0.9, help="least ratio of the load's rate to that before")
    return measure(Paths, parser.parse_args(), hosts=3, networks=2)


if __name__ == "__main__":
    sys.exit(main())
