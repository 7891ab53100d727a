"""Tensors in vmem memory that others wrote: their types, their descriptions in the header of
safetensors, and DLPack.
"""

import ctypes
import json
import reprlib
import threading

# Name in safetensors: bytes of an element, code and bits in DLPack, name in PyTorch. Types without
# a code in older DLPack are exported as bytes.
_UNSIGNED, _SIGNED, _FLOAT, _BFLOAT = 1, 0, 2, 4
TYPES = {
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
HEADER_MAX = 100_000_000  # bytes, as the format has it
_DIGITS_MAX = 20  # more than any count of 63 bits has


def unreadable(what):
    return f"{what} cannot be read as safetensors"


def header_error(what, why):
    return ValueError(f"{what}: {why}")


def parse_header(what, text, size):
    """The header's bytes as JSON: ({name: (dtype, shape, first byte, bytes)}, {metadata}). First
    bytes count from the header's length, which the header follows; `size` is that of all. `what`
    begins messages, as unreadable() does.

    Raises ValueError.
    """
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=lambda pairs: _once_each(what, pairs), parse_int=_integer)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise header_error(what, f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise header_error(what, "its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise header_error(what, "its __metadata__ is no JSON object")
    data = 8 + len(text)
    return {name: _tensor_entry(what, name, entry, data, size) for name, entry in header.items()}, metadata


def _integer(digits):
    # Conversion takes quadratic time, and no valid count is longer.
    return int(digits) if len(digits) <= _DIGITS_MAX else float("inf")


def brief(value):
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


def _once_each(what, pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise header_error(what, "a name stands twice in its header")
    return found


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _tensor_entry(what, name, entry, data, size):
    named = f"tensor {brief(name)}"
    known = isinstance(entry, dict) and {"dtype", "shape", "data_offsets"} <= entry.keys()
    if not known:
        raise header_error(what, f"{named} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in TYPES:
        raise header_error(what, f"{named} has dtype {brief(dtype)}; known are {', '.join(TYPES)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)) or offsets[0] > offsets[1]:
        raise header_error(what, f"{named} has data_offsets {brief(offsets)}")
    begin, end = offsets
    if data + end > size:
        raise header_error(what, f"{named} ends at byte {data + end}, and all of it at {size}: it was cut off")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise header_error(what, f"{named} has shape {brief(shape)}")
    wanted = _elements(shape, end - begin) * TYPES[dtype][0]
    if end - begin != wanted:
        more = "more" if wanted > end - begin else wanted
        raise header_error(what, f"{named} has {end - begin} bytes, and {dtype} of shape {brief(shape)} takes {more}")
    return dtype, tuple(shape), data + begin, end - begin


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
# Not ctypes.pythonapi, to whose functions other modules give prototypes of their own.
_python = ctypes.PyDLL(None)
_capsule_new = _python.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_capsule_is = _python.PyCapsule_IsValid
_capsule_is.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_capsule_pointer = _python.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


@_Destructor
def _drop_unused(capsule):
    if _capsule_is(capsule, _CAPSULE_NAME):
        _delete(ctypes.cast(_capsule_pointer(capsule, _CAPSULE_NAME), ctypes.POINTER(_DLManagedTensor)))


class MappedTensor:
    """A tensor of a mapped file or of a published region: `pointer`, `dtype`, `shape`, `nbytes`,
    `device`.

    `pointer` is None if there are no elements; `dtype` is safetensors' name. The tensor keeps its
    mapping or region open, as do tensors made of it through DLPack. A write is an illegal-address
    error.
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
        _, code, bits, _ = TYPES[self.dtype]
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


def last_error(library):
    library.vmem_last_error.restype = ctypes.c_char_p
    return library.vmem_last_error().decode(errors="replace")


def to_torch(torch, name, mapped, device):
    type_name = TYPES[mapped.dtype][3]
    dtype = getattr(torch, type_name, None)
    if dtype is None:
        raise RuntimeError(f"tensor {name!r} is {mapped.dtype}, and this PyTorch has no {type_name}")
    if mapped.nbytes == 0:
        return torch.empty(mapped.shape, dtype=dtype, device=device)
    tensor = torch.utils.dlpack.from_dlpack(mapped.__dlpack__())
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
