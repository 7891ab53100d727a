"""Processes with a real PyTorch and vmem, on the emulated driver."""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

BUILD = pathlib.Path(os.environ["VMEM_BUILD"]).resolve()
VMEM = BUILD / "bin" / "vmem"
PRELOAD = BUILD / "lib" / "libvmem_preload.so"
PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python"
UNDER_VMEM = (VMEM, "run", "--hbm", "64MiB", "--host", "128MiB", "--", sys.executable)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("VMEM_")},
    "LD_LIBRARY_PATH": str(BUILD / "tests" / "intercept" / "driver"),
    "VMEM_EMU": "hbm=512MiB,host=1GiB",
}

# PyTorch leaves the current context to the CUDA runtime, which needs a real driver: make one here.
CONTEXT = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
vmem = ctypes.CDLL(None)
vmem.vmem_torch_alloc.restype = ctypes.c_void_p
vmem.vmem_torch_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
vmem.vmem_torch_free.restype = None
vmem.vmem_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
"""


def run(script, *arguments, command=UNDER_VMEM, **variables):
    """Runs a Python script: under vmem, if nothing else is asked for."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(textwrap.dedent(script))
        file.flush()
        return subprocess.run(
            [str(part) for part in (*command, "-W", "ignore", file.name, *arguments)],
            env={**ENVIRONMENT, **{name: str(value) for name, value in variables.items()}},
            capture_output=True,
            text=True,
            timeout=600,
        )
