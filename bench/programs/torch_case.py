"""What the cases of torch_cases.py have in common: their register, and digests of what they
compute.
"""

import hashlib
import os

# One of two settings that make cuBLAS repeat its results.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402

CUDA = "cuda"
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def digest(*tensors):
    """Of the bytes of tensors on any device."""
    sum_ = hashlib.sha256()
    for tensor in tensors:
        sum_.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sum_.hexdigest()[:16]


def loss_digest(loss):
    return loss.detach().double().item().hex()


def update(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
