"""More GPU memory than the GPU has. `vmem.torch` is for PyTorch; `python -m vmem SCRIPT` runs a script with vmem under it."""
