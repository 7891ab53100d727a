#!/usr/bin/env python3
"""A CuPy program that knows nothing of vmem: prints one JSON object as torch_cases.py does."""

import hashlib
import json
import sys
import time

import cupy as cp


class Peak(cp.cuda.MemoryHook):
    """The most bytes of CuPy's that the GPU held at once."""

    name = "peak"

    def __init__(self):
        self.held = self.most = 0

    def malloc_postprocess(self, **block):
        self.held += block["mem_size"]
        self.most = max(self.most, self.held)

    def free_postprocess(self, **block):
        self.held -= block["mem_size"]


def main():
    with Peak() as peak:
        run(peak)


def run(peak):
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    cp.random.seed(0)
    matrices = [cp.random.standard_normal((4096, 4096), dtype=cp.float32) for _ in range(56)]
    steps_s, digests = [], []
    for _ in range(steps):
        began = time.perf_counter()
        total = cp.zeros((4096, 4096), dtype=cp.float32)
        for i in range(0, len(matrices) - 1, 2):
            product = matrices[i] @ matrices[i + 1]
            total += cp.tanh(product / 64)
            matrices[i] = cp.sort(product, axis=1)[:, ::-1] / 64
        sums = cp.stack([m[::512].sum(axis=1) for m in matrices] + [total[::512].sum(axis=1)])
        digests.append(hashlib.sha256(cp.asnumpy(sums).tobytes()).hexdigest()[:16])
        cp.cuda.Device().synchronize()
        steps_s.append(time.perf_counter() - began)
    print(json.dumps({"case": "cupy", "steps_s": steps_s, "digests": digests, "peak_bytes": peak.most or None}))


if __name__ == "__main__":
    main()
