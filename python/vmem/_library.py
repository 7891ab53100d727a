"""Where the native parts are, and whether they run under this process already."""

import ctypes
import os
import shutil
import subprocess
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def preloaded():
    """The interception library, if this process was started with it; otherwise None."""
    process = ctypes.CDLL(None)
    return process if hasattr(process, "vmem_torch_alloc") else None


def api():
    """A library with vmem's C functions that this process has loaded. Raises RuntimeError when
    there is none.
    """
    process = ctypes.CDLL(None)
    if hasattr(process, "vmem_map_file"):
        return process
    raise RuntimeError("vmem does not run under this process: start it with `vmem run`, or name the library that you called vmem_init of")


def started_api(device):
    """As api(), with vmem started: under `vmem run` the first allocation starts it, which is made
    here on `device`.
    """
    process = preloaded()
    if process is not None:
        process.vmem_torch_alloc.restype = ctypes.c_void_p
        pointer = process.vmem_torch_alloc(ctypes.c_ssize_t(1), ctypes.c_int(device), None)
        process.vmem_torch_free(ctypes.c_void_p(pointer), ctypes.c_ssize_t(1), ctypes.c_int(device), None)
    return api()


def path_of_preloaded():
    """Its file. Raises RuntimeError when it is not there."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            if line.rstrip().endswith("/libvmem_preload.so"):
                return line.split(maxsplit=5)[5].strip()
    raise RuntimeError("libvmem_preload.so is not loaded in this process")


def program():
    """The `vmem` program: of this installation, else the one on PATH. Raises RuntimeError when
    there is none.
    """
    for folder in ("native/bin", "../../../../bin", "../../build/release/bin"):
        candidate = os.path.join(_HERE, folder, "vmem")
        if os.access(candidate, os.X_OK):
            return os.path.normpath(candidate)
    found = shutil.which("vmem")
    if found is None:
        raise RuntimeError("the vmem program is neither beside this package nor on PATH; install vmem as a whole")
    return found


def version():
    """MAJOR.MINOR.PATCH of the library in this process, else of the program. Raises RuntimeError
    when there is neither.
    """
    process = ctypes.CDLL(None)
    if hasattr(process, "vmem_version"):
        process.vmem_version.restype = ctypes.c_char_p
        return process.vmem_version().decode()
    said = subprocess.run([program(), "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return said.split()[1]  # vmem VERSION (commit HASH)


def run(options, command):
    """Replaces this process by `command` with vmem under it."""
    sys.stdout.flush()
    sys.stderr.flush()
    vmem = program()
    os.execv(vmem, [vmem, "run", *options, "--", *command])


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def check(options):
    """Raises ValueError for options that `vmem run` refuses, RuntimeError where the machine cannot
    do what vmem needs.
    """
    done = subprocess.run([program(), "run", "--check", *options], stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return
    why = done.stderr.strip()
    why = why[len("vmem run: "):] if why.startswith("vmem run: ") else why
    raise (ValueError if done.returncode == 2 else RuntimeError)(f"vmem: {why}")


def main():
    """The `vmem` command that a wheel installs. Not by program(), which may find this command."""
    vmem = os.path.join(_HERE, "native/bin/vmem")
    os.execv(vmem, [vmem, *sys.argv[1:]])
