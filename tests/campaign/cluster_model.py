"""Who held which pages of a cluster, as an outside observer knows it.

The observer started and killed all processes, and has read what they said of their calls. A page
may be LOST only where no holder is left:

- The publisher holds all pages from before its call of vmem_publish until it begins to close the
  region, or ends. If it has too little room, it holds them on daemons, and a daemon's death counts.
- With `copies = N`, N daemons hold all pages once vmem_publish has returned OK. Which ones is not
  known, so the pages must be there until that many daemons have died since the call began. If the
  cluster has been left alone for `heal_s` after deaths, all N copies are there again.
- After vmem_close of the publisher has returned OK, at least one daemon holds them.
- A later version, the time of expiry and `vmem region rm` end a region.
- A program's private page is held by the daemon that it was stored on, with replicas by two.

Copies in the caches of readers do not count: they drop them without a word.
"""
import dataclasses
import itertools
import math

NEVER = float("inf")
EXPIRY_SLACK_S = 2  # clocks in whole seconds
STALE_S = 5  # nodes read the registry once a second


@dataclasses.dataclass
class Region:
    name: str
    version: int
    owner: str
    copies: int
    pages: int
    written: float  # since when it has had contents
    begun: float  # to be published
    expires: float
    published: float = NEVER  # when vmem_publish returned OK
    closing: float = NEVER
    closed_well: bool = False
    removed: float = NEVER


@dataclasses.dataclass(frozen=True)
class Death:
    at: float  # just before the signal
    process: str
    daemon: bool


class Model:
    def __init__(self, heal_s: float, lease_s: float):
        self.heal_s, self.lease_s = heal_s, lease_s
        self.regions: dict[tuple[str, int], Region] = {}
        self.deaths: list[Death] = []
        self.ended: dict[str, float] = {}  # process -> when it was killed, ended or expelled
        self.tight: set[str] = set()  # owners that keep pages on daemons

    # What was observed.

    def publishing(self, owner: str, event: dict) -> None:
        key = (event["name"], event["version"])
        self.regions[key] = Region(*key, owner, event["copies"], event["pages"], event["written"],
                                   event["begun"], event["expires"])

    def published(self, event: dict) -> None:
        if event["status"] == "OK":
            self.regions[event["name"], event["version"]].published = event["ended"]

    def closing(self, event: dict) -> None:
        self.regions[event["name"], event["version"]].closing = event["begun"]

    def closed(self, event: dict) -> None:
        self.regions[event["name"], event["version"]].closed_well = event["status"] == "OK"

    def died(self, process: str, at: float, daemon: bool) -> None:
        self.deaths.append(Death(at, process, daemon))
        self.ended[process] = min(at, self.ended.get(process, NEVER))

    # What follows.

    def latest(self, name: str) -> Region | None:
        return max((each for each in self.regions.values() if each.name == name), key=lambda each: each.version,
                   default=None)

    def ended_since(self, region: Region) -> float:
        """From when on the region may have ended for all nodes."""
        later = [each.begun for each in self.regions.values()
                 if each.name == region.name and each.version > region.version]
        return min([region.removed, region.expires - EXPIRY_SLACK_S, *later])

    def daemon_deaths(self, begin: float, end: float) -> int:
        """The most daemons that died between two pauses in which copies are made again."""
        deaths = sorted((each for each in self.deaths if begin <= each.at <= end), key=lambda each: each.at)
        most = count = 0
        for before, each in zip([None, *deaths], deaths):
            if before is not None and each.at - before.at >= self.heal_s:
                count = 0
            count += each.daemon
            most = max(most, count)
        return most

    def owner_holds_until(self, region: Region) -> float:
        gone = min(region.closing, self.ended.get(region.owner, NEVER))
        if region.owner not in self.tight:
            return gone
        return min([gone, *(each.at for each in self.deaths if each.daemon and each.at >= region.written)])

    def may_be_lost(self, region: Region, at: float) -> str:
        """Why pages may be LOST at this time; "": they must be there."""
        if at >= self.ended_since(region):
            return "the region has ended"
        if at < self.owner_holds_until(region):
            return ""
        deaths = self.daemon_deaths(region.begun, at)
        if region.published != NEVER and deaths < region.copies:
            return ""
        # A daemon that was named as a holder may have been dead for as long as its lease lasts.
        # A page that was lost before cannot have been handed over, and closing does not say so.
        handed_over = (region.closed_well and at >= region.closing and
                       not self.may_be_lost(region, math.nextafter(region.closing, 0)))
        if handed_over and not self.daemon_deaths(region.closing - self.lease_s, at):
            return ""
        return f"its owner is gone, and {deaths} daemons have died"

    def judge(self, process: str, event: dict) -> str:
        """Why a call of a region ended with LOST; "": it must not."""
        at = event["ended"]
        if self.ended.get(process, NEVER) <= at:
            return "the process was no member any more"
        known = [each for each in self.regions.values()
                 if each.name == event["name"] and event["version"] in (0, each.version)]
        return next(filter(None, (self.may_be_lost(each, at) for each in known)), "")

    def is_stale(self, event: dict) -> bool:
        """Whether an older version was opened than one that had been published for a while."""
        return any(each.name == event["name"] and each.version > event["version"] and
                   each.published < event["begun"] - STALE_S for each in self.regions.values())

    def judge_private(self, event: dict, replicas: int, fewest_daemons: int) -> str:
        """The same for a page of the program's own."""
        deaths = sum(each.daemon and event["since"] <= each.at <= event["ended"] for each in self.deaths)
        needed = 1 if event["single"] or fewest_daemons < replicas else replicas
        return f"{deaths} daemons died since, of at least {needed}" if deaths >= needed else ""

    def must_be_there(self, at: float, for_s: float) -> list[Region]:
        """Regions whose every page has a holder, and that live on for some time."""
        return [each for each in self.regions.values()
                if each.published <= at and self.ended_since(each) > at + for_s and not self.may_be_lost(each, at)]


def fewest(changes: list[tuple[float, int]], begin: float, end: float) -> int:
    """The least running sum of changes in a time."""
    ordered = sorted(changes)
    sums = list(itertools.accumulate(change for _, change in ordered))
    before = [total for (at, _), total in zip(ordered, sums) if at <= begin][-1:]
    during = [total for (at, _), total in zip(ordered, sums) if begin < at <= end]
    return min([*before, *during], default=0)
