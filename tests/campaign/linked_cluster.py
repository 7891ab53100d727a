"""Measurements of a cluster whose nodes are in network namespaces with shaped links."""
import argparse
import contextlib
import pathlib
import random
import signal
import subprocess
import sys

from cluster_figures import Figures
from cluster_world import Node, Program, World, within
from shaped_links import ShapedLinks

READY_S = 60
SKIPPED = 77
REGISTRY = 0  # the host of etcd


class LinkedCluster:
    def __init__(self, build: str, seed: int, links: ShapedLinks):
        self.links = links
        self.world = World(build, seed, lease_s=90, host=links.address(REGISTRY), inside=links.inside(REGISTRY))
        self.figures = Figures(self.world.vmem, seed)
        self.secret = pathlib.Path(self.world.folder, "secret")
        subprocess.run([self.world.vmem, "secret", "new", str(self.secret)], check=True, stdout=subprocess.DEVNULL)

    def run(self, asked: argparse.Namespace) -> None:
        raise NotImplementedError

    def hear(self, program: Program, event: dict) -> None:
        if event["event"] in ("wrong", "late", "failed"):
            self.figures.fail(f"{program.name}: {event}")

    def wait(self, what: str, holds) -> None:
        if within(READY_S, lambda: "" if holds() else what):
            raise RuntimeError(f"{what}: not within {READY_S} s: {[each.said() for each in self.world.nodes]}")

    def daemon(self, name: str, host: int, arguments: list[str]) -> Node:
        made = self.world.daemon(name, [*arguments, "--secret", str(self.secret)], inside=self.links.inside(host))
        self.wait("the daemon", made.is_ready)
        return made

    def program(self, name: str, role: str, host: int, arguments: list[str]) -> Program:
        return self.world.program(name, role, [*arguments, f"secret={self.secret}"], self.hear,
                                  inside=self.links.inside(host))

    def end(self, node: Node) -> None:
        for problem in self.world.end_of(node):
            self.figures.fail(problem)
        self.world.nodes.remove(node)


def parser_of(description: str, mbit_s: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--bin", required=True, help="the build's folder of programs, build/release/bin")
    parser.add_argument("--mbit", type=int, default=mbit_s, help="megabits a second of each link")
    parser.add_argument("--json", help="a file for the figures, as records of vmem bench")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    return parser


def measure(cluster: type[LinkedCluster], asked: argparse.Namespace, hosts: int, networks: int = 1) -> int:
    """The exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"links of {asked.mbit} Mbit/s: seed {asked.seed}", flush=True)
    try:
        links = ShapedLinks(hosts, asked.mbit, networks)
    except OSError as error:
        print(f"skipped: {error}")
        return SKIPPED
    with contextlib.ExitStack() as stack:
        stack.callback(links.remove)
        measured = cluster(str(pathlib.Path(asked.bin).resolve().parent), asked.seed, links)
        stack.callback(lambda: measured.world.end(keep=bool(measured.figures.failures)))
        try:
            measured.run(asked)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            measured.figures.fail(str(error))
        except KeyboardInterrupt:
            return 1
    return measured.figures.end(asked.json, measured.world.folder)
