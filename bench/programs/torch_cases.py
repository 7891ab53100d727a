#!/usr/bin/env python3
"""PyTorch programs as people write them; none of them knows of vmem. compare.py runs them with and
without it.

    torch_cases.py [--steps N] [--turn N] [--out FILE] CASE...

For each case one JSON object, a line of its own: `steps_s` (seconds of each step), `digests` (what
each step computed, exactly), `peak_bytes` (torch.cuda.max_memory_allocated). Cases are generators:
what comes before the first yield is set-up, each further step yields its digest.
"""

import argparse
import gc
import io
import json
import os
import sys
import time

# Before torch: it sets what that reads.
from torch_case import CASES, CUDA, case, digest, loss_digest, update

import torch
import torch.nn.functional as F
from torch import nn

from torch_large import gpt2_model, llama_model, train_gpt2
import torch_kinds  # noqa: F401  (registers its cases)


# What else programs do. Each takes about 4 GiB.


@case
def generate():
    model = llama_model(3072, 8192, 14, 24)
    ids = torch.randint(0, model.config.vocab_size, (8, 64), device=CUDA)
    yield
    while True:
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, pad_token_id=0
            )
        yield digest(out)


@case
def checkpointing():
    model, config = gpt2_model(8, 1536, 16, 512)
    model.gradient_checkpointing_enable()
    yield from train_gpt2(model, config, torch.optim.AdamW(model.parameters(), lr=1e-4), 8, 512)


def train_mlp(make_optimizer, width=4096, layers=10):
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.GELU())]).to(CUDA)
    optimizer = make_optimizer(model.parameters())
    yield
    while True:
        x = torch.randn(4096, width, device=CUDA)
        loss = (model(x) - x).square().mean()
        update(loss, optimizer)
        yield loss_digest(loss)


@case
def adamw_foreach():
    yield from train_mlp(lambda p: torch.optim.AdamW(p, foreach=True))


@case
def adamw_fused():
    yield from train_mlp(lambda p: torch.optim.AdamW(p, fused=True))


@case
def adam_single():
    yield from train_mlp(lambda p: torch.optim.Adam(p, foreach=False))


@case
def sgd_momentum():
    yield from train_mlp(lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9), layers=14)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def train_compiled(mode):
    model = nn.Sequential(*[Block(2048) for _ in range(6)]).to(CUDA)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model, mode=mode)
    yield
    while True:
        x = torch.randn(2048, 2048, device=CUDA)
        loss = (compiled(x) - x).square().mean()
        update(loss, optimizer)
        yield loss_digest(loss)


@case
def compiled():
    yield from train_compiled("default")


@case
def compiled_reduce_overhead():
    yield from train_compiled("reduce-overhead")


@case
def graph_replay():
    """A training step captured once and replayed, as PyTorch's notes on CUDA graphs have it."""
    model = nn.Sequential(*[Block(2048) for _ in range(8)]).to(CUDA)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    x = torch.randn(1024, 2048, device=CUDA)

    def step():
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    yield
    while True:
        x.copy_(torch.randn(1024, 2048, device=CUDA))
        graph.replay()
        other = torch.randn(2048, 2048, device=CUDA) @ torch.randn(2048, 2048, device=CUDA)
        yield loss_digest(loss) + digest(other)


@case
def streams():
    """Four streams, tensors that go from one to the next, record_stream."""
    streams_ = [torch.cuda.Stream() for _ in range(4)]
    weights = [torch.randn(8192, 8192, device=CUDA) for _ in range(12)]
    yield
    while True:
        x = torch.randn(2048, 8192, device=CUDA)
        parts = []
        for i, stream in enumerate(streams_):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y = x
                for w in weights[3 * i : 3 * i + 3]:
                    y = torch.tanh(y @ w)
                x.record_stream(stream)
                parts.append(y)
        for stream, part in zip(streams_, parts):
            torch.cuda.current_stream().wait_stream(stream)
            part.record_stream(torch.cuda.current_stream())
        del x
        yield digest(sum(parts))


@case
def batched_linalg():
    a = torch.randn(96, 1024, 1024, device=CUDA, dtype=torch.float64) / 64
    a = a @ a.mT + torch.eye(1024, device=CUDA, dtype=torch.float64)
    b = torch.randn(96, 1024, 64, device=CUDA, dtype=torch.float64)
    yield
    while True:
        solved = torch.linalg.solve(a, b)
        lower = torch.linalg.cholesky(a)
        lu, pivots = torch.linalg.lu_factor(a)
        inverse = torch.linalg.inv(a)
        yield digest(solved, lower[::17], lu[::17], pivots, inverse[::17])


@case
def grouped_matmul():
    a = torch.randn(8192, 4096, device=CUDA, dtype=torch.bfloat16)
    b = [torch.randn(16, 4096, 4096, device=CUDA, dtype=torch.bfloat16) for _ in range(6)]
    ends = torch.arange(512, 8193, 512, device=CUDA, dtype=torch.int32)
    yield
    while True:
        x = a
        for each in b:
            x = F.layer_norm(torch._grouped_mm(x, each.mT, offs=ends), (4096,))
        yield digest(x)


@case
def conv():
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to(CUDA)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    yield
    while True:
        x = torch.randn(96, 3, 128, 128, device=CUDA)
        y = torch.randint(0, 10, (96,), device=CUDA)
        loss = F.cross_entropy(model(x), y)
        update(loss, optimizer)
        yield loss_digest(loss)


@case
def embedding():
    """The table alone is larger than half of what the case takes."""
    table = nn.EmbeddingBag(1 << 20, 512, mode="sum").to(CUDA)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    yield
    while True:
        ids = torch.randint(0, 1 << 20, (4096, 32), device=CUDA)
        loss = table(ids).square().mean()
        update(loss, optimizer)
        yield loss_digest(loss)


@case
def sort_unique():
    x = torch.randint(0, 1 << 40, (1 << 26,), device=CUDA)
    yield
    while True:
        ordered, places = torch.sort(x)
        values, counts = torch.unique(x >> 20, return_counts=True)
        top = torch.topk(x, 1000).values
        yield digest(ordered[:: 1 << 10], places[:: 1 << 10], values[:: 1 << 10], counts.sum(), top)
        x = x.roll(12345) ^ 0x5555


@case
def save_load():
    state = {f"w{i}": torch.randn(1 << 26, device=CUDA) for i in range(12)}
    yield
    while True:
        file = io.BytesIO()
        torch.save({k: v for k, v in list(state.items())[:4]}, file)
        file.seek(0)
        loaded = torch.load(file, map_location=CUDA)
        for name, value in loaded.items():
            state[name] = value + 1
        yield digest(*[v[:: 1 << 12] for v in state.values()])


@case
def pinned_loader():
    data = torch.utils.data.TensorDataset(torch.arange(32 * 8).reshape(32, 8).float())
    weights = [torch.randn(8192, 8192, device=CUDA) for _ in range(14)]
    yield
    while True:
        loader = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True, num_workers=2)
        total = torch.zeros(8192, 8192, device=CUDA)
        for (batch,) in loader:
            x = batch.to(CUDA, non_blocking=True).repeat(1024, 1024)
            for w in weights:
                x = torch.tanh(x @ w)
            total += x
        yield digest(total)


# Two GPUs. Of these there is a process for each, started by torchrun, but for the last.


def train_ranks(shard):
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device(CUDA, rank))
    model = shard(nn.Sequential(*[Block(2048) for _ in range(10)]).to(CUDA))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(rank)
    try:
        yield
        while True:
            x = torch.randn(4096, 2048, device=CUDA)
            loss = (model(x) - x).square().mean()
            update(loss, optimizer)
            losses = [torch.empty_like(loss) for _ in range(2)]
            dist.all_gather(losses, loss.detach())
            yield " ".join(loss_digest(each) for each in losses)
    finally:
        dist.destroy_process_group()


@case
def ddp():
    yield from train_ranks(lambda model: nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()]))


@case
def fsdp():
    from torch.distributed.fsdp import fully_shard

    def shard(model):
        for block in model:
            fully_shard(block)
        return fully_shard(model)

    yield from train_ranks(shard)


@case
def two_devices():
    """A model whose halves are on two GPUs, and tensors of one that kernels and copies of the other
    read.
    """
    halves = [nn.Sequential(*[Block(2048) for _ in range(6)]).to(f"cuda:{i}") for i in range(2)]
    optimizer = torch.optim.AdamW([p for half in halves for p in half.parameters()], lr=1e-4)
    table = torch.randn(8192, 8192, device="cuda:0")
    yield
    while True:
        x = torch.randn(2048, 2048, device="cuda:0")
        y = halves[1](halves[0](x).to("cuda:1"))
        loss = (y - x.to("cuda:1")).square().mean()
        update(loss, optimizer)
        # Not contiguous: a kernel reads across.
        turned = torch.empty(8192, 8192, device="cuda:1").copy_(table.t())
        yield loss_digest(loss) + digest(turned[::16])


def wait_for_turn():
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit("torch_cases.py: whoever gave the turns is gone")


def peak():
    return max(torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count()))


def run(name, steps, turn=0):
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    out = {"case": name, "steps_s": [], "digests": []}
    steps_of = CASES[name]()
    next(steps_of)
    vmem = sys.modules.get("vmem.torch")
    moved = []
    for step in range(steps):
        if turn and step % turn == 0:
            wait_for_turn()
        torch.cuda.synchronize()
        if step == steps // 2:
            # What set-up and the first steps took is apart.
            earlier_peak = peak()
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
        began = time.perf_counter()
        out["digests"].append(next(steps_of))
        torch.cuda.synchronize()
        out["steps_s"].append(time.perf_counter() - began)
        if vmem is not None:
            moved.append(vmem.statistics())
    if moved:
        out["vmem"] = moved[-1]
        first = moved[len(moved) // 2 - 1] if len(moved) > 1 else None
        if first:
            # Of a step, in the second half of them.
            half = len(moved) - len(moved) // 2
            out["vmem_per_step"] = {k: (v - first[k]) / half for k, v in moved[-1].items()}
    out["steady_peak_bytes"] = peak()
    out["peak_bytes"] = max(earlier_peak, peak())
    steps_of.close()
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--turn", type=int, default=0, help="so many steps whenever a line comes from standard input, after saying ready")
    parser.add_argument("--out", help="append the objects to this file instead of standard output")
    parser.add_argument("cases", nargs="+", choices=sorted(CASES), metavar="CASE")
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    for name in arguments.cases:
        line = json.dumps(run(name, arguments.steps, arguments.turn))
        if os.environ.get("RANK", "0") != "0":
            continue
        if arguments.out:
            with open(arguments.out, "a", encoding="utf-8") as file:
                print(line, file=file)
        else:
            print(line)
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
