"""The processes that the campaign attacks: daemons, and programs that keep pages there or lend
each other GPU memory."""
import contextlib
import os
import pathlib
import socket
import subprocess
import tempfile

from watch import Bounds, Daemon, Honest, Process

SIZES = ["driver=emulated", "hbm=32MiB", "host=32MiB", "page=2MiB", "log=warn"]
DATA_PAGES = 64  # 128 MiB in 64 MiB of HBM and host memory
WARM_OPERATIONS = 3 * DATA_PAGES
WARM_S = 120
# No program may borrow all of it: there is room for another one.
LENT = ["--lend", "64MiB", "--per-node", "40MiB"]
CERTIFICATE_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


class Scenario:
    """What runs while strangers attack. `start` fills `daemons` and `programs`."""

    name = ""
    has_secret = False
    replicas = 1
    bounds = Bounds()

    def __init__(self, build: str, seed: int):
        self.build, self.seed = build, seed
        self.vmem = f"{build}/bin/vmem"
        self.library = f"{build}/lib/libvmem_gpu.so"
        self.folder = tempfile.mkdtemp(prefix="vmem-strangers-")  # mode 0700
        self.environment = {"VMEM_EMU": "devices=2,hbm=256MiB,host=1GiB"}
        self.daemons: list[Daemon] = []
        self.programs: list[Honest] = []

    # Also: what all nodes have in common, as options of the command line and of the runtime.
    def trust(self) -> dict[str, str]:
        return {}

    def start(self) -> None:
        self.start_daemon()
        self.programs.append(self.program("program"))

    def start_daemon(self) -> None:
        disk = f"{self.folder}/disk{len(self.daemons)}"
        os.mkdir(disk)
        trust = [f"--{name}={value}" for name, value in self.trust().items()]
        self.daemons.append(Daemon(f"daemon{len(self.daemons)}", self.vmem, self.folder,
                                   [*LENT, "--nvme", f"{disk}:64MiB", *trust]))

    def remote(self) -> list[str]:
        return [f"remote={','.join(each.address for each in self.daemons)}",
                *(f"{name}={value}" for name, value in self.trust().items())]

    def program(self, name: str, pages: int = DATA_PAGES, operations: int = 0) -> Honest:
        return self.honest(name, [*SIZES, *self.remote()], pages, operations)

    def honest(self, name: str, options: list[str], pages: int = DATA_PAGES, operations: int = 0) -> Honest:
        arguments = ["--library", self.library, "--pages", str(pages), "--operations", str(operations), "--seed",
                     str(self.seed), *options]
        return Honest(name, self.folder, arguments, environment=self.environment)

    def newcomer(self, number: int) -> Honest:
        """A program that starts during the attack, keeps pages at the same place, and ends."""
        return self.program(f"newcomer{number}", 40, 50)

    def processes(self) -> list[Process]:
        return [*self.daemons, *self.programs]

    def borrows_only(self, process: Process, pid: int) -> bool:
        return isinstance(process, Honest)

    def asked(self) -> set[str]:
        """Addresses that the command lines name."""
        return {each.address for each in self.daemons}

    def warm_up(self) -> None:
        for each in self.programs:
            if not each.wait_for_operations(WARM_OPERATIONS, WARM_S):
                raise RuntimeError(f"{each.name} did not begin: {each.said()}")
        # The memory that daemons keep a newcomer's pages in is theirs before the attack, too.
        first = self.newcomer(0)
        if problems := first.judge(first.popen.wait(WARM_S)):
            raise RuntimeError(problems[0])

    def end(self) -> list[str]:
        failures = []
        for each in self.programs:
            failures += each.finish()
        for each in self.daemons:
            if (code := each.end()) != 0:
                failures.append(f"{each.name} ended with {code}: {each.said()}")
            elif each.lines and ", 0 damaged" not in each.lines[-1].replace("; 0 damaged", ", 0 damaged"):
                failures.append(f"{each.name} found damaged pages: {each.lines[-1]}")
        return failures

    def kill(self) -> None:
        for each in self.processes():
            with contextlib.suppress(OSError):
                each.popen.kill()
            each.popen.wait()


class WithoutSecret(Scenario):
    name = "no secret"
    # Attackers of the same user are trusted with links: each that is begun and left takes two
    # descriptors for 5 s.
    bounds = Bounds(descriptors=4096)


class WithSecret(Scenario):
    name = "secret"
    has_secret = True

    def trust(self) -> dict[str, str]:
        path = pathlib.Path(self.folder, "secret")
        if not path.exists():
            subprocess.run([self.vmem, "secret", "new", str(path)], check=True, stdout=subprocess.DEVNULL)
        return {"secret": str(path)}


class WithCertificates(Scenario):
    name = "certificates"
    has_secret = True

    def trust(self) -> dict[str, str]:
        if not os.path.exists(f"{self.folder}/tls.crt"):
            self.make_certificates()
        return {"certificates": self.folder}

    def make_certificates(self) -> None:
        def openssl(*words: str) -> None:
            subprocess.run(["openssl", *words], check=True, cwd=self.folder, capture_output=True)

        openssl("req", "-x509", *CERTIFICATE_KEY, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out",
                "ca.crt")
        openssl("req", "-new", *CERTIFICATE_KEY, "-subj", "/CN=node", "-keyout", "tls.key", "-out", "request",
                "-addext", "subjectAltName=IP:127.0.0.1")
        openssl("x509", "-req", "-in", "request", "-copy_extensions", "copyall", "-CA", "ca.crt", "-CAkey", "ca.key",
                "-CAcreateserial", "-days", "2", "-out", "tls.crt")
        os.chmod(f"{self.folder}/tls.key", 0o600)


class UnderRun(WithSecret):
    """A program that does not know vmem, under `vmem run`, whose guard listens for programs that
    borrow.
    """

    name = "vmem run"

    def program(self, name: str, pages: int = DATA_PAGES, operations: int = 0) -> Honest:
        libraries = f"{self.folder}/libraries"
        if not os.path.exists(libraries):
            os.mkdir(libraries)
            os.symlink(f"{self.build}/lib/libvmem_emu.so", f"{libraries}/libcuda.so.1")
        under = [self.vmem, "run", *(f"--{each}" for each in SIZES[1:] + self.remote()), "--"]
        arguments = ["--cuda", "--pages", str(pages), "--operations", str(operations), "--seed", str(self.seed)]
        return Honest(name, self.folder, arguments, under, self.environment | {"LD_LIBRARY_PATH": libraries})

    def borrows_only(self, process: Process, pid: int) -> bool:
        return isinstance(process, Honest) and pid != process.popen.pid


class LendingPrograms(Scenario):
    """A program lends what it leaves of its GPU to another program of the same user."""

    name = "lend"

    def start(self) -> None:
        self.path = f"{self.folder}/gpu1"
        options = ["driver=emulated", "devices=1", "hbm=128MiB", "host=32MiB", "page=2MiB", "log=warn"]
        self.programs.append(self.honest("owner", [*options, f"lend=1:96MiB:{self.path}"], 24))
        if not self.programs[0].wait_for_operations(1, WARM_S):
            raise RuntimeError(f"the owner did not begin: {self.programs[0].said()}")
        self.programs.append(self.borrower("borrower"))

    def borrower(self, name: str, pages: int = 40, operations: int = 0) -> Honest:
        return self.honest(name, ["driver=emulated", "devices=0", "hbm=32MiB", "host=128MiB", "page=2MiB", "log=warn",
                                  f"peers={self.path}:48MiB"], pages, operations)

    def newcomer(self, number: int) -> Honest:
        return self.borrower(f"newcomer{number}", 24, 50)

    def asked(self) -> set[str]:
        return {self.path}

    def borrows_only(self, process: Process, pid: int) -> bool:
        return process is not self.programs[0]


ALL = [WithoutSecret, WithSecret, UnderRun, LendingPrograms, WithCertificates]


def record_client_hellos(scenario: Scenario) -> list[bytes]:
    """What clients say first: a vmem program that knows the secret, and the openssl program."""
    key = bytes(range(32)).hex()
    openssl = ["openssl", "s_client", "-connect"]
    found = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(15)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        clients = [[*openssl, address, "-tls1_3", "-psk", key, "-psk_identity", "cluster"],
                   [*openssl, address, "-tls1_3"], [*openssl, address, "-tls1_2"]]
        for client in clients:
            with contextlib.suppress(FileNotFoundError):
                with subprocess.Popen(client, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL) as process:
                    found.append(_first_bytes(server))
                    process.kill()
        trust = [f"{name}={value}" for name, value in scenario.trust().items()]
        if trust:
            program = scenario.honest("recorded", [*SIZES, f"remote={address}", *trust])
            found.append(_first_bytes(server))
            program.popen.kill()
            program.popen.wait()
    return [each for each in found if len(each) > 20] or [bytes([22, 3, 1, 0, 100]) + bytes(100)]


def _first_bytes(server: socket.socket) -> bytes:
    try:
        made, _ = server.accept()
        with made:
            made.settimeout(5)
            return made.recv(65536)
    except TimeoutError:
        return b""
