"""Network namespaces of this machine whose links have a rate, as machines on a switch have.

Each host is a namespace with one address; its link to the switch, a bridge in a further namespace,
is shaped by `tbf` in both directions. Needs root, `ip` and `tc`.
"""
import os
import subprocess

SUBNET = "10.77.0."
BURST = "32kb"  # sent at once after a pause: little beside a page


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


class ShapedLinks:
    """Errors: OSError, which says what this machine does not permit."""

    def __init__(self, hosts: int, mbit_s: int):
        self.made: list[str] = []
        self.mbit_s = mbit_s
        self.tag = f"vmem{os.getpid()}"
        try:
            self._make(f"{self.tag}-switch")
            self._in_switch("ip", "link", "add", "switch", "type", "bridge")
            self._in_switch("ip", "addr", "add", f"{SUBNET}254/24", "dev", "switch")
            self._in_switch("ip", "link", "set", "switch", "up")
            for host in range(hosts):
                self._add(host, mbit_s)
        except OSError:
            self.remove()
            raise

    def inside(self, host: int) -> list[str]:
        """The words before a command that is to run on the host."""
        return ["ip", "netns", "exec", f"{self.tag}-{host}"]

    @staticmethod
    def address(host: int) -> str:
        return f"{SUBNET}{host + 1}"

    def sent_bytes(self, host: int) -> int:
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(subprocess.run([*self.inside(host), "cat", path], capture_output=True, check=True).stdout)

    def remove(self) -> None:
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self.made = []

    def _make(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self.made.append(name)
        _run("ip", "netns", "exec", name, "ip", "link", "set", "lo", "up")

    def _in_switch(self, *words: str) -> None:
        _run("ip", "netns", "exec", f"{self.tag}-switch", *words)

    def _add(self, host: int, mbit_s: int) -> None:
        name = f"{self.tag}-{host}"
        self._make(name)
        self._in_switch("ip", "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
        self._in_switch("ip", "link", "set", f"port{host}", "master", "switch", "up")
        shape = ["root", "tbf", "rate", f"{mbit_s}mbit", "burst", BURST, "latency", "400ms"]
        self._in_switch("tc", "qdisc", "add", "dev", f"port{host}", *shape)
        _run(*self.inside(host), "ip", "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _run(*self.inside(host), "ip", "link", "set", "eth0", "up")
        _run(*self.inside(host), "tc", "qdisc", "add", "dev", "eth0", *shape)
