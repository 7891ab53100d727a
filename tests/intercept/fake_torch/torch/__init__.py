"""A stand-in for PyTorch, as far as vmem.torch uses it, for machines without a GPU."""

import ctypes
import types


class _Allocator:
    def __init__(self):
        self.functions = {}

    def set_record_stream_fn(self, address):
        self.functions["record_stream"] = address

    def set_reset_fn(self, address):
        self.functions["reset"] = address

    def set_begin_allocate_to_pool(self, address):
        self.functions["begin_allocate_to_pool"] = address

    def set_end_allocate_to_pool_fn(self, address):
        self.functions["end_allocate_to_pool"] = address

    def set_release_pool(self, address):
        self.functions["release_pool"] = address


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


backends = types.SimpleNamespace(
    cuda=types.SimpleNamespace(is_built=lambda: True),
    cudnn=types.SimpleNamespace(CudnnModule=type("CudnnModule", (), {})),
    ContextProp=lambda getter, setter: None,
)
cuda = types.SimpleNamespace(
    is_initialized=lambda: False,
    memory=types.SimpleNamespace(
        CUDAPluggableAllocator=CUDAPluggableAllocator, change_current_allocator=change_current_allocator
    ),
)
_C = types.SimpleNamespace(_get_cudnn_benchmark=lambda: False)
