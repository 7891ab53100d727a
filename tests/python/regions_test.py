#!/usr/bin/env python3
"""regions_test.py LIBVMEM PACKAGE VMEM: publishes tensors to a cluster on this machine and opens
them in other processes, on the emulated driver. Needs etcd.
"""

import array
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

LIBRARY_PATH, PACKAGE, VMEM = sys.argv[1:4]
del sys.argv[1:4]
LIBRARY = ctypes.CDLL(LIBRARY_PATH)
sys.path.insert(0, PACKAGE)

from vmem import regions  # noqa: E402

MIB = 1 << 20


def start(cluster):
    class Option(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]

    given = {"driver": "emulated", "hbm": "64MiB", "host": "64MiB", "log": "error", "cluster": cluster}
    options = (Option * len(given))(*((name.encode(), value.encode()) for name, value in given.items()))
    os.environ["VMEM_EMU"] = "devices=1,hbm=256MiB,host=512MiB"
    if LIBRARY.vmem_init(options, ctypes.c_size_t(len(given))) != 0:
        LIBRARY.vmem_last_error.restype = ctypes.c_char_p
        sys.exit(LIBRARY.vmem_last_error().decode())


def read(tensor):
    out = ctypes.create_string_buffer(tensor.nbytes)
    if LIBRARY.vmem_read(out, ctypes.c_void_p(tensor.pointer), ctypes.c_size_t(tensor.nbytes)) != 0:
        raise RuntimeError("vmem_read")
    return out.raw


def weights(seed):
    """About 9 MiB."""
    source = random.Random(seed)
    wide = source.randbytes(4 * MIB)
    return {
        "embed.weight": ("F32", (1024, 1024), wide),
        "head.weight": ("F32", (1024, 1024), wide),  # tied
        "layer.weight": ("BF16", (5 * MIB // 2,), source.randbytes(5 * MIB)),
        "layer.bias": ("F16", (3,), source.randbytes(6)),
        "scale": ("F32", (), array.array("f", [0.5])),
        "empty": ("I64", (0, 7), b""),
    }


def opener(cluster, name, seed):
    """Another process: opens what was published, and says where it lies."""
    start(cluster)
    opened = regions.open(name, library=LIBRARY)
    for each, (dtype, shape, data) in weights(seed).items():
        tensor = opened[each]
        assert (tensor.dtype, tensor.shape) == (dtype, shape), each
        assert tensor.nbytes == 0 or read(tensor) == bytes(data), each
    figures = regions.statistics(library=LIBRARY)
    assert (figures["opened_regions"], figures["published_regions"]) == (1, 0), figures
    assert figures["fetched_bytes"] >= 9 * MIB and figures["mismatches"] == 0, figures
    assert figures["cache_limit_bytes"] == 32 * MIB, figures
    assert 9 * MIB <= figures["cached_bytes"] <= 32 * MIB and figures["dropped_pages"] == 0, figures
    print(json.dumps({each: tensor.pointer for each, tensor in opened.items()}))


class Regions(unittest.TestCase):
    def other(self, name, seed):
        command = [sys.executable, __file__, LIBRARY_PATH, PACKAGE, VMEM, "open", CLUSTER, name, str(seed)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def pointers(self, process):
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        return json.loads(said)

    def test_two_other_processes_read_it_where_it_lies(self):
        with regions.publish("models/two", weights(1), copies=1, library=LIBRARY):
            others = [self.other("models/two", 1) for _ in range(2)]
            first, second = (self.pointers(each) for each in others)
            self.assertEqual(first, second)
            own = regions.open("models/two", library=LIBRARY)
            self.assertEqual(first, {each: tensor.pointer for each, tensor in own.items()})
            self.assertEqual(first["embed.weight"], first["head.weight"], "stored once")
            self.assertIsNone(first["empty"])
            self.assertTrue(all(pointer % 256 == 0 for pointer in first.values() if pointer))
            del own

    def test_under_vmem_run_the_first_call_starts_vmem(self):
        script = f"""import sys
sys.path.insert(0, {PACKAGE!r})
from vmem import regions
with regions.publish("models/run", {{"scale": ("F32", (2,), bytes(8))}}):
    print(regions.open("models/run")["scale"].nbytes)
"""
        run = [VMEM, "run", "--driver", "emulated", "--hbm", "64MiB", "--host", "64MiB", "--cluster", CLUSTER, "--log", "error"]
        done = subprocess.run([*run, "--", sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, "8\n"))

    def test_copies_outlive_the_publisher(self):
        regions.publish("models/kept", weights(2), copies=1, library=LIBRARY).close()
        self.pointers(self.other("models/kept", 2))

    def test_pages_that_nobody_else_has_are_named(self):
        large = {"large": ("U8", (80 * MIB,), bytes(80 * MIB))}  # more than the daemon has room for
        published = regions.publish("models/lost", large, library=LIBRARY)
        with self.assertRaisesRegex(RuntimeError, "no other node is known to have"):
            published.close(wait=6.0)
        published.close()  # once is enough
        # The daemon keeps what it had room for.
        subprocess.run([VMEM, "region", "rm", "models/lost", "--cluster", CLUSTER], check=True, stdout=subprocess.DEVNULL)

    def test_what_cannot_be_published_is_said_and_leaves_nothing(self):
        def refused(error, pattern, tensors, **options):
            with self.assertRaisesRegex(error, pattern):
                regions.publish("models/wrong", tensors, library=LIBRARY, **options)

        refused(ValueError, "cannot be published: .*has 4 bytes, and F32 of shape .2. takes more", {"a": ("F32", (2,), b"1234")})
        refused(ValueError, "'models/wrong' cannot be published: there are no tensors", {})
        for copies in (-1, 9):
            refused(ValueError, f"copies is {copies}: .*from 0 to 8", weights(4), copies=copies)
        for expires in (-5, 0, float("inf"), "soon"):
            refused(ValueError, "expires is ", weights(4), expires=expires)
        refused(ValueError, "dtype 'F99'", {"a": ("F99", (1,), b"1234")})
        refused(ValueError, "no .dtype, shape, bytes.", {"a": 7})
        refused(ValueError, "wait is", weights(4), wait=float("nan"))
        refused(TimeoutError, "copies", weights(4), copies=2, wait=1.0)
        with self.assertRaisesRegex(RuntimeError, "letters"):
            regions.publish("no name!", weights(4), library=LIBRARY)
        with self.assertRaisesRegex(RuntimeError, "letters"):
            regions.open("no name!", library=LIBRARY)
        with self.assertRaisesRegex(TimeoutError, "nobody has published"):
            regions.open("models/none", wait=0.3, library=LIBRARY)

    def test_another_region_than_of_tensors_is_refused(self):
        out = ctypes.c_void_p()
        self.assertEqual(LIBRARY.vmem_malloc(ctypes.byref(out), ctypes.c_size_t(4 * MIB), 0, None), 0)
        junk = b"\xff" * 64
        self.assertEqual(LIBRARY.vmem_write(out, junk, ctypes.c_size_t(len(junk))), 0)
        self.assertEqual(LIBRARY.vmem_publish(out, b"junk", None), 0)
        with self.assertRaisesRegex(ValueError, "region 'junk' cannot be read as safetensors"):
            regions.open("junk", library=LIBRARY)
        LIBRARY.vmem_close(out, None, ctypes.c_uint64(0))


if __name__ == "__main__":
    if sys.argv[1:2] == ["open"]:
        opener(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        files = ["--dir", os.path.join(folder, "cluster")]
        environment = {**os.environ, "VMEM_LOG": "warn"}
        subprocess.run([VMEM, "cluster", "up", "--nodes", "1", "--memory", "64MiB", "--copies", "64MiB", *files], check=True, env=environment)
        try:
            CLUSTER = subprocess.run(
                [VMEM, "cluster", "status", "--address", *files], check=True, stdout=subprocess.PIPE, text=True
            ).stdout.strip()
            start(CLUSTER)
            result = unittest.main(exit=False).result
            LIBRARY.vmem_shutdown()
        finally:
            subprocess.run([VMEM, "cluster", "down", *files], check=True)
    sys.exit(not result.wasSuccessful())
