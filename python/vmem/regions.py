"""Publishes tensors to a cluster as one read-only region, and opens what others have published.

`publish(name, tensors)` packs tensors into a region of their own; `open(name)` returns addresses,
types and shapes, at the addresses that they have everywhere. Nothing is copied when a region is
opened: pages come with their first use. Needs the option cluster. For PyTorch see
`vmem.torch.publish_state_dict`.

A region begins like a file of safetensors: the header's length in 8 bytes, the header, the data.
Each tensor begins at a multiple of 256 bytes. Tensors of one address and size are stored once.
"""

import ctypes
import json
import math
import operator
import time

from vmem import _library, _tensors
from vmem._tensors import MappedTensor

_ALIGNMENT = 256  # of tensors, as kernels like it
_LEAST_BYTES = 2 << 20  # smaller allocations share pages, and cannot be published
_INVALID_POINTER, _IN_USE, _LOST, _TIMEOUT = 5, 8, 11, 12  # vmem_status
_AT_ONCE_US = 1  # 0 would be 30 seconds
_END_US = 5_000_000  # for others to take over what nobody closes
_WAIT_MAX = 10**9  # seconds
_EXPIRES_MAX = 10**10  # seconds
_COPIES_MAX = 8  # as in vmem/cluster.h


class _Options(ctypes.Structure):
    """vmem_publish_options of vmem/cluster.h."""

    _fields_ = [
        ("copies", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("expires_s", ctypes.c_uint64),
        ("wait_us", ctypes.c_uint64),
        ("readers", ctypes.c_char_p),
    ]


class _Statistics(ctypes.Structure):
    """vmem_published_statistics of vmem/cluster.h."""

    _fields_ = [("struct_bytes", ctypes.c_uint32), ("reserved", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64)
        for name in (
            "published_regions",
            "opened_regions",
            "sent_pages",
            "sent_bytes",
            "same_pages",
            "refused_requests",
            "fetched_pages",
            "fetched_bytes",
            "reused_pages",
            "retries",
            "mismatches",
            "cached_bytes",
            "cache_limit_bytes",
            "dropped_pages",
            "dropped_bytes",
            "disk_cached_bytes",
            "disk_cache_limit_bytes",
            "disk_stored_pages",
            "disk_loaded_pages",
        )
    ]


class Source:
    """A tensor to be published: `dtype` is safetensors' name; `pointer` any address that CUDA or
    the host has, of `nbytes` contiguous bytes; `keep` lives as long.
    """

    def __init__(self, dtype, shape, pointer, nbytes, keep=None, on_host=True):
        self.dtype, self.shape, self.pointer, self.nbytes, self.keep, self.on_host = dtype, tuple(shape), pointer, nbytes, keep, on_host


def _error(library, status):
    message = f"vmem: {_tensors.last_error(library)}"
    return TimeoutError(message) if status == _TIMEOUT else RuntimeError(message)


def _check(library, status):
    if status != 0:
        raise _error(library, status)


def _wait_us(wait):
    if not (isinstance(wait, (int, float)) and math.isfinite(wait) and 0 <= wait <= _WAIT_MAX):
        raise ValueError(f"wait is {wait!r}: seconds, from 0 to {_WAIT_MAX}")
    return ctypes.c_uint64(max(1, int(wait * 1e6)))


def _copies(copies):
    copies = operator.index(copies)
    if not 0 <= copies <= _COPIES_MAX:
        raise ValueError(f"copies is {copies}: daemons that are to hold all of it, from 0 to {_COPIES_MAX}")
    return copies


def _expires_s(expires):
    """Unix time; a whole second, and later than now."""
    if expires is None:
        return 0
    if not (isinstance(expires, (int, float)) and math.isfinite(expires) and 0 < expires <= _EXPIRES_MAX):
        raise ValueError(f"expires is {expires!r}: seconds from now on, above 0 and up to {_EXPIRES_MAX}, or None for never")
    return math.ceil(time.time() + expires)


class _Region:
    """Ends by vmem_close with its last reference, after the GPU work that uses it."""

    def __init__(self, library, pointer, nbytes):
        self._library = library
        self.pointer = pointer
        self.nbytes = nbytes

    def close(self, wait):
        wait = _wait_us(wait)
        if self.pointer is None:
            return
        status = self._library.vmem_close(ctypes.c_void_p(self.pointer), None, wait)
        if status != _IN_USE:
            self.pointer = None
        _check(self._library, status)

    def __del__(self):
        if getattr(self, "pointer", None) is not None:
            self._library.vmem_close(ctypes.c_void_p(self.pointer), None, ctypes.c_uint64(_END_US))


class Published:
    """What this process has published: `name`, `nbytes`. Closed with its last reference, or by
    close() or a with block. Other nodes then have what they hold, and what daemons keep.
    """

    def __init__(self, name, region):
        self.name = name
        self.nbytes = region.nbytes
        self._region = region

    def close(self, wait=30.0):
        """Waits for other nodes to take over what only this one has. Raises RuntimeError if pages
        are lost by it, which nobody else has; TimeoutError if that is not known in time. It is
        closed all the same.
        """
        self._region.close(wait)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _source_of(name, entry):
    if isinstance(entry, Source):
        return entry
    try:
        dtype, shape, data = entry
        view = memoryview(data).cast("B")
    except (TypeError, ValueError) as error:
        raise ValueError(f"tensor {_tensors.brief(name)} is no (dtype, shape, bytes): {error}") from error
    if view.nbytes == 0:
        return Source(dtype, shape, 0, 0)
    if view.readonly:
        data = data if isinstance(data, bytes) else bytes(view)
        return Source(dtype, shape, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value, view.nbytes, data)
    array = (ctypes.c_char * view.nbytes).from_buffer(view)
    return Source(dtype, shape, ctypes.addressof(array), view.nbytes, array)


def _lay_out(sources):
    """The header's bytes, and {first byte after the header: Source}."""
    entries, places, data, end = {}, {}, {}, 0
    for name, source in sources.items():
        key = (source.pointer, source.nbytes)
        if key not in places:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + source.nbytes
            places[key] = begin
            data[begin] = source
        begin = places[key]
        entries[str(name)] = {"dtype": source.dtype, "shape": list(source.shape), "data_offsets": [begin, begin + source.nbytes]}
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, data, end


def publish(name, tensors, *, copies=0, expires=None, readers=None, wait=30.0, device=0, library=None, stream=None):
    """Publishes tensors under `name`, at the GPU `device`; returns a Published.

    `tensors` is {name: (dtype, shape, bytes)}, with dtype as safetensors names it. `copies`: so
    many daemons hold all of it when the call returns. `expires`: seconds from now on. `readers`:
    names of other tenants that may open it, a list or one text; "*" is all of the cluster.
    `library` as in vmem.safetensors.open; `stream`, an address, orders copies from GPU memory.

    Raises ValueError for wrong tensors, no tensors at all, and wrong `copies`, `expires` or `wait`;
    TimeoutError if the cluster does not answer or has room for fewer copies; RuntimeError for other
    errors, such as a name that no region can have, or that another program has published.
    After an error nothing is published, except that after TimeoutError daemons may have the region:
    publish again, which makes a new version, or `vmem region rm`.
    """
    copies, expires_s = _copies(copies), _expires_s(expires)
    if not tensors:
        raise ValueError(f"region {name!r} cannot be published: there are no tensors")
    library = library or _library.started_api(operator.index(device))
    stream = ctypes.c_void_p(stream)
    sources = {each: _source_of(each, entry) for each, entry in tensors.items()}
    header, data, data_bytes = _lay_out(sources)
    total = len(header) + data_bytes
    _tensors.parse_header(f"region {name!r} cannot be published", header[8:], total)
    options = _Options(
        copies=copies,
        expires_s=expires_s,
        wait_us=_wait_us(wait),
        readers=None if readers is None else (readers if isinstance(readers, str) else ",".join(readers)).encode(),
    )
    out = ctypes.c_void_p()
    size = ctypes.c_size_t(max(total, _LEAST_BYTES))
    _check(library, library.vmem_malloc(ctypes.byref(out), size, ctypes.c_int(operator.index(device)), None))
    base = out.value
    try:
        _check(library, library.vmem_write(ctypes.c_void_p(base), header, ctypes.c_size_t(len(header))))
        for begin, source in data.items():
            if source.nbytes == 0:
                continue
            to, origin, nbytes = ctypes.c_void_p(base + len(header) + begin), ctypes.c_void_p(source.pointer), ctypes.c_size_t(source.nbytes)
            copied = library.vmem_write(to, origin, nbytes) if source.on_host else library.vmem_memcpy(to, origin, nbytes, stream)
            _check(library, copied)
    except BaseException:
        library.vmem_free(ctypes.c_void_p(base), stream)
        raise
    status = library.vmem_publish(ctypes.c_void_p(base), str(name).encode(), ctypes.byref(options))
    if status != 0:
        error = _error(library, status)
        # After these two it may be published, and only vmem_close knows.
        closed = _INVALID_POINTER
        if status in (_TIMEOUT, _LOST):
            closed = library.vmem_close(ctypes.c_void_p(base), stream, ctypes.c_uint64(_AT_ONCE_US))
        if closed == _INVALID_POINTER:
            library.vmem_free(ctypes.c_void_p(base), stream)
        raise error
    return Published(str(name), _Region(library, base, total))


def _read(library, pointer, length):
    out = ctypes.create_string_buffer(length)
    _check(library, library.vmem_read(out, ctypes.c_void_p(pointer), ctypes.c_size_t(length)))
    return out.raw


def open(name, *, wait=30.0, device=0, library=None):
    """Opens a region that `publish` made; returns {name: MappedTensor}, on the GPU `device`.

    Waits for the name to be published. The tensors, and those made of them through DLPack, keep the
    region open. Raises TimeoutError if nobody publishes the name; ValueError if it is not such a
    region; RuntimeError, at once for a name that no region can have.
    """
    device = operator.index(device)
    library = library or _library.started_api(device)
    out, size = ctypes.c_void_p(), ctypes.c_uint64()
    status = library.vmem_open(ctypes.byref(out), ctypes.byref(size), str(name).encode(), ctypes.c_int(device), _wait_us(wait))
    _check(library, status)
    region = _Region(library, out.value, size.value)
    what = _tensors.unreadable(f"region {str(name)!r}")
    length = int.from_bytes(_read(library, region.pointer, 8), "little")
    if length > min(size.value - 8, _tensors.HEADER_MAX):
        raise _tensors.header_error(what, f"its header would have {length} bytes, and all of it has {size.value}")
    tensors, _ = _tensors.parse_header(what, _read(library, region.pointer + 8, length) if length else b"", size.value)
    opened = {}
    for each, (dtype, shape, begin, nbytes) in tensors.items():
        if nbytes != 0 and begin % _tensors.TYPES[dtype][0] != 0:
            raise _tensors.header_error(what, f"tensor {_tensors.brief(each)} begins at byte {begin}, no multiple of the size of {dtype}")
        opened[each] = MappedTensor(region, region.pointer + begin if nbytes else None, dtype, shape, nbytes, device)
    return opened


def statistics(*, library=None):
    """What this process shares (vmem_published_stats) as a dict: gauges, and counters since the
    start. Raises RuntimeError without the option cluster.
    """
    library = library or _library.api()
    out = _Statistics(struct_bytes=ctypes.sizeof(_Statistics))
    _check(library, library.vmem_published_stats(ctypes.byref(out)))
    return {name: getattr(out, name) for name, _ in _Statistics._fields_ if name not in ("struct_bytes", "reserved")}
