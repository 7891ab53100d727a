"""Maps the tensors of a safetensors file read-only; pages are read from the file when the GPU uses
them.

`load_file(path)` returns PyTorch tensors; `open(path)` returns addresses, types and shapes, for
code that takes device pointers. No tensor is copied, to host memory or to the GPU, and a file may
be larger than both. The file must not change while it is mapped.
"""

import builtins
import ctypes
import operator
import os

from vmem import _library, _tensors
from vmem._tensors import MappedTensor

# Neighbours in the file share a mapping up to this size. A launch whose arguments are unknown holds
# whole mappings, so a mapping should not be much larger than a tensor. Mappings consist of pages of
# 2 MiB, so small tensors should not have one each.
_MAPPING_BYTES = 32 << 20


def read_header(path):
    """The header: ({name: (dtype, shape, first byte in the file, bytes)}, {metadata}).

    Raises ValueError, OSError.
    """
    path = os.fspath(path)
    what = _tensors.unreadable(path)
    # Without O_NONBLOCK a FIFO would wait for a writer.
    with builtins.open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _tensors.header_error(what, f"its header would have {length} bytes, the file has {size}")
        if length > _tensors.HEADER_MAX:
            raise _tensors.header_error(what, f"its header would have {length} bytes, more than {_tensors.HEADER_MAX}")
        text = file.read(length)
    tensors, metadata = _tensors.parse_header(what, text, size)
    _check_overlaps(what, tensors)
    return tensors, metadata


def _check_overlaps(what, tensors):
    before, reached = None, 0
    for name, (_, _, begin, length) in sorted(tensors.items(), key=lambda each: each[1][2:]):
        if length == 0:
            continue
        if begin < reached:
            raise _tensors.header_error(what, f"tensors {_tensors.brief(before)} and {_tensors.brief(name)} overlap")
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
            raise RuntimeError(f"vmem: {_tensors.last_error(library)}")
        self.pointer = out.value

    def __del__(self):
        if getattr(self, "pointer", None) is not None:
            self._library.vmem_free(ctypes.c_void_p(self.pointer), None)


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
        if nbytes != 0 and begin % _tensors.TYPES[dtype][0] != 0:
            raise _tensors.header_error(
                _tensors.unreadable(path), f"tensor {_tensors.brief(name)} begins at byte {begin}, no multiple of the size of {dtype}; save it again"
            )
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
    return {name: _tensors.to_torch(torch, name, each, device) for name, each in open(path, index).items()}
