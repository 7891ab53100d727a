"""Network namespaces of this machine whose links have a rate, as machines on a switch have.

Each host is a namespace with one address in each network; its link to that network's switch, a
bridge in a further namespace, is shaped by `tbf` in both directions. Needs root, `ip` and `tc`.
"""
import os
import subprocess

SUBNET = "10.77."
BURST = "32kb"  # sent at once after a pause: little beside a page


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


class ShapedLinks:
    """Errors: OSError, which says what this machine does not permit."""

    def __init__(self, hosts: int, mbit_s: int, networks: int = 1):
        self.made: list[str] = []
        self.mbit_s = mbit_s
        self.tag = f"vmem{os.getpid()}"
        try:
            self._make(f"{self.tag}-switch")
            for network in range(networks):
                self._in_switch("ip", "link", "add", f"switch{network}", "type", "bridge")
                self._in_switch("ip", "addr", "add", f"{SUBNET}{network}.254/24", "dev", f"switch{network}")
                self._in_switch("ip", "link", "set", f"switch{network}", "up")
            for host in range(hosts):
                self._make(f"{self.tag}-{host}")
                for network in range(networks):
                    self._connect(host, network)
        except OSError:
            self.remove()
            raise

    def inside(self, host: int) -> list[str]:
        """The words before a command that is to run on the host."""
        return ["ip", "netns", "exec", f"{self.tag}-{host}"]

    @staticmethod
    def address(host: int, network: int = 0) -> str:
        return f"{SUBNET}{network}.{host + 1}"

    def pull(self, host: int, network: int) -> None:
        """Pulls the host's cable out: what is sent over it is lost, and no connection is closed."""
        self._in_switch("ip", "link", "set", f"port{host}-{network}", "down")

    def plug(self, host: int, network: int) -> None:
        self._in_switch("ip", "link", "set", f"port{host}-{network}", "up")

    def sent_bytes(self, host: int, network: int = 0) -> int:
        path = f"/sys/class/net/eth{network}/statistics/tx_bytes"
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

    def _connect(self, host: int, network: int) -> None:
        port, card = f"port{host}-{network}", f"eth{network}"
        inside = self.inside(host)
        self._in_switch("ip", "link", "add", port, "type", "veth", "peer", "name", card, "netns", f"{self.tag}-{host}")
        self._in_switch("ip", "link", "set", port, "master", f"switch{network}", "up")
        shape = ["root", "tbf", "rate", f"{self.mbit_s}mbit", "burst", BURST, "latency", "400ms"]
        self._in_switch("tc", "qdisc", "add", "dev", port, *shape)
        _run(*inside, "ip", "addr", "add", f"{self.address(host, network)}/24", "dev", card)
        _run(*inside, "ip", "link", "set", card, "up")
        _run(*inside, "tc", "qdisc", "add", "dev", card, *shape)
