"""Maps the tensors of a safetensors file read-only; pages are read from the file when the GPU uses
them.

`load_file(path)` returns PyTorch tensors; `open(path)` returns addresses, types and shapes, for
code that takes device pointers. No tensor is copied, to host memory or to the GPU, and a file may
be larger than both. The file must not change while it is mapped.
"""

import builtins
import ctypes
import json
import operator
import os
import reprlib
import threading

from vmem import _library

# Name in safetensors: bytes of an element, code and bits in DLPack, name in PyTorch. Types without
# a code in older DLPack are exported as bytes.
_UNSIGNED, _SIGNED, _FLOAT, _BFLOAT = 1, 0, 2, 4
_TYPES = {
    "F64": (8, _FLOAT, 64, "float64"),
    "F32": (4, _FLOAT, 32, "float32"),
    "F16": (2, _FLOAT, 16, "float16"),
    "BF16": (2, _BFLOAT, 16, "bfloat16"),
    "I64": (8, _SIGNED, 64, "int64"),
    "I32": (4, _SIGNED, 32, "int32"),
    "I16": (2, _SIGNED, 16, "int16"),
    "I8": (1, _SIGNED, 8, "int8"),
    "U64": (8, _UNSIGNED, 64, "uint64"),
    "U32": (4, _UNSIGNED, 32, "uint32"),
    "U16": (2, _UNSIGNED, 16, "uint16"),
    "U8": (1, _UNSIGNED, 8, "uint8"),
    "BOOL": (1, _UNSIGNED, 8, "bool"),
    "F8_E4M3": (1, _UNSIGNED, 8, "float8_e4m3fn"),
    "F8_E5M2": (1, _UNSIGNED, 8, "float8_e5m2"),
    "F8_E8M0": (1, _UNSIGNED, 8, "float8_e8m0fnu"),
}
_HEADER_MAX = 100_000_000  # bytes, as the format has it
_DIGITS_MAX = 20  # more than any count of 63 bits has
# Neighbours in the file share a mapping up to this size. A launch whose arguments are unknown holds
# whole mappings, so a mapping should not be much larger than a tensor. Mappings consist of pages of
# 2 MiB, so small tensors should not have one each.
_MAPPING_BYTES = 32 << 20


def _header_error(path, why):
    return ValueError(f"{path} is no safetensors file that can be read: {why}")


def read_header(path):
    """The header: ({name: (dtype, shape, first byte in the file, bytes)}, {metadata}).

    Raises ValueError, OSError.
    """
    path = os.fspath(path)
    # Without O_NONBLOCK a FIFO would wait for a writer.
    with builtins.open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _header_error(path, f"its header would have {length} bytes, the file has {size}")
        if length > _HEADER_MAX:
            raise _header_error(path, f"its header would have {length} bytes, more than {_HEADER_MAX}")
        text = file.read(length)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=lambda pairs: _once_each(path, pairs), parse_int=_integer)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _header_error(path, f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise _header_error(path, "its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _header_error(path, "its __metadata__ is no JSON object")
    data = 8 + length
    tensors = {name: _tensor_entry(path, name, entry, data, size) for name, entry in header.items()}
    _check_overlaps(path, tensors)
    return tensors, metadata


def _integer(digits):
    # Conversion takes quadratic time, and no valid count is longer.
    return int(digits) if len(digits) <= _DIGITS_MAX else float("inf")


def _brief(value):
    """Shortens a value for messages: it may be as long as the whole header."""
    return reprlib.repr(value)


def _elements(shape, most):
    """The product of the extents, or a number above `most` if the product is larger.

    The whole product may have millions of digits.
    """
    if 0 in shape:
        return 0
    elements = 1
    for extent in shape:
        elements *= extent
        if elements > most:
            break
    return elements


def _once_each(path, pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _header_error(path, "a name stands twice in its header")
    return found


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _tensor_entry(path, name, entry, data, size):
    named = f"tensor {_brief(name)}"
    known = isinstance(entry, dict) and {"dtype", "shape", "data_offsets"} <= entry.keys()
    if not known:
        raise _header_error(path, f"{named} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _TYPES:
        raise _header_error(path, f"{named} has dtype {_brief(dtype)}; known are {', '.join(_TYPES)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)) or offsets[0] > offsets[1]:
        raise _header_error(path, f"{named} has data_offsets {_brief(offsets)}")
    begin, end = offsets
    if data + end > size:
        raise _header_error(path, f"{named} ends at byte {data + end} and the file at {size}: it was cut off")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise _header_error(path, f"{named} has shape {_brief(shape)}")
    wanted = _elements(shape, end - begin) * _TYPES[dtype][0]
    if end - begin != wanted:
        more = "more" if wanted > end - begin else wanted
        raise _header_error(path, f"{named} has {end - begin} bytes, and {dtype} of shape {_brief(shape)} takes {more}")
    return dtype, tuple(shape), data + begin, end - begin


def _check_overlaps(path, tensors):
    before, reached = None, 0
    for name, (_, _, begin, length) in sorted(tensors.items(), key=lambda each: each[1][2:]):
        if length == 0:
            continue
        if begin < reached:
            raise _header_error(path, f"tensors {_brief(before)} and {_brief(name)} overlap")
        before, reached = name, begin + length


class _Mapping:
    """A mapping by vmem_map_file. Ends with its last reference, after the GPU work that uses it."""

    def __init__(self, library, path, begin, length, device):
        self._library = library
        self.begin = begin
        out = ctypes.c_void_p()
        status = library.vmem_map_file(
            ctypes.byref(out), os.fsencode(path), ctypes.c_uint64(begin), ctypes.c_uint64(length), ctypes.c_int(device)
        )
        if status != 0:
            raise RuntimeError(f"vmem: {_last_error(library)}")
        self.pointer = out.value

    def __del__(self):
        if getattr(self, "pointer", None) is not None:
            self._library.vmem_free(ctypes.c_void_p(self.pointer), None)


def _last_error(library):
    library.vmem_last_error.restype = ctypes.c_char_p
    return library.vmem_last_error().decode(errors="replace")


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter)]

_CUDA = 2  # DLPack's device type
_exported = {}  # address of a managed tensor: what must live as long as it
_exported_lock = threading.Lock()


@_Deleter
def _delete(managed):
    with _exported_lock:
        kept = _exported.pop(ctypes.addressof(managed.contents), None)
    del kept  # which may end a mapping, without the lock


# Called for capsules whose tensor was not taken: those still have their first name.
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CAPSULE_NAME = b"dltensor"
_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


@_Destructor
def _drop_unused(capsule):
    if _capsule_is(capsule, _CAPSULE_NAME):
        _delete(ctypes.cast(_capsule_pointer(capsule, _CAPSULE_NAME), ctypes.POINTER(_DLManagedTensor)))


class MappedTensor:
    """A tensor of a mapped file: `pointer`, `dtype`, `shape`, `nbytes`, `device`.

    `pointer` is None if there are no elements; `dtype` is safetensors' name. The tensor keeps its
    mapping alive, as do tensors made of it through DLPack. A write is an illegal-address error.
    """

    def __init__(self, mapping, pointer, dtype, shape, nbytes, device):
        self._mapping = mapping
        self.pointer = pointer
        self.dtype = dtype
        self.shape = shape
        self.nbytes = nbytes
        self.device = device

    def __dlpack_device__(self):
        return (_CUDA, self.device)

    def __dlpack__(self, *, stream=None, **_):
        """F8 and BOOL become bytes. `stream` is ignored: no queued work writes to the tensor."""
        _, code, bits, _ = _TYPES[self.dtype]
        shape = (ctypes.c_int64 * max(1, len(self.shape)))(*self.shape)
        managed = _DLManagedTensor()
        managed.dl_tensor.data = self.pointer
        managed.dl_tensor.device = _DLDevice(_CUDA, self.device)
        managed.dl_tensor.ndim = len(self.shape)
        managed.dl_tensor.dtype = _DLDataType(code, bits, 1)
        managed.dl_tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = _delete
        address = ctypes.addressof(managed)
        with _exported_lock:
            _exported[address] = (managed, shape, self._mapping)
        return _capsule_new(address, _CAPSULE_NAME, _drop_unused)


def _groups(tensors):
    """Groups of neighbours that share a mapping: [(first byte, bytes, [names])]."""
    groups = []
    for name, (_, _, begin, length) in sorted(tensors.items(), key=lambda each: each[1][2:]):
        if length == 0:
            continue
        if groups and begin + length - groups[-1][0] <= _MAPPING_BYTES:
            groups[-1][1] = begin + length - groups[-1][0]
            groups[-1][2].append(name)
        else:
            groups.append([begin, length, [name]])
    return groups


def open(path, device=0, library=None):
    """Maps a file for the GPU `device`; returns {name: MappedTensor}.

    `library` is a ctypes.CDLL of libvmem_gpu.so after vmem_init. Not needed under `vmem run`, or if
    libvmem_gpu was loaded with RTLD_GLOBAL. Raises ValueError, OSError, RuntimeError.
    """
    path = os.fspath(path)
    if library is None:
        library = _library.api()
    device = operator.index(device)
    tensors, _ = read_header(path)
    for name, (dtype, _, begin, nbytes) in tensors.items():
        if nbytes != 0 and begin % _TYPES[dtype][0] != 0:
            raise _header_error(path, f"tensor {_brief(name)} begins at byte {begin}, no multiple of the size of {dtype}; save it again")
    found = {}
    for begin, length, names in _groups(tensors):
        mapping = _Mapping(library, path, begin, length, device)
        for name in names:
            dtype, shape, at, nbytes = tensors[name]
            found[name] = MappedTensor(mapping, mapping.pointer + at - begin, dtype, shape, nbytes, device)
    for name, (dtype, shape, _, nbytes) in tensors.items():
        if nbytes == 0:
            found[name] = MappedTensor(None, None, dtype, shape, 0, device)
    return {name: found[name] for name in tensors}


def load_file(path, device="cuda"):
    """Maps a file; returns {name: torch.Tensor} on a CUDA device: read-only, for inference.

    Needs `vmem run`. Raises as `open`, and RuntimeError if vmem does not run under this process or
    the installed PyTorch lacks a type.
    """
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"device {device}: mapped tensors are on CUDA devices")
    if _library.preloaded() is None:
        raise RuntimeError("vmem does not run under this process; start it with `vmem run`, or call vmem.torch.enable() first")
    # The first allocation starts vmem.
    index = torch.empty(1, dtype=torch.uint8, device=device).device.index
    return {name: _to_torch(torch, name, each, device) for name, each in open(path, index).items()}


def _to_torch(torch, name, mapped, device):
    type_name = _TYPES[mapped.dtype][3]
    dtype = getattr(torch, type_name, None)
    if dtype is None:
        raise RuntimeError(f"tensor {name!r} is {mapped.dtype}, and this PyTorch has no {type_name}")
    if mapped.nbytes == 0:
        return torch.empty(mapped.shape, dtype=dtype, device=device)
    tensor = torch.utils.dlpack.from_dlpack(mapped.__dlpack__())
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
