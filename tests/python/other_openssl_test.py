#!/usr/bin/env python3
"""vmem's OpenSSL beside a program's own: Python's ssl works under `vmem run` as before, and vmem
adds no libssl or libcrypto to the process, also where it talks TLS to another node.
"""
import ctypes
import os
import re
import ssl
import subprocess
import sys
import tempfile
import unittest

BUILD = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
INSIDE = "VMEM_TEST_INSIDE"
CERTIFICATE = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
               "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]


def mapped() -> set[str]:
    """Files of OpenSSL in this process."""
    with open("/proc/self/maps") as maps:
        paths = (line.split(maxsplit=5)[5].strip() for line in maps if len(line.split()) > 5)
        return {path for path in paths if re.search(r"lib(ssl|crypto)[-.]", os.path.basename(path))}


def handshake(folder: str) -> bytes:
    """Python's ssl talks TLS 1.3 to itself in memory; returns what arrived."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    client_context = ssl.create_default_context(cafile=f"{folder}/tls.crt")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(back, there, server_hostname="localhost")
    server = server_context.wrap_bio(there, back, server_side=True)
    pending = {client, server}
    while pending:
        for each in list(pending):
            try:
                each.do_handshake()
                pending.remove(each)
            except ssl.SSLWantReadError:
                pass
    client.write(b"over the program's own OpenSSL")
    return server.read(100)


class Option(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


def talk_to_a_node(address: str, secret: str) -> None:
    """Acts as a program that borrows from the daemon at `address`."""
    vmem = ctypes.CDLL(os.environ["VMEM_TEST_LIBRARY"])
    vmem.vmem_last_error.restype = ctypes.c_char_p
    given = {"driver": "emulated", "hbm": "32MiB", "host": "32MiB", "page": "2MiB", "log": "error",
             "remote": address, "secret": secret}
    options = (Option * len(given))(*[Option(name.encode(), value.encode()) for name, value in given.items()])
    assert vmem.vmem_init(options, ctypes.c_size_t(len(given))) == 0, vmem.vmem_last_error()
    memory = ctypes.c_void_p()
    size = 96 << 20
    assert vmem.vmem_malloc(ctypes.byref(memory), ctypes.c_size_t(size), 0, None) == 0, vmem.vmem_last_error()
    page = os.urandom(2 << 20)
    for at in range(0, size, len(page)):
        assert vmem.vmem_write(ctypes.c_void_p(memory.value + at), page, ctypes.c_size_t(len(page))) == 0
    read = ctypes.create_string_buffer(len(page))
    for at in range(0, size, len(page)):
        assert vmem.vmem_read(read, ctypes.c_void_p(memory.value + at), ctypes.c_size_t(len(page))) == 0
        assert read.raw == page
    assert vmem.vmem_shutdown() == 0


def allocate_beyond_hbm() -> None:
    """Acts as a program that does not call vmem: uses CUDA's driver interface by name."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments) -> None:
        assert getattr(cuda, name)(*arguments) == 0, name

    call("cuInit", 0)
    context, memory = ctypes.c_void_p(), []
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    page = os.urandom(2 << 20)
    for _ in range(12):
        block = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(8 << 20))
        memory.append(block)
        for at in range(0, 8 << 20, len(page)):
            call("cuMemcpyHtoD_v2", ctypes.c_uint64(block.value + at), page, ctypes.c_size_t(len(page)))
    read = ctypes.create_string_buffer(len(page))
    for block in memory:
        for at in range(0, 8 << 20, len(page)):
            call("cuMemcpyDtoH_v2", read, ctypes.c_uint64(block.value + at), ctypes.c_size_t(len(page)))
            assert read.raw == page


def inside() -> None:
    folder = os.environ[INSIDE]
    assert handshake(folder) == b"over the program's own OpenSSL"
    before = mapped()
    assert before, "Python brings an OpenSSL of its own"
    if "VMEM_TEST_DAEMON" in os.environ:
        talk_to_a_node(os.environ["VMEM_TEST_DAEMON"], f"{folder}/secret")
    else:
        allocate_beyond_hbm()
    assert handshake(folder) == b"over the program's own OpenSSL"
    assert mapped() == before, f"{mapped()} instead of {before}"
    print("both work")


class OtherOpenSsl(unittest.TestCase):
    def test_a_program_with_an_openssl_of_its_own_keeps_it(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([*CERTIFICATE, "-keyout", f"{folder}/tls.key", "-out", f"{folder}/tls.crt"], check=True,
                           stderr=subprocess.DEVNULL)
            vmem = f"{BUILD}/bin/vmem"
            subprocess.run([vmem, "secret", "new", f"{folder}/secret"], check=True, stdout=subprocess.DEVNULL)
            daemon = subprocess.Popen([vmem, "daemon", "--listen", "127.0.0.1:0", "--lend", "128MiB", "--secret",
                                       f"{folder}/secret"], stdout=subprocess.PIPE, text=True)
            try:
                address = re.search(r"listens on (\S+)", daemon.stdout.readline())[1]
                os.symlink(f"{BUILD}/lib/libvmem_emu.so", f"{folder}/libcuda.so.1")
                self.run_inside(folder, [], {"VMEM_TEST_DAEMON": address,
                                             "VMEM_TEST_LIBRARY": f"{BUILD}/lib/libvmem_gpu.so"})
                # With the library that intercepts CUDA in the process.
                said = self.run_inside(folder, [vmem, "run", "--hbm", "32MiB", "--host", "32MiB", "--page", "2MiB",
                                                "--remote", address, "--secret", f"{folder}/secret", "--"],
                                       {"LD_LIBRARY_PATH": folder, "VMEM_LOG": "info"})
                self.assertRegex(said, "pages on other nodes: .*tls", "it talked to the node")
            finally:
                daemon.kill()
                daemon.communicate()

    def run_inside(self, folder: str, under: list[str], environment: dict[str, str]) -> str:
        emulated = {INSIDE: folder, "VMEM_EMU": "devices=1,hbm=256MiB,host=1GiB"}
        done = subprocess.run([*under, sys.executable, os.path.abspath(__file__)], capture_output=True, text=True,
                              env=os.environ | emulated | environment, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("both work", done.stdout)
        return done.stdout + done.stderr

    def test_vmem_itself_needs_no_openssl_library(self):
        for name in ("bin/vmem", "lib/libvmem_gpu.so", "lib/libvmem_preload.so"):
            needed = subprocess.run(["readelf", "-d", f"{BUILD}/{name}"], check=True, capture_output=True, text=True)
            self.assertNotRegex(needed.stdout, r"lib(ssl|crypto)")
            symbols = subprocess.run(["nm", "-D", "--defined-only", f"{BUILD}/{name}"], capture_output=True, text=True)
            self.assertNotRegex(symbols.stdout, r"\b(SSL_|EVP_|CRYPTO_|OPENSSL_)")


if __name__ == "__main__":
    if INSIDE in os.environ:
        inside()
    else:
        unittest.main(argv=[sys.argv[0], "-v"])
