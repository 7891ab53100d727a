#!/usr/bin/env python3
"""Errors in Python when vmem has no memory left. scripts/test_torch.sh runs this."""

import pathlib
import re
import tempfile
import textwrap
import unittest

import torch
import torch.utils.cpp_extension

from process import CONTEXT, run

HERE = pathlib.Path(__file__).resolve().parent
PRELUDE = CONTEXT + textwrap.dedent(
    """
    import sys, torch
    torch.ops.load_library(sys.argv[1])
    call = torch.ops.vmem_test
    MiB = 1 << 20

    def error_of(function, *arguments):
        try:
            function(*arguments)
        except Exception as error:
            return error
        raise SystemExit("nothing was raised")
    """
)
TOO_MUCH = (
    "CUDA out of memory (vmem): 1 GiB asked for on device 0, where 0 B are allocated and HBM can hold 48 MiB of 64 MiB: "
    "976 MiB would have to fit into host memory, which can hold 112 MiB of 128 MiB (pages in transit take the rest); "
    "free something, or raise --hbm, --host, --nvme or --remote"
)


class OutOfMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        torch.utils.cpp_extension.load(
            "vmem_test", [HERE / "extension.cpp"], build_directory=cls.folder.name, is_python_module=False
        )

    def succeeds(self, script, *arguments, **variables):
        extension = pathlib.Path(self.folder.name, "vmem_test.so")
        result = run(PRELUDE + textwrap.dedent(script), extension, *arguments, **variables)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_it_is_pytorchs_own_exception_with_vmems_text(self):
        self.succeeds(
            """
            error = error_of(call.allocate, 1024 * MiB, 0)
            assert type(error) is torch.OutOfMemoryError and isinstance(error, RuntimeError), type(error)
            assert type(error) is torch.cuda.OutOfMemoryError
            assert str(error) == sys.argv[2], str(error)
            """,
            TOO_MUCH,
        )

    def test_a_program_frees_and_goes_on_a_thousand_times_without_a_leak(self):
        self.succeeds(
            """
            class Mallinfo(ctypes.Structure):
                _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                                 "fsmblks", "uordblks", "fordblks", "keepcost")]
            vmem.mallinfo2.restype = Mallinfo

            def bytes_in_use():
                info = vmem.mallinfo2()
                return info.uordblks + info.hblkhd

            def fill():
                blocks = []
                while True:
                    try:
                        blocks.append(call.allocate(16 * MiB, 0))
                    except torch.OutOfMemoryError:
                        return blocks

            def repeat(times):
                for i in range(times):
                    blocks = fill()
                    assert len(blocks) == 10, len(blocks)
                    for block in blocks:
                        vmem.vmem_torch_free(block, 16 * MiB, 0, None)

            repeat(100)
            before = bytes_in_use()
            repeat(1000)
            # A thousand exceptions, if they were kept, would be more than a megabyte.
            grown = bytes_in_use() - before
            assert grown < 100_000, grown
            stats = torch._C._cuda_memoryStats(0)
            assert stats["num_ooms"] == 1100 and stats["allocated_bytes"]["all"]["current"] == 0, stats
            """
        )

    def test_it_passes_through_the_pluggable_allocator(self):
        # The only allocator function that PyTorch calls through its bindings without a GPU.
        self.succeeds(
            """
            torch.cuda.memory._get_current_allocator().allocator().set_reset_fn(call.address_of_allocate_a_pebibyte())
            for i in range(1000):
                error = error_of(torch._C._cuda_emptyCache)
                assert type(error) is torch.OutOfMemoryError, type(error)
            print(error)
            """
        )

    def test_cpp_programs_can_catch_copy_keep_and_rethrow_it(self):
        said = self.succeeds(
            """
            for i in range(1000):
                said = call.caught_in_cpp(1024 * MiB)
            print(said)
            """
        )
        self.assertEqual(said, TOO_MUCH + "\n")

    def test_the_exception_fits_into_what_is_reserved_for_it(self):
        source = (HERE.parents[1] / "src/intercept/torch_error.cpp").read_text()
        reserved = int(re.search(r"kExceptionBytes = (\d+);", source)[1])
        needed = int(self.succeeds("print(call.exception_bytes())"))
        print(f"c10::OutOfMemoryError has {needed} bytes, {reserved} are reserved")
        self.assertLess(needed, reserved)

    def test_other_errors_are_runtime_errors(self):
        said = self.succeeds(
            """
            for device in (-1, 1, 64):
                error = error_of(call.allocate, MiB, device)
                assert type(error) is RuntimeError, type(error)
                print(error)
            block = call.allocate(MiB, 0)
            assert block != 0
            """
        )
        for line, device in zip(said.splitlines(), (-1, 1, 64), strict=True):
            self.assertIn("vmem", line)
            self.assertIn(f"device {device}", line)

    def test_without_what_it_takes_in_libc10_it_is_the_error_for_everything(self):
        # Nobody translates beneath ctypes: the process ends, and says with what.
        libc10 = (pathlib.Path(torch.__file__).parent / "lib" / "libc10.so").read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder, "libc10.so")
            copy.write_bytes(libc10.replace(b"_ZTVN3c1016OutOfMemoryErrorE", b"_ZTVN3c1016OutOfReachErrorEEE"[:28]))
            result = run(
                CONTEXT + "import sys; ctypes.CDLL(sys.argv[1]); vmem.vmem_torch_alloc(1 << 30, 0, None)", copy
            )
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("terminate called after throwing an instance of 'c10::Error'", result.stderr)
        self.assertIn(TOO_MUCH, result.stderr)

    def test_without_libc10_there_is_no_memory_and_no_exception(self):
        result = run(CONTEXT + "print(vmem.vmem_torch_alloc(1 << 30, 0, None), vmem.vmem_torch_alloc(1, 0, None) is None)")
        self.assertEqual((result.returncode, result.stdout), (0, "None False\n"), result.stderr)


if __name__ == "__main__":
    print("PyTorch", torch.__version__)
    unittest.main()
