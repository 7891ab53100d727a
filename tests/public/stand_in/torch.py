"""A stand-in for PyTorch on machines without a GPU: what examples/published/weights.py and
vmem.torch use of it, on the emulated driver.

A tensor on "cuda" is memory of vmem and comes through DLPack only. Its sum reads it by vmem_read.
Weights are random bytes.
"""

import array
import ctypes
import math
import random
import types

strided = "strided"


class dtype:
    def __init__(self, name, size):
        self.name, self.size = name, size

    def __str__(self):
        return f"torch.{self.name}"


uint8, int32, float32 = dtype("uint8", 1), dtype("int32", 4), dtype("float32", 4)
_FROM_DLPACK = {(1, 8): uint8, (0, 32): int32, (2, 32): float32}  # code and bits


class device:
    """Within a with block, modules are made there."""

    entered = []

    def __init__(self, name):
        name, _, index = str(name).partition(":")
        self.type, self.index = name, int(index) if index else None

    def __enter__(self):
        device.entered.append(self)

    def __exit__(self, *_):
        device.entered.pop()


def _check(status):
    if status != 0:
        process = ctypes.CDLL(None)
        process.vmem_last_error.restype = ctypes.c_char_p
        raise RuntimeError(process.vmem_last_error().decode())


class Tensor:
    """`pointer` is None on the device "meta"; `keep` lives as long."""

    layout = strided

    def __init__(self, shape, of, at, pointer=None, keep=None):
        self.shape, self.dtype, self.device, self.pointer, self.keep = tuple(shape), of, at, pointer, keep

    is_cuda = property(lambda self: self.device.type == "cuda")

    def data_ptr(self):
        return self.pointer

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return self.dtype.size

    def detach(self):
        return self

    contiguous = detach

    def view(self, of):
        if of.size != self.dtype.size:
            raise NotImplementedError(f"{self.dtype} as {of}")
        return Tensor(self.shape, of, self.device, self.pointer, self.keep)

    def sum(self):
        if self.dtype is not int32:
            raise NotImplementedError(f"a sum of {self.dtype}")
        words = array.array("i", bytes(4 * self.numel()))
        to, nbytes = ctypes.c_void_p(words.buffer_info()[0]), ctypes.c_size_t(4 * self.numel())
        if self.is_cuda:
            _check(ctypes.CDLL(None).vmem_read(to, ctypes.c_void_p(self.pointer), nbytes))
        else:
            ctypes.memmove(to, self.pointer, 4 * self.numel())
        return types.SimpleNamespace(item=lambda: sum(words))


def empty(*shape, dtype, device):
    """Where vmem.torch asks for the number of a device; nobody uses the memory."""
    device.index = device.index or 0
    return Tensor(shape, dtype, device)


def manual_seed(seed):
    random.seed(seed)


def _parameter(*shape):
    at = device.entered[-1] if device.entered else device("cpu")
    if at.type == "meta":
        return Tensor(shape, float32, at)
    data = ctypes.create_string_buffer(random.randbytes(4 * math.prod(shape)), 4 * math.prod(shape))
    return Tensor(shape, float32, at, ctypes.addressof(data), data)


class _Module:
    def __init__(self):
        self.parameters = {}

    def state_dict(self):
        return dict(self.parameters)

    def load_state_dict(self, tensors, assign):
        if not assign or {name: each.shape for name, each in tensors.items()} != {name: each.shape for name, each in self.parameters.items()}:
            raise RuntimeError(f"tensors of other names or shapes: {sorted(tensors)}")
        self.parameters = dict(tensors)


class _Linear(_Module):
    def __init__(self, inputs, outputs):
        self.parameters = {"weight": _parameter(outputs, inputs), "bias": _parameter(outputs)}


class _Sequential(_Module):
    def __init__(self, *modules):
        self.parameters = {f"{i}.{name}": each for i, module in enumerate(modules) for name, each in module.parameters.items()}


def _from_dlpack(capsule):
    class _Tensor(ctypes.Structure):
        """The fields of DLTensor."""

        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32),
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
        ]

    get = ctypes.PyDLL(None).PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = _Tensor.from_address(get(capsule, b"dltensor"))
    if found.device_type != 2 or found.lanes != 1:
        raise RuntimeError("it is not on a CUDA device")
    of = _FROM_DLPACK[found.code, found.bits]
    return Tensor(found.shape[: found.ndim], of, device(f"cuda:{found.device_id}"), found.data, capsule)


nn = types.SimpleNamespace(Linear=_Linear, GELU=_Module, Sequential=_Sequential)
utils = types.SimpleNamespace(dlpack=types.SimpleNamespace(from_dlpack=_from_dlpack))
# Without CUDA, vmem gives PyTorch no allocator.
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(is_built=lambda: False))
cuda = types.SimpleNamespace(is_initialized=lambda: False, is_available=lambda: False)
