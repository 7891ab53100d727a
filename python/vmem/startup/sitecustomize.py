"""Runs at the start of every Python under `vmem run`: installs vmem's allocator when PyTorch is
imported, and turns off the memory pools of CuPy and JAX, so that vmem sees single arrays.

It also runs the sitecustomize module that it hides.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _AfterImport:
    """Calls `then(module)` once, after the import of `name`."""

    def __init__(self, name, then):
        self.name, self.then, self.looking = name, then, False

    def find_spec(self, name, path=None, target=None):
        if name != self.name or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        # A spec may be looked up without an import, and an import may fail: the hook stays until a
        # module
    # has been executed.
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self.then(module)

            spec.loader.exec_module = exec_module
        return spec


def _give_allocator(torch):
    # For the package; last, because the program's own path may name the same folder.
    sys.path.append(os.path.dirname(os.path.dirname(_HERE)))
    try:
        import vmem.torch
    finally:
        sys.path.pop()
    if vmem.torch.running():
        vmem.torch.install(torch)
    else:
        print("vmem: LD_PRELOAD was changed on the way to this Python, which runs without vmem", file=sys.stderr)


def _run_hidden():
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _adjust_inductor(compile_fx):
    vmem = sys.modules.get("vmem.torch")
    if vmem is not None and vmem.running():
        vmem.adjust_inductor(compile_fx)


def _without_pool(cupy):
    cupy.cuda.set_allocator(None)


def _after_import(name, then):
    if name in sys.modules:  # by a .pth file, which Python reads before
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
_after_import("cupy", _without_pool)
_after_import("torch", _give_allocator)
_after_import("torch._inductor.compile_fx", _adjust_inductor)
_run_hidden()
