#!/usr/bin/env python3
"""A program that keeps pages with vmem and compares every byte that it reads with what it wrote.

It reads and writes pages in random order until SIGTERM, or for a number of operations. Then it
reads all pages once more. A page's content is a random part of one block of random bytes, chosen
anew at each write. Each line on stdout is a JSON object of the figures so far; the last one has
"final". Wrong bytes and failed calls are also described on stderr. The memory comes from
libvmem_gpu.so, or with --cuda from the CUDA driver's interface, for programs under `vmem run`.

    honest.py --library build/release/lib/libvmem_gpu.so --pages 64 driver=emulated hbm=32MiB
"""
import argparse
import ctypes
import json
import random
import signal
import sys
import time

PAGE = 2 << 20
STATUS_NAMES = {0: "OK", 9: "OUT_OF_MEMORY", 11: "LOST", 12: "TIMEOUT"}
REPORT_EVERY_S = 0.25
EXIT_NOT_STARTED = 4

memcmp = ctypes.CDLL(None).memcmp
memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Option(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class VmemMemory:
    """Through vmem.h."""

    def __init__(self, library: str, options: dict[str, str]):
        self.vmem = ctypes.CDLL(library)
        self.vmem.vmem_last_error.restype = ctypes.c_char_p
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.vmem.vmem_malloc.argtypes = [ctypes.POINTER(pointer), size, ctypes.c_int, pointer]
        self.vmem.vmem_free.argtypes = [pointer, pointer]
        self.vmem.vmem_write.argtypes = self.vmem.vmem_read.argtypes = [pointer, pointer, size]
        self.device = int(options.get("devices", "0"))
        given = (Option * len(options))(*[Option(name.encode(), value.encode()) for name, value in options.items()])
        if self.vmem.vmem_init(given, size(len(options))) != 0:
            print(f"not started: {self.last_error()}", file=sys.stderr, flush=True)
            sys.exit(EXIT_NOT_STARTED)

    def last_error(self) -> str:
        return self.vmem.vmem_last_error().decode(errors="replace")

    def allocate(self) -> tuple[str, int]:
        out = ctypes.c_void_p()
        status = self.vmem.vmem_malloc(ctypes.byref(out), PAGE, self.device, None)
        return self.name(status), out.value or 0

    def free(self, address: int) -> str:
        return self.name(self.vmem.vmem_free(address, None))

    def write(self, address: int, source: int) -> str:
        return self.name(self.vmem.vmem_write(address, source, PAGE))

    def read(self, destination: int, address: int) -> str:
        return self.name(self.vmem.vmem_read(destination, address, PAGE))

    def end(self) -> str:
        return self.name(self.vmem.vmem_shutdown())

    @staticmethod
    def name(status: int) -> str:
        return STATUS_NAMES.get(status, f"status {status}")


class CudaMemory:
    """Through the driver's interface, as a program that does not call vmem."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        address, pointer, size = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
        self.cuda.cuMemAlloc_v2.argtypes = [ctypes.POINTER(address), size]
        self.cuda.cuMemFree_v2.argtypes = [address]
        self.cuda.cuMemcpyHtoD_v2.argtypes = [address, pointer, size]
        self.cuda.cuMemcpyDtoH_v2.argtypes = [pointer, address, size]
        context = ctypes.c_void_p()
        for failed in (self.cuda.cuInit(0), self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                       self.cuda.cuCtxSetCurrent(context)):
            if failed:
                print(f"not started: the driver's error {failed}", file=sys.stderr, flush=True)
                sys.exit(EXIT_NOT_STARTED)

    def last_error(self) -> str:
        return "an error of the driver's interface"

    def allocate(self) -> tuple[str, int]:
        out = ctypes.c_uint64()
        return self.name(self.cuda.cuMemAlloc_v2(ctypes.byref(out), PAGE)), out.value

    def free(self, address: int) -> str:
        return self.name(self.cuda.cuMemFree_v2(address))

    def write(self, address: int, source: int) -> str:
        return self.name(self.cuda.cuMemcpyHtoD_v2(address, source, PAGE))

    def read(self, destination: int, address: int) -> str:
        return self.name(self.cuda.cuMemcpyDtoH_v2(destination, address, PAGE))

    def end(self) -> str:
        return "OK"

    @staticmethod
    def name(status: int) -> str:
        return "OK" if status == 0 else f"CUDA error {status}"


class Page:
    def __init__(self):
        self.address = 0  # 0: it has none now
        # Offsets into the random block of what it may hold; none: anything.
        self.contents: list[int] = []


class Program:
    def __init__(self, memory, pages: int, seed: int):
        self.memory = memory
        self.random = random.Random(seed)
        # Any PAGE bytes of it are a content: contents that begin elsewhere differ.
        self.block = ctypes.create_string_buffer(self.random.randbytes(2 * PAGE), 2 * PAGE)
        self.buffer = ctypes.create_string_buffer(PAGE)
        self.pages = [Page() for _ in range(pages)]
        self.figures = {"operations": 0, "wrong": 0, "failed": {}, "slowest_ms": 0}
        self.ending = False
        self.reported = 0.0

    def content(self, offset: int) -> int:
        return ctypes.addressof(self.block) + offset

    def call(self, what: str, page: Page, function, *arguments) -> str:
        """Counts the call, and frees a lost page: its next use allocates it anew."""
        begun = time.monotonic()
        status = function(*arguments)
        took_ms = (time.monotonic() - begun) * 1000
        self.figures["slowest_ms"] = round(max(self.figures["slowest_ms"], took_ms))
        if status != "OK":
            self.figures["failed"][status] = self.figures["failed"].get(status, 0) + 1
            print(f"{what}: {status} after {took_ms:.0f} ms: {self.memory.last_error()}", file=sys.stderr, flush=True)
        if status == "LOST":
            self.memory.free(page.address)
            page.address, page.contents = 0, []
        return status

    def write(self, page: Page) -> None:
        if not page.address:
            status, address = self.memory.allocate()
            if status != "OK":
                self.figures["failed"][status] = self.figures["failed"].get(status, 0) + 1
                return time.sleep(0.01)  # there is no room now
            page.address = address
        offset = self.random.randrange(PAGE)
        status = self.call("write", page, self.memory.write, page.address, self.content(offset))
        if status == "OK":
            page.contents = [offset]
        elif page.contents:
            page.contents.append(offset)  # a call that failed has changed nothing, or all

    def read(self, page: Page) -> None:
        if self.call("read", page, self.memory.read, ctypes.addressof(self.buffer), page.address) != "OK":
            return
        if any(memcmp(self.buffer, self.content(offset), PAGE) == 0 for offset in page.contents):
            return
        self.figures["wrong"] += 1
        expected = self.block.raw[page.contents[0]:page.contents[0] + PAGE]
        at = [i for i in range(0, PAGE, 64) if self.buffer.raw[i:i + 64] != expected[i:i + 64]]
        print(f"wrong bytes in page {self.pages.index(page)}: {len(at)} of {PAGE // 64} pieces of 64 bytes differ, "
              f"the first at {at[0]}", file=sys.stderr, flush=True)

    def use_one(self) -> None:
        page = self.random.choice(self.pages)
        if not page.contents or self.random.random() < 0.33:
            self.write(page)
        else:
            self.read(page)
        self.figures["operations"] += 1

    def report(self, final: bool = False) -> None:
        now = time.monotonic()
        if not final and now - self.reported < REPORT_EVERY_S:
            return
        self.reported = now
        print(json.dumps(self.figures | ({"final": True} if final else {})), flush=True)

    def run(self, operations: int, pause_s: float) -> None:
        for page in self.pages:
            self.write(page)
            self.report()
        while not self.ending and (operations == 0 or self.figures["operations"] < operations):
            self.use_one()
            self.report()
            time.sleep(pause_s)
        for page in self.pages:
            if page.contents:
                self.read(page)
        for page in self.pages:
            if page.address:
                self.memory.free(page.address)
        self.report(final=True)
        if (status := self.memory.end()) != "OK":
            print(f"end: {status}: {self.memory.last_error()}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default="", help="libvmem_gpu.so")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--pages", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", type=int, default=0, help="0: until SIGTERM")
    parser.add_argument("--pause-ms", type=float, default=2, help="after each operation")
    parser.add_argument("options", nargs="*", help="NAME=VALUE of vmem_init")
    asked = parser.parse_args()
    options = dict(each.split("=", 1) for each in asked.options)
    program = Program(CudaMemory() if asked.cuda else VmemMemory(asked.library, options), asked.pages, asked.seed)

    def end_soon(*_) -> None:
        program.ending = True

    signal.signal(signal.SIGTERM, end_soon)
    program.run(asked.operations, asked.pause_ms / 1000)
    return 1 if program.figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
