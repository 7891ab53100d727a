"""A cluster of real processes on this machine: etcd servers, daemons and programs."""
import base64
import bisect
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from stops import lasting_port
from watch import END_S, HERE, Process

NAME = "campaign"
START_S = 30
REPORT_S = 5  # within which a program that works says what it has done
BASE = "0x600000000000"  # below the libraries, which lie elsewhere in each process
EMULATED = "devices=1,hbm=256MiB,host=1GiB"
# A process in a pid namespace of its own is not seen by daemons: its end shows when its lease ends.
HIDDEN = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"]


def can_hide() -> bool:
    return subprocess.run([*HIDDEN, "true"], capture_output=True).returncode == 0


class Etcd:
    """One cluster of etcd servers, which can be stopped and continued one by one."""

    def __init__(self, folder: str, servers: int, chance: random.Random, host: str, inside: list[str]):
        clients, peers = ([lasting_port(chance) for _ in range(servers)] for _ in range(2))
        self.endpoints = [f"{host}:{port}" for port in clients]
        members = ",".join(f"s{i}=http://127.0.0.1:{port}" for i, port in enumerate(peers))
        self.servers = [Process(f"etcd{i}", [
            *inside, "etcd", "--name", f"s{i}", "--data-dir", f"{folder}/etcd{i}.data", "--initial-cluster", members,
            "--listen-client-urls", f"http://{self.endpoints[i]}", "--advertise-client-urls",
            f"http://{self.endpoints[i]}", "--listen-peer-urls", f"http://127.0.0.1:{peers[i]}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peers[i]}", "--log-level", "error"], folder)
            for i in range(servers)]
        if inside:
            return  # who uses it waits for it
        deadline = time.monotonic() + START_S
        while not all(self.is_healthy(i) for i in range(servers)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"etcd does not answer: {self.servers[0].said()}")
            time.sleep(0.05)

    def is_healthy(self, server: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.endpoints[server]}/health", timeout=2) as answer:
                return json.load(answer)["health"] == "true"
        except (OSError, urllib.error.URLError):
            return False

    def address(self) -> str:
        return f"etcd://{','.join(self.endpoints)}/{NAME}"

    def keys(self) -> list[str]:
        """Of the cluster, without the prefix."""
        prefix = f"/vmem/{NAME}/"
        code = base64.b64encode(prefix.encode()).decode()
        end = base64.b64encode(prefix[:-1].encode() + b"0").decode()  # "0" follows "/"
        request = urllib.request.Request(f"http://{self.endpoints[0]}/v3/kv/range",
                                         json.dumps({"key": code, "range_end": end, "keys_only": True}).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            found = json.load(answer).get("kvs", [])
        return [base64.b64decode(each["key"]).decode()[len(prefix):] for each in found]


class Node(Process):
    """A daemon or program. `hidden`: from the daemons of this machine."""

    hidden = False

    def __init__(self, name: str, command: list[str], folder: str, environment: dict[str, str], hidden: bool):
        self.hidden = hidden
        self.begun = time.monotonic()
        super().__init__(name, [*(HIDDEN if hidden else []), *command], folder, environment)

    def pid(self) -> int:
        """Of the process itself; 0 if it has not begun or has ended."""
        if not self.hidden:
            return self.popen.pid
        with contextlib.suppress(OSError, IndexError, ValueError):
            children = pathlib.Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text()
            return int(children.split()[0])
        return 0

    def send(self, number: int) -> None:
        if pid := self.pid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def lives(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        """Returns once it has ended and its last line was read."""
        self.expected_to_run = False
        self.send(signal.SIGKILL)
        self.popen.kill()
        self.popen.wait()
        self.reader.join(END_S)


class Lender(Node):
    def is_ready(self) -> bool:
        return any("it is node" in line for line in self.lines)


class Program(Node):
    """A running cluster_worker.py. `hear` gets its events, in the thread that reads them."""

    def __init__(self, name: str, role: str, arguments: list[str], world: "World", hidden: bool, hear,
                 inside: list[str]):
        self.figures: dict = {"operations": 0}
        self.hear = hear
        self.final = False
        self.history: list[tuple[float, int]] = []  # when how many operations were done
        command = [*inside, sys.executable, str(HERE / "cluster_worker.py"), role, "--library", world.library, "--folder",
                   world.folder, "--name", name, *arguments]
        super().__init__(name, command, world.folder, world.environment, hidden)

    def take_line(self, line: str) -> None:
        if not line.startswith("{"):
            return
        told = json.loads(line)
        if "event" in told:
            return self.hear(self, told)
        self.final = told.pop("final", False)
        self.figures = told
        self.history.append((told["at"], told["operations"]))

    def rate(self, begin: float, end: float) -> float:
        """Operations a second in a time; between two reports they are taken to be even. Waits for
        the report after the end, unless the program stands still.
        """
        within(REPORT_S, lambda: "" if self.history and self.history[-1][0] >= end else "no report")
        return (self.operations_at(end) - self.operations_at(begin)) / (end - begin)

    def operations_at(self, at: float) -> float:
        told = list(self.history)
        after = bisect.bisect(told, (at, 0))
        if after == 0 or after == len(told):
            return told[-1 if after else 0][1]
        (begun, before), (ended, behind) = told[after - 1], told[after]
        return before + (behind - before) * (at - begun) / (ended - begun)

    def is_ready(self) -> bool:
        return self.figures["operations"] > 0

    def was_expelled(self) -> bool:
        return "no longer node" in self.log.read_text(errors="replace")


class World:
    def __init__(self, build: str, seed: int, servers: int = 1, lease_s: int = 6, space: str = "2TiB",
                 host: str = "127.0.0.1", inside: list[str] = ()):
        """`inside`: the words before a command that run it where etcd is to listen on `host`."""
        self.vmem, self.library = f"{build}/bin/vmem", f"{build}/lib/libvmem_gpu.so"
        self.folder = tempfile.mkdtemp(prefix="vmem-cluster-")  # mode 0700
        self.lease_s = lease_s
        self.chance = random.Random(seed)
        self.nodes: list[Node] = []
        self.etcd = Etcd(self.folder, servers, self.chance, host, list(inside))
        self.environment = {"VMEM_EMU": EMULATED, "VMEM_CLUSTER": self.etcd.address(), "VMEM_BASE": BASE, "VMEM_SPACE": space,
                            "VMEM_NODE_LEASE": f"{lease_s}s"}

    def daemon(self, name: str, arguments: list[str], hidden: bool = False, inside: list[str] = ()) -> Lender:
        made = Lender(name, [*inside, self.vmem, "daemon", *arguments], self.folder, self.environment, hidden)
        self.nodes.append(made)
        return made

    def program(self, name: str, role: str, arguments: list[str], hear, hidden: bool = False,
                inside: list[str] = ()) -> Program:
        arguments = [*arguments, "driver=emulated", "page=2MiB", "log=warn"]
        made = Program(name, role, arguments, self, hidden, hear, inside)
        self.nodes.append(made)
        return made

    def end_of(self, node: Node) -> list[str]:
        """Ends it in order; problems with that."""
        code = node.end()
        node.reader.join(END_S)
        problems = [f"{node.name} ended with {code}: {node.said()}"] if code != 0 else []
        if isinstance(node, Program) and not node.final:
            problems.append(f"{node.name} ended before its last report: {node.said()}")
        return problems

    def command(self, *words: str) -> str:
        """The output of a vmem command."""
        done = subprocess.run([self.vmem, *words], capture_output=True, text=True, timeout=60,
                              env=os.environ | self.environment)
        if done.returncode != 0:
            raise RuntimeError(f"vmem {' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def listed_nodes(self) -> list[dict]:
        return json.loads(self.command("node", "list", "--json"))

    def listed_regions(self) -> list[dict]:
        return json.loads(self.command("region", "list", "--json"))

    def tell(self, **regions) -> None:
        """What programs read as regions.json."""
        path = pathlib.Path(self.folder, "regions.json")
        path.with_suffix(".new").write_text(json.dumps(regions))
        path.with_suffix(".new").rename(path)

    def end(self, keep: bool) -> None:
        for each in [*self.nodes, *self.etcd.servers]:
            with contextlib.suppress(OSError):
                each.popen.kill()
            each.popen.wait()
        if not keep:
            shutil.rmtree(self.folder)


def within(seconds: float, problem) -> str:
    """Waits until `problem` returns "", and returns what it said last."""
    deadline = time.monotonic() + seconds
    while (said := problem()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return said
