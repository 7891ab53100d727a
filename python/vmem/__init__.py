"""More GPU memory than the GPU has. `vmem.torch` is for PyTorch; `python -m vmem SCRIPT` runs a
script with vmem under it.
"""


def __getattr__(name):
    # Asked of what runs, and only when it is read: a copy here could disagree with the library.
    if name == "__version__":
        from vmem import _library

        return _library.version()
    raise AttributeError(f"module 'vmem' has no attribute '{name}'")
