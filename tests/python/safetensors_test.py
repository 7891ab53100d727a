#!/usr/bin/env python3
"""safetensors_test.py LIBVMEM PACKAGE: reads files back through vmem.safetensors, on the emulated
driver.
"""

import ctypes
import gc
import json
import os
import random
import re
import sys
import tempfile
import time
import types
import unittest

LIBRARY = ctypes.CDLL(sys.argv.pop(1))
sys.path.insert(0, sys.argv.pop(1))

from vmem import _library, _tensors, safetensors  # noqa: E402

MIB = 1 << 20
LONG_S = 10  # what takes milliseconds takes less on any machine
MUTATIONS = 5_000
# What stands for a value of a header, or for a part of one.
ODD_VALUES = [
    b"[]", b"{}", b"null", b"true", b"-1", b"0", b"1e400", b"NaN", b"-Infinity", b"9223372036854775808", b"1.5", b'""', b'"F32"',
    b'"\\ud800"', b'"__metadata__"', b"[[]]", b"[0, 24]", b"9" * 5000, b"[" * 5000, b"\xff", b"\x00", b'{"a": 1, "a": 2}',
]  # fmt: skip


def mutated(source, header):
    """A header with values replaced, or bytes changed, left out or doubled; its length is mostly
    right.
    """
    text = bytearray(header[8:])
    for _ in range(source.randrange(1, 4)):
        kind = source.randrange(4)
        at = source.randrange(len(text))
        if kind == 0:
            values = list(re.finditer(rb'"[^"]*"|-?\d+|\[[^\[\]]*\]|\{[^{}]*\}', text))
            if values:
                start, end = source.choice(values).span()
                text[start:end] = source.choice(ODD_VALUES)
        elif kind == 1:
            text[at] ^= 1 << source.randrange(8)
        elif kind == 2:
            del text[at : at + source.randrange(1, 8)]
        else:
            text[at:at] = text[source.randrange(len(text)) :][:20]
    length = len(text) if source.randrange(8) else source.choice([0, len(text) - 1, len(text) + 1, 1 << 63, (1 << 64) - 1])
    return length.to_bytes(8, "little") + bytes(text)


class PointerInfo(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("rest", ctypes.c_size_t * 16)]


def header_bytes(entries, pad=0):
    text = json.dumps(entries).encode() + b" " * pad
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def is_mapped(pointer):
    return LIBRARY.vmem_query(ctypes.c_void_p(pointer), ctypes.byref(PointerInfo())) == 0


def read(pointer, length):
    out = ctypes.create_string_buffer(length)
    status = LIBRARY.vmem_read(out, ctypes.c_void_p(pointer), ctypes.c_size_t(length))
    if status != 0:
        raise RuntimeError(status)
    return out.raw


class Safetensors(unittest.TestCase):
    def setUp(self):
        descriptor, self.path = tempfile.mkstemp(suffix=".safetensors", dir=".")
        os.close(descriptor)
        self.addCleanup(os.unlink, self.path)

    def write(self, contents):
        with open(self.path, "wb") as file:
            file.write(contents)

    def write_tensors(self, tensors, metadata=None):
        """{name: (dtype, shape, bytes)}"""
        entries, data = {}, b""
        for name, (dtype, shape, contents) in tensors.items():
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(contents)]}
            data += contents
        if metadata is not None:
            entries["__metadata__"] = metadata
        self.write(header_bytes(entries) + data)

    def refuses(self, contents, why):
        self.write(contents)
        with self.assertRaisesRegex(ValueError, why) as caught:
            safetensors.open(self.path, library=LIBRARY)
        self.assertIn(self.path, str(caught.exception))

    def random_tensors(self):
        source = random.Random(7)
        shapes = {"weight": ("BF16", [1024, 20480]), "bias": ("F32", [333]), "scalar": ("F64", []), "none": ("I64", [0, 4])}
        shapes.update({f"layer.{i}": ("F16", [i + 1, 512, 1024]) for i in range(4)})
        shapes.update({"mask": ("BOOL", [8, 100]), "eight": ("F8_E4M3", [16])})
        sizes = {"BF16": 2, "F32": 4, "F64": 8, "I64": 8, "F16": 2, "BOOL": 1, "F8_E4M3": 1}
        tensors = {}
        # The widest first, as the format's own writer has it: then all begin at multiples of their
        # size.
        for name, (dtype, shape) in sorted(shapes.items(), key=lambda each: -sizes[each[1][0]]):
            count = 1
            for extent in shape:
                count *= extent
            tensors[name] = (dtype, shape, source.randbytes(count * sizes[dtype]))
        return tensors

    def test_every_byte_of_every_tensor_is_there(self):
        tensors = self.random_tensors()
        self.write_tensors(tensors, {"format": "pt"})
        mapped = safetensors.open(self.path, library=LIBRARY)
        self.assertEqual(list(mapped), list(tensors))
        for name, (dtype, shape, contents) in tensors.items():
            with self.subTest(name):
                self.assertEqual((mapped[name].dtype, mapped[name].shape, mapped[name].nbytes), (dtype, tuple(shape), len(contents)))
                if contents:
                    self.assertEqual(read(mapped[name].pointer, len(contents)), contents)
                else:
                    self.assertIsNone(mapped[name].pointer)
        self.assertEqual(safetensors.read_header(self.path)[1], {"format": "pt"})

    def test_a_mapping_lives_as_long_as_any_tensor_of_it(self):
        self.write_tensors({"a": ("U8", [100], bytes(range(100))), "b": ("U8", [3], b"xyz")})
        mapped = safetensors.open(self.path, library=LIBRARY)
        pointer = mapped["b"].pointer
        capsule = mapped["b"].__dlpack__()
        del mapped
        gc.collect()
        self.assertEqual(read(pointer, 3), b"xyz")
        del capsule  # which nobody took
        gc.collect()
        LIBRARY.vmem_quiesce()
        self.assertFalse(is_mapped(pointer))

    def test_prototypes_that_others_give_to_pythons_functions_change_nothing(self):
        get = ctypes.pythonapi.PyCapsule_GetPointer
        before = get.restype, get.argtypes
        self.addCleanup(lambda: (setattr(get, "restype", before[0]), setattr(get, "argtypes", before[1])))
        self.write_tensors({"a": ("U8", [1], b"x")})
        capsule = safetensors.open(self.path, library=LIBRARY)["a"].__dlpack__()
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.assertTrue(_tensors._exported)
        del capsule  # which nobody took
        self.assertFalse(_tensors._exported)

    def test_dlpack_says_what_it_is(self):
        self.write_tensors({"t": ("BF16", [2, 3], b"abcdefghijkl"), "f8": ("F8_E5M2", [4], b"wxyz")})
        mapped = safetensors.open(self.path, library=LIBRARY)
        self.assertEqual(mapped["t"].__dlpack_device__(), (2, 0))
        capsule = mapped["t"].__dlpack__(stream=None)
        get, rename = ctypes.PyDLL(None).PyCapsule_GetPointer, ctypes.PyDLL(None).PyCapsule_SetName
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
        managed = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(_tensors._DLManagedTensor))
        used = b"used_dltensor"
        rename(capsule, used)
        del capsule
        pointer = mapped["t"].pointer
        tensor = managed.contents.dl_tensor
        self.assertEqual((tensor.data, tensor.ndim, tensor.shape[0], tensor.shape[1]), (pointer, 2, 2, 3))
        self.assertEqual((tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes), (4, 16, 1))
        del mapped
        gc.collect()
        self.assertEqual(read(pointer, 12), b"abcdefghijkl")
        managed.contents.deleter(managed)
        gc.collect()
        LIBRARY.vmem_quiesce()
        self.assertFalse(is_mapped(pointer))

    def test_small_neighbours_share_a_mapping_and_large_ones_do_not(self):
        big = bytes(40 * MIB)
        self.write_tensors({"a": ("U8", [5], b"abcde"), "b": ("U8", [3], b"fgh"), "c": ("U8", [len(big)], big), "d": ("U8", [1], b"i")})
        mapped = safetensors.open(self.path, library=LIBRARY)
        self.assertEqual(mapped["b"].pointer, mapped["a"].pointer + 5)
        self.assertIs(mapped["a"]._mapping, mapped["b"]._mapping)
        self.assertIsNot(mapped["b"]._mapping, mapped["c"]._mapping)
        self.assertIsNot(mapped["c"]._mapping, mapped["d"]._mapping)
        self.assertEqual(read(mapped["d"].pointer, 1), b"i")

    def test_what_is_wrong_with_a_file_is_said(self):
        def one(**change):
            entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **change}
            return header_bytes({"t": entry}) + bytes(8)

        self.refuses(b"", "header would have 0 bytes, the file has 0")
        self.refuses(b"\x01\x00", "the file has 2")
        self.refuses((1 << 40).to_bytes(8, "little") + b"{}", f"would have {1 << 40} bytes")
        self.refuses((2).to_bytes(8, "little") + b"{[", "no JSON")
        self.refuses((2).to_bytes(8, "little") + b"\xff\xfe", "no JSON")
        self.refuses((2).to_bytes(8, "little") + b"[]", "no JSON object")
        self.refuses(header_bytes({"t": 3}), "'t' lacks dtype")
        self.refuses(header_bytes({"__metadata__": 3}), "__metadata__")
        self.refuses(one(dtype="F31"), "dtype 'F31'; known are F64")
        for no_name in ([], {}, None, 3):
            self.refuses(one(dtype=no_name), "has dtype .*; known are F64")
        self.refuses(one(shape=[-2]), r"shape \[-2\]")
        self.refuses(one(shape=[True, 2]), "shape")
        self.refuses(one(shape=[3]), r"has 8 bytes, and F32 of shape \[3\] takes more")
        self.refuses(one(shape=[1]), r"has 8 bytes, and F32 of shape \[1\] takes 4")
        self.refuses(one(data_offsets=[8, 0]), "data_offsets")
        self.refuses(one(data_offsets=[8, 16]), "it was cut off")
        twice = b'{"t": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "t": {}}'
        self.refuses(len(twice).to_bytes(8, "little") + twice + b"x", "stands twice")
        apart = {name: {"dtype": "U8", "shape": [4], "data_offsets": [at, at + 4]} for name, at in (("x", 0), ("y", 3))}
        self.refuses(header_bytes(apart) + bytes(8), "'x' and 'y' overlap")
        odd = {"o": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "t": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]}}
        self.refuses(header_bytes(odd) + bytes(5), "no multiple of the size of F32")
        with self.assertRaises(FileNotFoundError):
            safetensors.open("/nonexistent.safetensors", library=LIBRARY)
        self.write_tensors({"a": ("U8", [1], b"x")})
        with self.assertRaisesRegex(RuntimeError, "device 9"):
            safetensors.open(self.path, device=9, library=LIBRARY)

    def test_a_header_is_refused_in_time_that_its_length_bounds(self):
        """Each takes minutes or gigabytes if a size is computed or printed before it is checked."""

        def one(shape, offsets="[0, 8]", dtype="F32"):
            text = f'{{"t": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}}}'.encode()
            return len(text).to_bytes(8, "little") + text + bytes(8)

        extents = f"[{', '.join(['9223372036854775807'] * 100_000)}]"
        digits = "9" * 2_000_000
        cases = {
            "a huge product": one(extents),
            "a huge product that ends with 0": one(extents[:-1] + ", 0]"),  # of 8 bytes
            "a huge product, offsets beyond the file": one(extents, f"[0, {(1 << 63) - 1}]"),
            "an extent of many digits": one(f"[{digits}]"),
            "a negative extent of many digits": one(f"[-{digits}]"),
            "an extent that is a long fraction": one(f"[1.{digits}]"),
            "an offset of many digits": one("[2]", f"[0, {digits}]"),
            "deep nesting": one("[" * 1_000_000),
            "a type of many letters": one("[2]", dtype="F" * 1_000_000),
        }
        for what, contents in cases.items():
            with self.subTest(what):
                self.write(contents)
                started = time.monotonic()
                with self.assertRaises(ValueError) as caught:
                    safetensors.read_header(self.path)
                self.assertLess(time.monotonic() - started, LONG_S)
                self.assertIn(self.path, str(caught.exception))
                self.assertLess(len(str(caught.exception)), 1000)

    def test_a_fifo_is_refused_and_not_waited_for(self):
        fifo = self.path + ".fifo"
        os.mkfifo(fifo)
        self.addCleanup(os.unlink, fifo)
        with self.assertRaisesRegex(ValueError, "the file has 0"):
            safetensors.read_header(fifo)

    def test_whatever_a_header_holds_it_is_read_or_refused(self):
        seed = int.from_bytes(os.urandom(4), "little")
        print(f"seed {seed}", file=sys.stderr)
        source = random.Random(seed)
        valid = header_bytes({
            "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "b": {"dtype": "U8", "shape": [], "data_offsets": [24, 25]},
            "__metadata__": {"format": "pt"},
        })
        read_ones = 0
        reading_s = 0.0
        # Emptying the file by its name would wait for the disk each time.
        file = open(self.path, "r+b", buffering=0)
        self.addCleanup(file.close)
        for _ in range(MUTATIONS):
            contents = mutated(source, valid) + bytes(32)
            file.seek(0)
            file.write(contents)
            file.truncate()
            started = time.monotonic()
            try:
                tensors, _ = safetensors.read_header(self.path)
                read_ones += 1
                self.assertTrue(all(begin + length <= len(contents) for _, _, begin, length in tensors.values()), contents)
            except ValueError as refused:
                self.assertIn(self.path, str(refused), contents)
                self.assertIn("cannot be read as safetensors", str(refused), contents)
            except Exception as other:  # to show what was read
                raise AssertionError(f"{type(other).__name__} of {contents!r}") from other
            reading_s += time.monotonic() - started
        self.assertLess(reading_s, LONG_S)
        self.assertTrue(0 < read_ones < MUTATIONS, "mutations that are all refused, or none, test little")

    def test_without_vmem_under_it_the_process_is_told_what_to_do(self):
        self.write_tensors({"a": ("U8", [1], b"x")})
        with self.assertRaisesRegex(RuntimeError, "vmem run"):
            safetensors.open(self.path)

    def test_load_file_makes_tensors_of_pytorchs_types(self):
        """With a stand-in for PyTorch."""
        torch = types.ModuleType("torch")
        taken = []

        class Tensor:
            def __init__(self, dtype, shape=()):
                self.dtype, self.shape, self.device = dtype, shape, types.SimpleNamespace(index=0)

            def view(self, dtype):
                return Tensor(dtype, self.shape)

        def from_dlpack(capsule):
            taken.append(capsule)
            return Tensor(["bfloat16", "uint8"][len(taken) - 1])

        torch.device = lambda name: types.SimpleNamespace(type=name.split(":")[0])
        torch.empty = lambda shape, dtype, device: Tensor(dtype, shape)
        torch.utils = types.SimpleNamespace(dlpack=types.SimpleNamespace(from_dlpack=from_dlpack))
        for name in ("uint8", "bfloat16", "bool", "int64"):
            setattr(torch, name, name)
        sys.modules["torch"] = torch
        self.addCleanup(sys.modules.pop, "torch")
        self.write_tensors({"w": ("BF16", [2], b"abcd"), "m": ("BOOL", [1], b"\x01"), "e": ("I64", [0], b"")})
        with self.assertRaisesRegex(RuntimeError, "vmem run"):
            safetensors.load_file(self.path)
        with self.assertRaisesRegex(ValueError, "cpu"):
            safetensors.load_file(self.path, device="cpu")
        preloaded, api = _library.preloaded, _library.api
        _library.preloaded = _library.api = lambda: LIBRARY
        try:
            loaded = safetensors.load_file(self.path)
        finally:
            _library.preloaded, _library.api = preloaded, api
        self.assertEqual({name: tensor.dtype for name, tensor in loaded.items()}, {"w": "bfloat16", "m": "bool", "e": "int64"})
        self.assertEqual(loaded["e"].shape, (0,))
        self.assertEqual(len(taken), 2)
        self.write_tensors({"f": ("F8_E8M0", [1], b"x")})
        _library.preloaded = _library.api = lambda: LIBRARY
        try:
            with self.assertRaisesRegex(RuntimeError, "no float8_e8m0fnu"):
                safetensors.load_file(self.path)
        finally:
            _library.preloaded, _library.api = preloaded, api


def start():
    class Option(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]

    given = {"driver": "emulated", "hbm": "64MiB", "host": "64MiB", "space": "4GiB", "log": "warn"}
    options = (Option * len(given))(*((name.encode(), value.encode()) for name, value in given.items()))
    os.environ["VMEM_EMU"] = "devices=1,hbm=256MiB,host=512MiB"
    if LIBRARY.vmem_init(options, ctypes.c_size_t(len(given))) != 0:
        LIBRARY.vmem_last_error.restype = ctypes.c_char_p
        sys.exit(LIBRARY.vmem_last_error().decode())


if __name__ == "__main__":
    start()
    unittest.main()
