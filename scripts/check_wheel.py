#!/usr/bin/env python3
"""check_wheel.py WHEEL: the wheel is self-contained, and works from a virtual environment that has
nothing else.

Its native files need what is beside them or belongs to glibc, as those of check_dist.py. The `vmem`
command, `python -m vmem` and vmem.torch.enable find each other and the emulated driver there;
tests/intercept/fake_torch stands in PyTorch's place.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

from check_dist import is_elf, machine_paths, needed_glibc, reaches_outside, sbom_problems

ROOT = pathlib.Path(__file__).resolve().parent.parent
NATIVE = ("bin/vmem", "lib/libvmem_gpu.so", "lib/libvmem_preload.so",
          "lib/vmem/emulated/libcuda.so.1", "libexec/vmem/ucx-address")
SIZES = ("--hbm", "64MiB", "--host", "512MiB")
SCRIPT = """
import ctypes, sys
if sys.argv[1:] == ["enable"]:
    import vmem.torch
    vmem.torch.enable(hbm="64MiB", host="512MiB")
path = [*sys.path, "last"]
sys.path[:] = path
import torch
assert sys.path == path
driver = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
assert torch.current.alloc(128 << 20, 0, None)
assert torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["current"] == 128 << 20
print("fine")
"""


def problems_of_files(package: pathlib.Path) -> list[str]:
    native = package / "native"
    found = [f"native/{name} is missing" for name in NATIVE if not (native / name).is_file()]
    for path in (path for path in package.rglob("*") if path.is_file()):
        problems = machine_paths(path, ROOT)
        if is_elf(path):
            problems += reaches_outside(path, native)
        found += [f"{path.relative_to(package)}: {problem}" for problem in problems]
    if not list(native.glob("share/doc/vmem/third-party/*")):
        found.append("no licences of third parties")
    return found + ([] if found else sbom_problems(native))


def problems_of_use(environment: pathlib.Path, version: str, work: pathlib.Path) -> list[str]:
    python, vmem = environment / "bin/python", environment / "bin/vmem"
    script = work / "script.py"
    script.write_text(SCRIPT)
    variables = {
        "VMEM_DRIVER": "emulated",
        "PYTHONPATH": str(ROOT / "tests/intercept/fake_torch"),
        "VMEM_EMU": "hbm=512MiB,host=1GiB",
    }
    found = []
    for says, command in (
        (f"vmem {version} ", (vmem, "--version")),
        (version, (python, "-c", "import vmem; print(vmem.__version__)")),
        ("hbm", (vmem, "options")),
        ("/vmem/native/bin/vmem", (python, "-c", "import vmem._library as l; print(l.program())")),
        ("fine", (vmem, "run", *SIZES, "--", python, script)),
        # A Python that does not have the package.
        ("fine", (vmem, "run", *SIZES, "--", sys.executable, script)),
        ("fine", (python, "-m", "vmem", *SIZES, script)),
        ("fine", (python, script, "enable")),
    ):
        done = subprocess.run(command, env=variables, cwd="/", capture_output=True, text=True, timeout=120)
        if done.returncode != 0 or says not in done.stdout:
            line = " ".join(map(str, command))
            found.append(f"{line}: exit {done.returncode}: {done.stdout[:200]!r}, {done.stderr.strip()[-500:]}")
    return found


def main() -> int:
    wheel = pathlib.Path(sys.argv[1]).resolve()
    _, version, tag = wheel.stem.split("-", 2)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        environment = work / "environment"
        # Without its own pip, which Debian keeps in a package apart; ours installs into it.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        pip = (sys.executable, "-m", "pip", "--python", environment / "bin/python", "--quiet")
        subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True)
        (package,) = environment.glob("lib/python*/site-packages/vmem")
        problems = [] if re.fullmatch(r"py3-none-manylinux_2_\d+_x86_64", tag) else [f"the tag is {tag}"]
        problems += problems_of_files(package) or problems_of_use(environment, version, work)
        glibc = max(needed_glibc(package / "native" / name) for name in NATIVE if (package / "native" / name).is_file())
    for problem in problems:
        print(f"check_wheel: {problem}")
    print(f"{wheel.name}: {wheel.stat().st_size / (1 << 20):.1f} MiB, needs glibc {'.'.join(map(str, glibc))}"
          f"{'' if problems else ', self-contained'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
