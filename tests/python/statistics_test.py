#!/usr/bin/env python3
"""vmem.torch.statistics() has the fields of vmem_statistics, in the order of vmem/vmem.h, with
figures of a running vmem.

    statistics_test.py LIBVMEM_SO PYTHON_FOLDER VMEM_H
"""

import ctypes
import os
import re
import sys
import unittest

LIBRARY = ctypes.CDLL(sys.argv.pop(1))
sys.path.insert(0, sys.argv.pop(1))
with open(sys.argv.pop(1), encoding="utf-8") as file:
    HEADER = file.read()

import vmem.torch  # noqa: E402
from vmem import _library  # noqa: E402

WIDTHS = {"uint64_t": 8, "uint32_t": 4, "int32_t": 4}


def declared():
    """(name, bytes) of each field of vmem_statistics."""
    body = re.search(r"typedef struct vmem_statistics \{(.*?)\} vmem_statistics;", HEADER, re.DOTALL)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    fields = re.findall(r"(u?int\d+_t)\s+([^;]+);", body)
    return [(name.strip(), WIDTHS[kind]) for kind, names in fields for name in names.split(",")]


class Statistics(unittest.TestCase):
    def test_fields_are_those_of_the_header(self):
        ours = [(name, ctypes.sizeof(kind)) for name, kind in vmem.torch._Statistics._fields_]
        self.assertEqual(ours, declared())

    def test_figures_are_those_of_the_library(self):
        memory = ctypes.c_void_p()
        self.assertEqual(LIBRARY.vmem_malloc(ctypes.byref(memory), ctypes.c_size_t(8 << 20), 0, None), 0)
        figures = vmem.torch.statistics()
        self.assertEqual(figures["allocated_bytes"], 8 << 20)
        self.assertEqual(figures["hbm_budget_bytes"], 64 << 20)
        self.assertEqual(figures["device_count"], 1)
        self.assertEqual(LIBRARY.vmem_free(memory, None), 0)


if __name__ == "__main__":
    os.environ["VMEM_EMU"] = "devices=1,hbm=256MiB,host=512MiB"
    os.environ.update(VMEM_DRIVER="emulated", VMEM_HBM="64MiB", VMEM_HOST="64MiB", VMEM_SPACE="4GiB")
    _library.preloaded = lambda: LIBRARY
    if LIBRARY.vmem_init(None, ctypes.c_size_t(0)) != 0:
        LIBRARY.vmem_last_error.restype = ctypes.c_char_p
        sys.exit(LIBRARY.vmem_last_error().decode())
    unittest.main()
