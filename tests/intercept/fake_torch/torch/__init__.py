"""As much of PyTorch as vmem.torch touches, over nothing: it shows that the parts find each other on a machine without a GPU."""

import ctypes
import types


class _Allocator:
    def __init__(self):
        self.functions = {}

    def set_record_stream_fn(self, address):
        self.functions["record_stream"] = address

    def set_reset_fn(self, address):
        self.functions["reset"] = address


class CUDAPluggableAllocator:
    def __init__(self, path, alloc, free):
        library = ctypes.CDLL(path)
        self.alloc, self.free = getattr(library, alloc), getattr(library, free)
        self.alloc.restype = ctypes.c_void_p
        self.alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._allocator = _Allocator()


current = None


def change_current_allocator(allocator):
    global current
    current = allocator


backends = types.SimpleNamespace(cuda=types.SimpleNamespace(is_built=lambda: True))
cuda = types.SimpleNamespace(
    is_initialized=lambda: False,
    memory=types.SimpleNamespace(
        CUDAPluggableAllocator=CUDAPluggableAllocator, change_current_allocator=change_current_allocator
    ),
)
_C = types.SimpleNamespace()
