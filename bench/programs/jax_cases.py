#!/usr/bin/env python3
"""A JAX program that knows nothing of vmem: prints one JSON object as torch_cases.py does."""

import hashlib
import json
import os
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x * x)


@jax.jit
def step(weights, moments, x):
    value, grads = jax.value_and_grad(loss)(weights, x)
    moments = [0.9 * m + g for m, g in zip(moments, grads)]
    weights = [w - 0.1 * m for w, m in zip(weights, moments)]
    return value, weights, moments


def peak_bytes(device):
    """The most bytes of JAX's that the GPU held at once; None from an allocator that does not
    count, as under vmem.
    """
    return (device.memory_stats() or {}).get("peak_bytes_in_use")


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    keys = jax.random.split(jax.random.PRNGKey(0), 17)
    weights = [jax.random.normal(k, (4096, 4096), dtype=jnp.float32) / 64 for k in keys[:16]]
    moments = [jnp.zeros_like(w) for w in weights]
    x = jax.random.normal(keys[16], (4096, 4096), dtype=jnp.float32)
    steps_s, digests = [], []
    for _ in range(steps):
        began = time.perf_counter()
        value, weights, moments = step(weights, moments, x)
        parts = [np.asarray(value), *[np.asarray(w[::512]) for w in weights]]
        digests.append(hashlib.sha256(b"".join(p.tobytes() for p in parts)).hexdigest()[:16])
        steps_s.append(time.perf_counter() - began)
    peak = peak_bytes(jax.local_devices()[0])
    print(json.dumps({"case": "jax", "steps_s": steps_s, "digests": digests, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
