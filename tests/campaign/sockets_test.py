#!/usr/bin/env python3
"""What sockets.py finds of a process, and which promises it sees broken."""
import os
import socket
import subprocess
import sys
import tempfile
import unittest

import sockets


def found_here() -> set[tuple[str, str]]:
    return {(each.family, each.address) for each in sockets.find(os.getpid())}


def broken(pid: int, has_secret: bool = False, asked: set[str] = frozenset(), borrows_only: bool = False) -> str:
    return "; ".join(sockets.broken_promises(sockets.find(pid), has_secret, set(asked), borrows_only))


class Looking(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.made = []
        self.addCleanup(self.folder.cleanup)

    def make(self, family: int, kind: int, address) -> socket.socket:
        made = socket.socket(family, kind)
        self.addCleanup(made.close)
        made.bind(address)
        if kind != socket.SOCK_DGRAM:
            made.listen()
        return made

    def test_a_process_without_sockets_has_none(self):
        self.assertEqual(found_here(), set())

    def test_internet_sockets_are_found_with_their_addresses(self):
        tcp = self.make(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)).getsockname()[1]
        udp = self.make(socket.AF_INET, socket.SOCK_DGRAM, ("0.0.0.0", 0)).getsockname()[1]
        self.assertEqual(found_here(), {("tcp", f"127.0.0.1:{tcp}"), ("udp", f"0.0.0.0:{udp}")})

    def test_ipv6_addresses_are_read(self):
        try:
            port = self.make(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)).getsockname()[1]
        except OSError as error:
            self.skipTest(f"no IPv6 here: {error}")
        self.assertEqual(found_here(), {("tcp6", f"[::1]:{port}")})

    def test_unix_sockets_are_found_by_path_and_by_abstract_name(self):
        path = f"{self.folder.name}/with a space"
        self.make(socket.AF_UNIX, socket.SOCK_SEQPACKET, path)
        self.make(socket.AF_UNIX, socket.SOCK_STREAM, f"\0vmem-test-{os.getpid()}")
        self.assertEqual(found_here(), {("unix", path), ("unix", f"@vmem-test-{os.getpid()}")})

    def test_accepted_and_connected_sockets_are_none_that_strangers_reach(self):
        listener = self.make(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
        listener.close()
        self.assertEqual(found_here(), set())
        there.close()
        here.close()

    def test_sockets_of_children_are_found_through_the_parent(self):
        code = ("import socket, sys; made = socket.create_server(('127.0.0.1', 0)); print(1, flush=True); "
                "sys.stdin.read()")
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            self.assertIn(child.pid, sockets.with_children(os.getpid()))
            self.assertEqual(len(sockets.find(child.pid)), 1)
            child.stdin.close()

    def test_a_port_without_a_secret_breaks_a_promise_and_with_one_only_where_it_was_not_asked_for(self):
        port = self.make(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)).getsockname()[1]
        self.assertIn("without a secret no port opens", broken(os.getpid()))
        self.assertEqual(broken(os.getpid(), True, {f"127.0.0.1:{port}"}), "")
        self.assertIn("nobody asked for", broken(os.getpid(), True, {"127.0.0.1:1"}))
        self.assertIn("only borrows", broken(os.getpid(), True, {f"127.0.0.1:{port}"}, borrows_only=True))

    def test_a_unix_socket_has_to_be_in_a_folder_of_its_user_alone(self):
        self.make(socket.AF_UNIX, socket.SOCK_STREAM, f"{self.folder.name}/socket")
        self.assertEqual(broken(os.getpid()), "")
        os.chmod(self.folder.name, 0o750)
        self.assertIn("mode 750", broken(os.getpid()))

    def test_an_abstract_unix_socket_breaks_a_promise(self):
        self.make(socket.AF_UNIX, socket.SOCK_STREAM, f"\0vmem-test-{os.getpid()}")
        self.assertIn("abstract", broken(os.getpid()))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
