"""vmem under PyTorch.

`enable(hbm="16GiB")` as a script's first line trains what does not fit. It starts the script again,
under `vmem run`, before CUDA is initialised. Under `vmem run` the allocator is installed already
and `enable` does nothing.
"""

import ast
import ctypes
import importlib.util
import os
import sys
import warnings

from vmem import _library, _tensors, regions

_POOLS = ("all", "small_pool", "large_pool")


class _Figures(ctypes.Structure):
    """vmem_torch_statistics of vmem/torch.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "allocated_bytes",
            "allocated_bytes_peak",
            "allocated_bytes_total",
            "freed_bytes_total",
            "allocations",
            "allocations_peak",
            "allocations_total",
            "frees_total",
            "reserved_bytes",
            "reserved_bytes_peak",
            "out_of_memory_errors",
        )
    ]


class _Statistics(ctypes.Structure):
    """vmem_statistics of vmem/vmem.h."""

    _fields_ = [("struct_bytes", ctypes.c_uint32), ("device_count", ctypes.c_int32)]
    _fields_ += [("emulated", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]
    _fields_ += [
        (name, ctypes.c_uint64)
        for name in (
            "space_bytes",
            "allocated_bytes",
            "committed_bytes",
            "hbm_budget_bytes",
            "hbm_used_bytes",
            "host_budget_bytes",
            "host_used_bytes",
            "peer_budget_bytes",
            "peer_used_bytes",
            "nvme_budget_bytes",
            "nvme_used_bytes",
            "remote_budget_bytes",
            "remote_used_bytes",
            "remote_stored_bytes",
            "remote_fetched_bytes",
            "remote_copies_lost",
            "remote_single_copies",
            "remote_reconnects",
            "remote_checksum_failures",
            "metadata_bytes",
            "pages",
            "acquires",
            "acquire_misses",
            "in_place_acquires",
            "acquire_waits",
            "acquire_wait_us",
            "mover_busy_us",
            "migrated_in_bytes",
            "migrated_out_bytes",
            "peer_in_bytes",
            "peer_out_bytes",
            "peer_returned_bytes",
            "dropped_bytes",
            "spilled_bytes",
            "recalled_bytes",
            "spills_dropped_bytes",
            "prefetched_bytes",
            "prefetched_used_bytes",
            "evictions",
            "eviction_cancels",
            "maps",
            "unmaps",
            "frames_created",
            "stray_writes",
            "file_mapped_bytes",
            "file_read_bytes",
            "nvme_compressed_bytes",
            "nvme_compressed_to_bytes",
            "nvme_pages_as_is",
            "nvme_pages_lz4",
            "nvme_pages_zstd",
            "nvme_pages_shuffled",
            "nvme_compress_us",
            "nvme_decompress_us",
            "lent_bytes",
            "lent_overdue_bytes",
            "nvme_pages_fill",
            "read_to_hbm_bytes",
            "frames_destroyed",
            "dead_evictions",
        )
    ]


def statistics():
    """vmem's own figures (vmem_stats) as a dict, each since the start. Raises RuntimeError before
    the first allocation on a GPU.
    """
    library = _library.preloaded()
    out = _Statistics(struct_bytes=ctypes.sizeof(_Statistics))
    if library is None or library.vmem_stats(ctypes.byref(out)) != 0:
        raise RuntimeError("vmem does not run in this process, or has not been asked for memory yet")
    return {name: getattr(out, name) for name, _ in _Statistics._fields_ if name not in ("struct_bytes", "reserved")}


def running():
    """Whether this process was started with vmem under it."""
    return _library.preloaded() is not None


def enable(**options):
    """Runs the calling script with vmem under it: `enable(hbm="16GiB", host="64GiB")`. To be called
    before CUDA is initialised.

    Starts the script again, so what stands before the call runs twice; where that is more than
    imports, a line on stderr says so. Under `vmem run` it does nothing.

    Options are those of `vmem options`, sizes in bytes or written as "16GiB". Raises ValueError for
    a wrong option. Raises RuntimeError where there is no PyTorch or no CUDA driver
    (driver="emulated" tries a script without), when CUDA is initialised already, or when the script
    cannot be started again (an interactive session, a notebook).
    """
    if _library.preloaded() is not None:
        return
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError("vmem.torch.enable comes too late: CUDA is initialised. Call it before the first tensor on a GPU")
    command = _script()
    if "libvmem_preload.so" in os.environ.get("LD_PRELOAD", ""):
        raise RuntimeError("libvmem_preload.so is in LD_PRELOAD, and the loader has not loaded it; see its message on stderr")
    if torch is None and importlib.util.find_spec("torch") is None:
        raise RuntimeError("vmem.torch.enable: this Python has no PyTorch; install it, or use `vmem run` for a program without it")
    driver = str(options.get("driver", os.environ.get("VMEM_DRIVER", "auto")))
    if driver == "auto" and not _library.has_driver():
        raise RuntimeError('vmem.torch.enable: there is no CUDA driver (libcuda.so.1); driver="emulated" tries a script without a GPU')
    flags = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in options.items()]
    _library.check(flags)
    if not _stands_first(sys._getframe(1)):
        print(f"vmem: starting {sys.argv[0]} again, with vmem under it: what stands before vmem.torch.enable runs twice", file=sys.stderr)
    _library.run(flags, [sys.executable, *command[1:]])


def publish_state_dict(name, state_dict, *, copies=0, expires=None, readers=None, wait=30.0):
    """Publishes the tensors of a state dict to the cluster, as one read-only region of their own;
    returns a vmem.regions.Published, which keeps it. Tensors may be on the CPU or on GPUs; those of
    one address and size, such as tied weights, are stored once.

    `copies` daemons hold all of it when the call returns; `readers` as in vmem.regions.publish.
    Raises as that, and ValueError for a value that is no dense tensor, or of a type that
    safetensors lacks.
    """
    import torch

    _need_vmem()
    names = {each[3]: dtype for dtype, each in _tensors.TYPES.items()}
    sources, devices = {}, []
    for each, value in state_dict.items():
        dtype = names.get(str(getattr(value, "dtype", None)).rpartition(".")[2])
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or dtype is None:
            raise ValueError(f"{each!r} of the state dict is {_tensors.brief(value)}: dense tensors of the types of safetensors can be published")
        if value.device.type not in ("cpu", "cuda"):
            raise ValueError(f"{each!r} of the state dict is on {value.device}; tensors on CPU and CUDA devices can be published")
        value = value.detach().contiguous()
        if value.is_cuda and value.device not in devices:
            devices.append(value.device)
        sources[each] = regions.Source(dtype, value.shape, value.data_ptr(), value.numel() * value.element_size(), value, not value.is_cuda)
    index = _started(torch, devices[0] if devices else torch.device("cuda"))
    for each in devices:
        torch.cuda.synchronize(each)  # what streams have queued on the tensors
    return regions.publish(name, sources, copies=copies, expires=expires, readers=readers, wait=wait, device=index)


def open_state_dict(name, device="cuda", *, wait=30.0):
    """Opens what publish_state_dict has published, on this node or another; returns {name:
    torch.Tensor}: read-only, on a CUDA device, without copying. Pages come with their first use.
    `model.load_state_dict(tensors, assign=True)` gives them to a model.

    Waits for the name to be published. Raises as vmem.regions.open, and ValueError for another
    device.
    """
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"device {device}: tensors of a region are on CUDA devices")
    _need_vmem()
    index = _started(torch, device)
    opened = regions.open(name, wait=wait, device=index)
    return {each: _tensors.to_torch(torch, each, tensor, device) for each, tensor in opened.items()}


def _need_vmem():
    if _library.preloaded() is None:
        raise RuntimeError("vmem does not run under this process; start it with `vmem run`, or call vmem.torch.enable() first")


def _started(torch, device):
    """The device's ordinal; the first allocation starts vmem."""
    return torch.empty(1, dtype=torch.uint8, device=device).device.index


def _text(value):
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _script():
    """The command line that runs this script. Raises RuntimeError where there is none to be run
    again.
    """
    if "ipykernel" in sys.modules:
        raise RuntimeError("vmem.torch.enable cannot start a notebook's kernel again; start Jupyter with `vmem run -- jupyter lab`")
    command = getattr(sys, "orig_argv", None) or _command_line()
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    from_stdin = not sys.argv or sys.argv[0] in ("", "-")
    if interactive or from_stdin or not command or len(command) < 2:
        raise RuntimeError("vmem.torch.enable starts the script again, and there is no script; start Python with `vmem run -- python`")
    return command


def _stands_first(caller):
    """Whether nothing but imports stands before the call in the script."""
    if caller.f_code.co_name != "<module>" or caller.f_globals.get("__name__") != "__main__":
        return False
    try:
        with open(caller.f_code.co_filename, encoding="utf-8") as file:
            statements = ast.parse(file.read()).body
    except (OSError, ValueError, SyntaxError):  # not a file, or changed since
        return False
    for statement in statements:
        if statement.lineno <= caller.f_lineno <= statement.end_lineno:
            return True
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text and not isinstance(statement, (ast.Import, ast.ImportFrom)):
            return False
    return False


def _command_line():
    """sys.orig_argv, for Python 3.9."""
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def install(torch):
    """Gives `torch`, just imported, vmem's allocator. For processes under `vmem run`;
    `sitecustomize` calls it.
    """
    library = _library.preloaded()
    if library is None:
        raise RuntimeError("this process is not under `vmem run`; call vmem.torch.enable")
    if not torch.backends.cuda.is_built():
        return
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        _library.path_of_preloaded(), "vmem_torch_alloc", "vmem_torch_free"
    )
    address = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value  # noqa: E731
    allocator._allocator.set_record_stream_fn(address("vmem_torch_record_stream"))
    allocator._allocator.set_reset_fn(address("vmem_torch_empty_cache"))
    allocator._allocator.set_begin_allocate_to_pool(address("vmem_torch_begin_allocate_to_pool"))
    allocator._allocator.set_end_allocate_to_pool_fn(address("vmem_torch_end_allocate_to_pool"))
    allocator._allocator.set_release_pool(address("vmem_torch_release_pool"))
    torch.cuda.memory.change_current_allocator(allocator)
    torch._C._cuda_changeCurrentAllocator = _refuse_allocator
    _answer_statistics(torch, library)
    _answer_for_pools(torch, library)
    _leave_cudnn_benchmark_off(torch)


def adjust_inductor(compile_fx):
    """torch._inductor.compile_fx, just imported: mode="reduce-overhead" compiles and does not
    capture. Its tree of CUDA graphs shares a pool whose state is saved and put back, which only
    PyTorch's own allocator can do; without the tree, results that a program keeps would be
    overwritten by the next call.
    """

    def cudagraphify(model, *arguments, **options):
        return model

    compile_fx.cudagraphify = cudagraphify


def _refuse_allocator(allocator):
    raise RuntimeError(
        "PyTorch has vmem's allocator already, and takes no second one; to use another allocator under vmem, start the program "
        "with `vmem run --no-python`"
    )


def _leave_cudnn_benchmark_off(torch):
    """For torch.backends.cudnn.benchmark PyTorch asks its allocator for the largest free block, and
    raises where a pluggable one is used.
    """

    def set_benchmark(on):
        if on:
            warnings.warn("torch.backends.cudnn.benchmark stays off: PyTorch cannot use it with vmem's allocator", stacklevel=3)

    torch.backends.cudnn.CudnnModule.benchmark = torch.backends.ContextProp(torch._C._get_cudnn_benchmark, set_benchmark)
    torch._C._set_cudnn_benchmark = set_benchmark


def _answer_for_pools(torch, library):
    def holds(device, pool, pointers):
        pointers = list(pointers)
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        first, second = (ctypes.c_uint64(part) for part in pool)
        return library.vmem_torch_pool_holds(ctypes.c_int(device), first, second, array, ctypes.c_size_t(len(pointers))) == 1

    torch._C._cuda_checkPoolLiveAllocations = holds


def _answer_statistics(torch, library):
    """PyTorch's pluggable allocators cannot answer for memory statistics, so the functions behind
    them are replaced.
    """

    def figures(device):
        out = _Figures()
        library.vmem_torch_memory_stats(ctypes.c_int(device), ctypes.byref(out))
        return out

    def entry(current, peak, allocated, freed):
        value = {"current": current, "peak": peak, "allocated": allocated, "freed": freed}
        nothing = dict.fromkeys(value, 0)
        return {pool: dict(value if pool != "small_pool" else nothing) for pool in _POOLS}

    def memory_stats(device):
        f = figures(device)
        size = entry(f.allocated_bytes, f.allocated_bytes_peak, f.allocated_bytes_total, f.freed_bytes_total)
        count = entry(f.allocations, f.allocations_peak, f.allocations_total, f.frees_total)
        reserved = entry(f.reserved_bytes, f.reserved_bytes_peak, f.reserved_bytes_peak, 0)
        none = entry(0, 0, 0, 0)
        stats = {
            "allocated_bytes": size,
            "active_bytes": size,
            "requested_bytes": size,
            "allocation": count,
            "active": count,
            "reserved_bytes": reserved,
            "segment": count,
            "inactive_split": none,
            "inactive_split_bytes": none,
            "oversize_allocations": none["all"],
            "oversize_segments": none["all"],
            "num_ooms": f.out_of_memory_errors,
            "num_alloc_retries": 0,
            "num_sync_all_streams": 0,
            "num_device_alloc": f.allocations_total,
            "num_device_free": f.frees_total,
            "max_split_size": -1,
        }
        return stats

    def reset_peak(device):
        library.vmem_torch_reset_peak_stats(ctypes.c_int(device))

    def reset_accumulated(device):
        pass

    c = torch._C
    c._cuda_memoryStats = memory_stats
    c._cuda_resetPeakMemoryStats = reset_peak
    c._cuda_resetAccumulatedMemoryStats = reset_accumulated
    # Torch.accelerator's memory functions ask PyTorch's own allocator, whichever is in use.
    if hasattr(c, "_accelerator_getDeviceStats"):
        c._accelerator_isAllocatorInitialized = torch.cuda.is_initialized
        c._accelerator_emptyCache = c._cuda_emptyCache
        c._accelerator_getDeviceStats = memory_stats
        c._accelerator_resetPeakStats = reset_peak
        c._accelerator_resetAccumulatedStats = reset_accumulated
