#!/usr/bin/env python3
"""The Python package with a real PyTorch and no GPU. scripts/test_torch.sh runs this."""

import inspect
import pathlib
import subprocess
import sys
import unittest

import torch
import torch._inductor.compile_fx

from process import CONTEXT, ENVIRONMENT, PACKAGE, UNDER_VMEM, VMEM, run

IMPORT_PACKAGE = f"import sys; sys.path.append({str(PACKAGE)!r}); import vmem.torch\n"
HAS_ALLOCATOR = "assert torch.cuda.memory.get_allocator_backend() == 'pluggable'\n"


class Package(unittest.TestCase):
    def succeeds(self, script, *arguments, **variables):
        result = run(script, *arguments, **variables)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_pytorch_calls_what_is_replaced_by_the_names_and_arguments_known(self):
        memory = inspect.getsource(torch.cuda.memory)
        for call in (
            "torch._C._cuda_memoryStats(device)",
            "torch._C._cuda_resetPeakMemoryStats(device)",
            "torch._C._cuda_resetAccumulatedMemoryStats(device)",
            "torch._C._cuda_changeCurrentAllocator(allocator.allocator())",
        ):
            self.assertIn(call, memory)
        trees = pathlib.Path(torch.__file__).parent / "_inductor" / "cudagraph_trees.py"
        self.assertIn("torch._C._cuda_checkPoolLiveAllocations(device, pool_id, unique_storages)", trees.read_text())
        self.assertEqual(list(inspect.signature(torch._inductor.compile_fx.cudagraphify).parameters)[0], "model")
        self.assertEqual(
            list(inspect.signature(torch.cuda.memory.CUDAPluggableAllocator).parameters),
            ["path_to_so_file", "alloc_fn_name", "free_fn_name"],
        )
        if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "memory_stats"):
            self.assertIn("torch._C._accelerator_getDeviceStats(device_index)", inspect.getsource(torch.accelerator.memory))

    def test_without_a_gpu_pytorch_imports_and_computes(self):
        script = "import torch; assert float(torch.ones(3).sum()) == 3; assert not torch.cuda.is_available()\n"
        self.succeeds(script + HAS_ALLOCATOR)
        self.succeeds(script, LD_LIBRARY_PATH="")
        for backend in ("backend:cudaMallocAsync", "expandable_segments:True"):
            self.succeeds(script + HAS_ALLOCATOR, PYTORCH_CUDA_ALLOC_CONF=backend)

    def test_pytorch_imported_before_the_start_up_has_the_allocator_too(self):
        # As by a .pth file in site-packages.
        self.succeeds(
            "import torch, sitecustomize\n" + HAS_ALLOCATOR,
            command=(*UNDER_VMEM, "-S"),
            PYTHONPATH=pathlib.Path(torch.__file__).parents[1],
        )

    def test_cudnn_benchmark_stays_off(self):
        script = (
            "import torch, warnings\n"
            "with warnings.catch_warnings(record=True) as said:\n"
            "    warnings.simplefilter('always')\n    torch.backends.cudnn.benchmark = True\n"
            "assert not torch.backends.cudnn.benchmark\n"
            "assert len(said) == 1 and 'stays off' in str(said[0].message), said\n"
            "torch.backends.cudnn.benchmark = False\n"
            "with torch.backends.cudnn.flags(benchmark=False): pass\n"
        )
        self.succeeds(script)

    def test_reduce_overhead_captures_nothing(self):
        self.succeeds(
            "import torch, torch._inductor.compile_fx as c\n"
            "assert c.cudagraphify(print, (), device_index=0, stack_traces=[], is_backward=False, is_inference=True) is print\n"
        )

    def test_statistics_are_vmems(self):
        self.succeeds(
            CONTEXT
            + """
import torch
block = vmem.vmem_torch_alloc(3 << 20, 0, None)
torch.cuda._initialized = True  # otherwise PyTorch does not ask
assert torch.cuda.memory_allocated(0) == torch.cuda.max_memory_allocated(0) == 3 << 20
assert torch.cuda.memory_reserved(0) >= 3 << 20
assert "3072 KiB" in torch.cuda.memory_summary(0), torch.cuda.memory_summary(0)
vmem.vmem_torch_free(block, 3 << 20, 0, None)
modules = [torch.cuda]
if hasattr(getattr(torch, "accelerator", None), "memory_stats"):
    torch.accelerator.memory._get_device_index = lambda device, optional: device
    modules.append(torch.accelerator)
for module in modules:
    assert module.memory_stats(0)["allocated_bytes.all.freed"] == 3 << 20
    assert module.memory_allocated(0) == 0
    assert module.max_memory_allocated(0) == 3 << 20
for module in modules:
    module.empty_cache()
    assert torch._C._cuda_memoryStats(0)["reserved_bytes"]["all"]["current"] == 0
    again = vmem.vmem_torch_alloc(1 << 20, 0, None)
    vmem.vmem_torch_free(again, 1 << 20, 0, None)
    module.reset_peak_memory_stats(0)
    module.reset_accumulated_memory_stats(0)
    assert module.max_memory_allocated(0) == 0
"""
        )

    def test_pools_hold_what_is_allocated_in_them(self):
        begin = next(
            (n for n in ("_cuda_beginAllocateCurrentThreadToPool", "_cuda_beginAllocateToPool") if hasattr(torch._C, n)), None
        )
        end = next(n for n in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool") if hasattr(torch._C, n))
        if begin is None:
            self.skipTest("this PyTorch begins pools for a stream of a GPU only")
        self.succeeds(
            CONTEXT
            + f"""
import torch
pool = (7, 1)
torch._C.{begin}(0, pool)
first, second = (vmem.vmem_torch_alloc(3 << 20, 0, None) for _ in range(2))
torch._C.{end}(0, pool)
outside = vmem.vmem_torch_alloc(3 << 20, 0, None)
assert torch._C._cuda_checkPoolLiveAllocations(0, pool, {{first, second}})
assert not torch._C._cuda_checkPoolLiveAllocations(0, pool, {{first, outside}})
vmem.vmem_torch_free(second, 3 << 20, 0, None)
assert torch._C._cuda_checkPoolLiveAllocations(0, pool, {{first}})
torch._C._cuda_releasePool(0, pool)
"""
        )

    def test_a_second_allocator_is_refused(self):
        script = """
import torch
from vmem import _library
other = torch.cuda.memory.CUDAPluggableAllocator(_library.path_of_preloaded(), "vmem_torch_alloc", "vmem_torch_free")
torch.cuda.memory.change_current_allocator(other)
"""
        result = run(IMPORT_PACKAGE + script)
        self.assertEqual(result.returncode, 1)
        self.assertIn("RuntimeError: PyTorch has vmem's allocator already", result.stderr)
        self.succeeds(IMPORT_PACKAGE + script, command=(*UNDER_VMEM[:-2], "--no-python", *UNDER_VMEM[-2:]))

    def test_enable_starts_the_script_once(self):
        said = self.succeeds(
            IMPORT_PACKAGE
            + "print('started', flush=True)\n"
            + "for i in range(2): vmem.torch.enable(hbm='64MiB', host='128MiB')\n"
            + "import os, torch\n"
            + HAS_ALLOCATOR
            + "print(os.environ['VMEM_HBM'], sys.argv[1:])\n",
            "an argument",
            command=(sys.executable,),
        )
        self.assertEqual(said, "started\nstarted\n64MiB ['an argument']\n")

    def test_enable_after_cuda_was_initialised_is_refused(self):
        # PyTorch's own note of it: there is no GPU to initialise.
        script = "import torch; torch.cuda._initialized = True\nvmem.torch.enable(hbm='64MiB')\n"
        result = run(IMPORT_PACKAGE + script, command=(sys.executable,))
        self.assertEqual(result.returncode, 1)
        self.assertIn("CUDA is initialised. Call it before the first tensor on a GPU", result.stderr)

    def test_enable_after_importing_pytorch_is_in_time(self):
        said = self.succeeds(
            "import torch\n" + IMPORT_PACKAGE + "vmem.torch.enable(hbm='64MiB', host='128MiB')\n" + HAS_ALLOCATOR + "print('fine')",
            command=(sys.executable,),
        )
        self.assertEqual(said, "fine\n")

    def test_other_ways_to_start(self):
        fine = "import torch; assert torch.cuda.memory.get_allocator_backend() == 'pluggable'; print('fine')"
        for words in ((*UNDER_VMEM, "-c", fine), (VMEM, "run", "--", "sh", "-c", '"$0" -c "$1"', sys.executable, fine)):
            result = subprocess.run([str(w) for w in words], env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
            self.assertEqual((result.returncode, result.stdout), (0, "fine\n"), result.stderr)


if __name__ == "__main__":
    print("PyTorch", torch.__version__)
    unittest.main()
