"""The large models of torch_cases.py, Llama- and GPT-2-shaped, natively and with today's ways of
offloading.
"""

import contextlib
import os

# Before torch: it sets what that reads.
from torch_case import CUDA, case, digest, loss_digest, update

import torch


def llama_model(width, inner, layers, heads):
    """Llama-shaped, of random bf16 weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=32000
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(CUDA):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def large_llama():
    """7.0 GB of weights, 128 tokens."""
    model = llama_model(4096, 11008, 16, 32)
    return model, torch.randint(0, model.config.vocab_size, (1, 128), device=CUDA)


def forwards(model, ids):
    yield
    with torch.inference_mode():
        while True:
            yield digest(model(ids).logits)


@case
def llama():
    yield from forwards(*large_llama())


@case
def llama_cpu_offload():
    """accelerate, as its documentation has it."""
    from accelerate import cpu_offload

    model, ids = large_llama()
    yield from forwards(cpu_offload(model.cpu(), execution_device=torch.device(CUDA)), ids)


@case
def llama_double_buffered():
    """The hand-written way: weights in pinned memory, two buffers for a layer's, copied a layer
    ahead on a stream of its own.
    """
    model, ids = large_llama()
    layers = list(model.model.layers)
    shapes = [p.shape for p in layers[0].parameters()]
    copies = torch.cuda.Stream()
    pinned = []
    for layer in layers:
        flat = torch.cat([p.detach().reshape(-1) for p in layer.parameters()])
        host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
        pinned.append(host.copy_(flat))
        for p in layer.parameters():
            p.data = torch.empty(0, dtype=p.dtype, device=CUDA)
        del flat
    buffers = [torch.empty_like(pinned[0], device=CUDA) for _ in range(2)]
    filled = [torch.cuda.Event() for _ in range(2)]
    used = [torch.cuda.Event() for _ in range(2)]

    def fetch(i):
        with torch.cuda.stream(copies):
            copies.wait_event(used[i % 2])
            buffers[i % 2].copy_(pinned[i % len(layers)], non_blocking=True)
            filled[i % 2].record(copies)

    def before(i):
        def hook(layer, _):
            torch.cuda.current_stream().wait_event(filled[i % 2])
            at = 0
            for p, shape in zip(layer.parameters(), shapes):
                p.data = buffers[i % 2][at : at + shape.numel()].view(shape)
                at += shape.numel()

        return hook

    def after(i):
        def hook(*_):
            used[i % 2].record()
            fetch(i + 2)

        return hook

    for i, layer in enumerate(layers):
        layer.register_forward_pre_hook(before(i))
        layer.register_forward_hook(after(i))
    fetch(0)
    fetch(1)
    yield from forwards(model, ids)


def gpt2_model(layers, width, heads, length):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=length)
    config.use_cache = False
    with torch.device(CUDA):
        model = GPT2LMHeadModel(config).train()
    return model, config


def train_gpt2(model, config, optimizer, batch, length, around=contextlib.nullcontext):
    yield
    while True:
        ids = torch.randint(0, config.vocab_size, (batch, length), device=CUDA)
        with torch.autocast(CUDA, dtype=torch.bfloat16):
            with around():
                loss = model(ids, labels=ids).loss
        update(loss, optimizer)
        yield loss_digest(loss)


@case
def gpt2():
    """1.31 B parameters, batch 8 x 1024, AdamW."""
    model, config = gpt2_model(24, 2048, 16, 1024)
    yield from train_gpt2(model, config, torch.optim.AdamW(model.parameters(), lr=1e-4), 8, 1024)


@case
def gpt2_save_on_cpu():
    model, config = gpt2_model(24, 2048, 16, 1024)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    around = lambda: torch.autograd.graph.save_on_cpu(pin_memory=True)  # noqa: E731
    yield from train_gpt2(model, config, optimizer, 8, 1024, around)


@case
def gpt2_fsdp_offload():
    """FSDP2 on one GPU, parameters (bf16), gradients and optimizer in host memory."""
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    model, config = gpt2_model(24, 2048, 16, 1024)
    model = model.to(torch.bfloat16).cpu()
    for block in model.transformer.h:
        fully_shard(block, offload_policy=CPUOffloadPolicy())
    fully_shard(model, offload_policy=CPUOffloadPolicy())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    try:
        yield from train_gpt2(model, config, optimizer, 8, 1024)
    finally:
        dist.destroy_process_group()


@case
def small_gpt2():
    """8 layers of width 1024, batch 8 x 256: everything fits."""
    model, config = gpt2_model(8, 1024, 16, 256)
    yield from train_gpt2(model, config, torch.optim.AdamW(model.parameters(), lr=1e-4), 8, 256)
