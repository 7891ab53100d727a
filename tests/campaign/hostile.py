#!/usr/bin/env python3
"""One attacker: connects to sockets and sends what nobody should, as any user and from any address.

It reads its orders as JSON from stdin and writes what it did as JSON to stdout. It knows no secret.
What it sends resembles what vmem's sockets read (TLS handshakes, the nodes' Hello and frames,
messages of lenders and guards); each shape goes to each socket, because which socket is what was
found by looking only.
"""
import array
import ctypes
import errno
import json
import os
import random
import socket
import struct
import sys
import time

MOST_HELD = 100  # connections that are open at once
FULL_S = 20  # until a queue of connections that is full counts as one that nobody empties
PR_SET_DUMPABLE = 4
IP_BIND_ADDRESS_NO_PORT = 24
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset
MOST_PAYLOAD = 1 << 30
HELLO = struct.Struct("<8sHHHHQQQQQQ")  # src/rdma/trust/admission.hpp
FRAME = struct.Struct("<HHIQ")  # src/rdma/transport/stream/channel.hpp
WIRE = struct.Struct("<IHHQQQQQIIQ")  # src/rdma/node/wire.hpp
LENT = struct.Struct("<IHHQQQQ16s192s")  # src/peer/wire.hpp


# ---- what is sent: each shape gives the pieces that follow each other ----


class Shapes:
    def __init__(self, chance: random.Random, recorded: list[bytes]):
        self.chance, self.recorded = chance, recorded
        self.all = [self.noise, self.record, self.client_hello, self.cut_client_hello, self.mutated_client_hello,
                    self.crumbs_of_client_hello, self.records, self.other_protocol, self.hello, self.frames,
                    self.wire_messages, self.lent_messages, self.guard_text, self.nothing, self.flood]
        self.node_hello = b""  # a Hello that a node answered with

    def make(self) -> list[bytes]:
        return self.chance.choice(self.all)()

    def number(self, bits: int) -> int:
        """At the edges more often than anywhere else."""
        most = (1 << bits) - 1
        return self.chance.choice([0, 1, 2, most, most - 1, most >> 1, 1 << (bits // 2), self.chance.randint(0, most),
                                   self.chance.randint(0, 4096) & most])

    def noise(self) -> list[bytes]:
        return [self.chance.randbytes(self.chance.randint(1, 600))]

    def nothing(self) -> list[bytes]:
        return []

    def flood(self) -> list[bytes]:
        return [self.chance.randbytes(4096) * self.chance.randint(4, 16)] * self.chance.randint(1, 8)

    def record(self) -> list[bytes]:
        """A TLS record whose length is right, around a handshake message whose length is right,
        around noise.
        """
        body = self.chance.randbytes(self.chance.randint(0, 700))
        message = bytes([self.chance.choice([1, 2, 11, 20, 24, self.number(8)])]) + len(body).to_bytes(3, "big") + body
        return [self.tls_record(22, message)]

    def tls_record(self, kind: int, body: bytes) -> bytes:
        return bytes([kind, 3, self.chance.choice([1, 3])]) + len(body).to_bytes(2, "big") + body

    def records(self) -> list[bytes]:
        return [self.tls_record(self.chance.choice([20, 21, 22, 23, 24, self.number(8)]),
                                self.chance.randbytes(self.chance.choice([0, 1, 2, 100, 16384, 16640])))
                for _ in range(self.chance.randint(1, 20))]

    def client_hello(self) -> list[bytes]:
        """As a client sends it, and then what only one who knows the secret could say."""
        return [self.chance.choice(self.recorded), self.tls_record(20, b"\1"),
                self.tls_record(23, self.chance.randbytes(self.chance.randint(17, 200)))]

    def cut_client_hello(self) -> list[bytes]:
        whole = self.chance.choice(self.recorded)
        return [whole[:self.chance.randint(1, len(whole))]]

    def mutated_client_hello(self) -> list[bytes]:
        changed = bytearray(self.chance.choice(self.recorded))
        for _ in range(self.chance.randint(1, 6)):
            changed[self.chance.randrange(5, len(changed))] = self.number(8)
        return [bytes(changed)]

    def crumbs_of_client_hello(self) -> list[bytes]:
        """In records of a few bytes each."""
        body = self.chance.choice(self.recorded)[5:]
        size = self.chance.randint(1, 40)
        return [b"".join(self.tls_record(22, body[at:at + size]) for at in range(0, len(body), size))]

    def other_protocol(self) -> list[bytes]:
        return [self.chance.choice([b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n",
                                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0" * 64, b"\xff" * 64])]

    def hello(self) -> list[bytes]:
        whole = bytearray(self.own_hello())
        for _ in range(self.chance.randint(0, 3)):
            whole[self.chance.randrange(len(whole))] = self.number(8)
        return [bytes(whole)]

    def own_hello(self) -> bytes:
        """With the address space that a node said it has: then it is accepted where users are all
        that is checked.
        """
        base, space, page = HELLO.unpack(self.node_hello)[7:10] if self.node_hello else (1 << 44, 1 << 40, 0)
        return HELLO.pack(b"vmemnode", 1, 1, self.chance.randint(1, 8), self.chance.choice([0, 0, 0, self.number(16)]),
                          self.chance.getrandbits(64) | 1, self.chance.getrandbits(64), base, space, page,
                          self.number(64))

    def frames(self) -> list[bytes]:
        pieces = [self.own_hello()]
        for _ in range(self.chance.randint(1, 6)):
            header = self.chance.randbytes(self.chance.choice([0, 1, 64, 200, 4096]))
            payload = self.chance.choice([0, 1, 100, 4096, MOST_PAYLOAD, MOST_PAYLOAD + 1, self.number(64)])
            kind = self.chance.choice([1, 1, 1, 2, self.number(16)])
            length = self.chance.choice([len(header), len(header), self.number(16)])
            pieces += [FRAME.pack(kind, length, self.chance.choice([0, 0, 0, self.number(32)]), payload) + header,
                       self.chance.randbytes(min(payload, 4096))]
        return pieces

    def wire_messages(self) -> list[bytes]:
        pieces = [self.own_hello()]
        for _ in range(self.chance.randint(1, 6)):
            body = self.chance.randbytes(self.chance.choice([0, 8, 16, 24, 40, 64]))
            header = WIRE.pack(0x4d454d56, 4, self.chance.randint(0, 15), self.number(64), self.number(64),
                               self.number(64), self.number(64), self.number(64), len(body), 0, self.number(64))
            pieces.append(FRAME.pack(1, len(header) + len(body), 0, 0) + header + body)
        return pieces

    def lent_messages(self) -> list[bytes]:
        return [LENT.pack(self.chance.choice([0x4d484c56] * 5 + [self.number(32)]), self.chance.choice([1, 1, 1, 2]),
                          kind if self.chance.random() < 0.7 else self.number(16), self.number(64),
                          self.chance.choice([2 << 20, 0, 3, self.number(64)]), self.number(64), self.number(64),
                          self.chance.randbytes(16), self.chance.randbytes(192))
                for kind in [1] + [self.chance.randint(1, 9) for _ in range(self.chance.randint(0, 5))]]

    def guard_text(self) -> list[bytes]:
        lender = self.chance.choice([b"127.0.0.1:9", b"", b"nobody:1", self.chance.randbytes(20), b"/" * 5000])
        lines = [b"%d %d" % (self.number(64), self.number(64)), self.chance.choice([b"", b"/nonexistent"]),
                 self.chance.choice([b"", b"/nonexistent"]), self.chance.choice([b"", b"ucx:none"]), lender]
        return [b"\n".join(lines[:self.chance.randint(1, 5)] * self.chance.choice([1, 1, 1, 50]))]


# ---- how it is sent ----


class Target:
    def __init__(self, order: dict):
        self.order = order
        self.is_unix = order["family"] == "unix"
        # A path that leads to the socket though its folder is closed: as if somebody had opened the
        # folder.
        self.opened = order.get("opened")
        self.counts = {"made": 0, "let_in": 0, "refused": 0, "queue_full": 0, "answered": 0, "broken": {},
                       "errors": {}}

    def count_error(self, error: OSError) -> None:
        name = errno.errorcode.get(error.errno, type(error).__name__) if error.errno else type(error).__name__
        self.counts["errors"][name] = self.counts["errors"].get(name, 0) + 1

    def broken(self, promise: str) -> None:
        self.counts["broken"][promise] = self.counts["broken"].get(promise, 0) + 1

    def connect(self, source: str, by_opened: bool) -> socket.socket | None:
        self.counts["made"] += 1
        try:
            made = self._connect_unix(by_opened) if self.is_unix else self._connect_internet(source)
        except OSError as error:
            self.count_error(error)
            self.counts["queue_full" if isinstance(error, (BlockingIOError, TimeoutError)) else "refused"] += 1
            return None
        self.counts["let_in"] += 1
        made.setblocking(False)
        return made

    def _connect_unix(self, by_opened: bool) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, self.order["type"])
        made.setblocking(False)
        address = f"/proc/self/fd/{self.opened}" if by_opened else self.order["address"]
        address = "\0" + address[1:] if address.startswith("@") else address
        deadline = time.monotonic() + FULL_S
        while True:
            try:
                made.connect(address)
                return made
            except BlockingIOError:
                if time.monotonic() > deadline:
                    made.close()
                    raise
                time.sleep(0.002)
            except OSError:
                made.close()
                raise

    def _connect_internet(self, source: str) -> socket.socket:
        host, port = self.order["address"].rsplit(":", 1)
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        made = socket.socket(family, self.order["type"])
        made.settimeout(FULL_S)
        try:
            if source and family == socket.AF_INET:
                made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                made.bind((source, 0))
            made.connect((host.strip("[]"), int(port)))
            return made
        except OSError:
            made.close()
            raise


class Attacker:
    def __init__(self, orders: dict):
        self.chance = random.Random(orders["seed"])
        self.shapes = Shapes(self.chance, [bytes.fromhex(each) for each in orders["recorded"]])
        self.targets = [Target(each) for each in orders["targets"]]
        self.orders = orders
        # Open connections, and what they still drip.
        self.held: list[tuple[socket.socket, bytearray]] = []

    def run(self) -> None:
        for target in self.targets:
            self.learn_hello(target)
        for _ in range(self.orders["connections"]):
            if time.monotonic() >= self.orders["until"]:
                break
            target = self.chance.choice(self.targets)
            by_opened = target.opened is not None and self.chance.random() < 0.5
            if (made := target.connect(self.chance.choice(self.orders["sources"]), by_opened)) is not None:
                if target.is_unix and self.orders["user"] is not None and not by_opened:
                    target.broken("another user could connect")
                self.treat(target, made)
            self.drip()
        for made, _ in self.held:
            made.close()

    def learn_hello(self, target: Target) -> None:
        """Nodes that check users only answer a Hello with theirs, though they refuse it."""
        if not target.is_unix or target.order["type"] != socket.SOCK_STREAM:
            return
        if (made := target.connect("", False)) is None:
            return
        with made:
            made.settimeout(2)
            try:
                made.sendall(self.shapes.own_hello())
                answer = made.recv(HELLO.size)
            except OSError:
                return
            if len(answer) == HELLO.size:
                self.shapes.node_hello = answer

    def treat(self, target: Target, made: socket.socket) -> None:
        pieces = self.shapes.make()
        way = self.chance.choice([self.burst] * 6 + [self.hold, self.drip_later, self.listen, self.half_close,
                                                     self.with_descriptors])
        if not way(target, made, pieces):
            self.close(made)

    def close(self, made: socket.socket) -> None:
        if self.chance.random() < 0.7:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        made.close()

    def send(self, made: socket.socket, pieces: list[bytes]) -> None:
        try:
            for piece in pieces:
                made.send(piece)
        except OSError:
            pass  # it has been closed, or takes no more now

    # Ways of sending. True: the connection stays open.

    def burst(self, _: Target, made: socket.socket, pieces: list[bytes]) -> bool:
        self.send(made, pieces)
        return False

    def hold(self, _: Target, made: socket.socket, pieces: list[bytes]) -> bool:
        """Says something, or nothing, and stays."""
        self.send(made, pieces[:1])
        return self.keep(made, b"")

    def drip_later(self, _: Target, made: socket.socket, pieces: list[bytes]) -> bool:
        return self.keep(made, b"".join(pieces)[:2000])

    def listen(self, target: Target, made: socket.socket, pieces: list[bytes]) -> bool:
        """Goes on where the other side has answered."""
        for piece in pieces:
            self.send(made, [piece])
            made.settimeout(0.01)
            try:
                if made.recv(4096):
                    target.counts["answered"] += 1
                    if target.is_unix and self.orders["user"] is not None:
                        target.broken("another user was answered")
            except OSError:
                pass
            made.settimeout(0)
        return False

    def half_close(self, _: Target, made: socket.socket, pieces: list[bytes]) -> bool:
        self.send(made, pieces)
        try:
            made.shutdown(self.chance.choice([socket.SHUT_WR, socket.SHUT_RD]))
        except OSError:
            pass
        return self.keep(made, b"")

    def with_descriptors(self, target: Target, made: socket.socket, pieces: list[bytes]) -> bool:
        """Unix sockets carry descriptors, others data out of band."""
        piece = (pieces or [b"x"])[0]
        try:
            if target.is_unix:
                descriptors = array.array("i", [0] * self.chance.choice([1, 2, 3, 16, 253]))
                made.sendmsg([piece[:65536]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            else:
                made.send(piece, socket.MSG_OOB)
        except OSError:
            pass
        self.send(made, pieces[1:])
        return self.chance.random() < 0.3 and self.keep(made, b"")

    def keep(self, made: socket.socket, rest: bytes) -> bool:
        self.held.append((made, bytearray(rest)))
        if len(self.held) > MOST_HELD:
            self.close(self.held.pop(0)[0])
        return True

    def drip(self) -> None:
        """One byte of one of those that are held."""
        if not self.held:
            return
        made, rest = self.chance.choice(self.held)
        if rest:
            self.send(made, [bytes([rest.pop(0)])])


def become(user: int) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    # Else /proc/self/fd belongs to root.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def main() -> int:
    orders = json.load(sys.stdin)
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)  # this descriptor is passed to others
    if orders["user"] is not None:
        become(orders["user"])
    attacker = Attacker(orders)
    attacker.run()
    print(json.dumps([target.counts for target in attacker.targets]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
