"""Kinds of PyTorch programs beyond HBM; what each allocates, and in what order it is used, differs.
Each takes about 5 GiB.
"""

import threading

# Before torch: it sets what that reads.
from torch_case import CUDA, case, digest, loss_digest, update

import torch
import torch.nn.functional as F
from torch import nn

from torch_large import gpt2_model, llama_model, train_gpt2


def train(model, optimizer, inputs, loss_of):
    """`inputs()` makes a batch, `loss_of(model, batch)` its loss."""
    yield
    while True:
        loss = loss_of(model, inputs())
        update(loss, optimizer)
        yield loss_digest(loss)


def classify(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


@case
def kind_transformer():
    """Decoder-only, AdamW."""
    model, config = gpt2_model(8, 1536, 16, 512)
    yield from train_gpt2(model, config, torch.optim.AdamW(model.parameters(), lr=1e-4), 4, 512)


@case
def kind_conv():
    """ResNet-50: mid-size tensors of many sizes."""
    from torchvision.models import resnet50

    model = resnet50().to(CUDA)
    images = lambda: (torch.randn(64, 3, 224, 224, device=CUDA), torch.randint(0, 1000, (64,), device=CUDA))  # noqa: E731
    yield from train(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), images, classify)


def twice(convolution, norm, inner, outer):
    layers = []
    for width in (inner, outer):
        layers += [convolution(width, outer, 3, padding=1), norm(outer), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.down = nn.ModuleList(twice(nn.Conv2d, nn.BatchNorm2d, i, o) for i, o in zip((3, *widths), widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in pairs)
        self.up = nn.ModuleList(twice(nn.Conv2d, nn.BatchNorm2d, i, o) for i, o in pairs)
        self.head = nn.Conv2d(widths[0], 4, 1)

    def forward(self, x):
        kept = []
        for level in self.down:
            x = level(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        kept.pop()
        for grow, level in zip(self.grow, self.up):
            x = level(torch.cat([kept.pop(), grow(x)], 1))
        return self.head(x)


@case
def kind_unet():
    """Encoder and decoder with connections between them, half precision."""
    model = UNet((64, 128, 256, 512)).to(CUDA)
    scaler = torch.amp.GradScaler(CUDA)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    yield
    while True:
        images = torch.randn(16, 3, 320, 320, device=CUDA)
        with torch.autocast(CUDA, dtype=torch.float16):
            loss = model(images).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        yield loss_digest(loss)


@case
def kind_conv3d():
    layers = []
    for inner, outer in ((1, 24), (24, 48), (48, 96)):
        layers += [twice(nn.Conv3d, nn.BatchNorm3d, inner, outer), nn.Conv3d(outer, outer, 2, stride=2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(96, 8)).to(CUDA)
    volumes = lambda: (torch.randn(8, 1, 80, 80, 80, device=CUDA), torch.randint(0, 8, (8,), device=CUDA))  # noqa: E731
    yield from train(model, torch.optim.Adam(model.parameters(), lr=1e-4), volumes, classify)


class Recurrent(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = norm(x + layer(x)[0])
        return x


@case
def kind_recurrent():
    model = Recurrent(1536, 6).to(CUDA)
    inputs = lambda: torch.randn(32, 384, 1536, device=CUDA)  # noqa: E731
    loss = lambda model, x: (model(x)[:, :-1] - x[:, 1:]).square().mean()  # noqa: E731
    yield from train(model, torch.optim.Adam(model.parameters(), lr=1e-4), inputs, loss)


class Experts(nn.Module):
    """Each token goes to two experts: the numbers of tokens, and so all sizes, differ each step."""

    def __init__(self, width, count):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(count)
        )

    def forward(self, x):
        normed = self.norm(x)
        weights, chosen = self.router(normed).softmax(-1).topk(2)
        out = x
        for number, expert in enumerate(self.experts):
            rows, slot = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(normed[rows]) * weights[rows, slot].unsqueeze(1))
        return out


@case
def kind_experts():
    model = nn.Sequential(*[Experts(1024, 8) for _ in range(6)]).to(CUDA)
    inputs = lambda: torch.randn(8192, 1024, device=CUDA)  # noqa: E731
    loss = lambda model, x: (model(x) - x.roll(1, 0)).square().mean()  # noqa: E731
    yield from train(model, torch.optim.SGD(model.parameters(), lr=1e-2), inputs, loss)


class Adapted(nn.Module):
    """A frozen linear layer with a trained one of low rank beside it."""

    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, rank, bias=False, device=CUDA)
        self.up = nn.Linear(rank, linear.out_features, bias=False, device=CUDA)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x.float())).to(x.dtype)


@case
def kind_adapter():
    """Fine-tuning of adapters with checkpoints of activations; attention repeats its results."""
    model = llama_model(3072, 8192, 18, 24)
    model.set_attn_implementation("eager")
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj, 16)
        layer.self_attn.v_proj = Adapted(layer.self_attn.v_proj, 16)
    model.train()
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    trained = [p for p in model.parameters() if p.requires_grad]
    tokens = lambda: torch.randint(0, 32000, (4, 512), device=CUDA)  # noqa: E731
    yield from train(model, torch.optim.AdamW(trained, lr=1e-4), tokens, lambda model, ids: model(ids, labels=ids).loss)


@case
def kind_paged():
    """Decoding with a paged cache: a pool of blocks for each layer, a table of blocks for each
    sequence. Each step appends and reads what the tables name.
    """
    layers, width, heads, block, blocks, batch = 16, 2048, 16, 16, 2048, 24
    weights = [
        {name: torch.randn(width, columns, device=CUDA, dtype=torch.bfloat16) / width**0.5 for name, columns in
         (("qkv", 3 * width), ("out", width), ("up", 4 * width))}
        | {"down": torch.randn(4 * width, width, device=CUDA, dtype=torch.bfloat16) / (4 * width) ** 0.5}
        for _ in range(layers)
    ]  # fmt: skip
    pools = [torch.zeros(2, blocks * block, width, device=CUDA, dtype=torch.bfloat16) for _ in range(layers)]
    tables = torch.randperm(blocks)[: batch * (blocks // batch)].view(batch, -1).to(CUDA)
    length = 256
    for pool in pools:
        pool.normal_()
    x = torch.randn(batch, width, device=CUDA, dtype=torch.bfloat16)
    yield
    while True:
        at = tables[:, length // block] * block + length % block
        rows = (tables[:, : length // block + 1, None] * block + torch.arange(block, device=CUDA)).view(batch, -1)
        rows = rows[:, : length + 1]
        for weight, pool in zip(weights, pools):
            query, key, value = F.layer_norm(x, (width,)).matmul(weight["qkv"]).chunk(3, -1)
            pool[0, at] = key
            pool[1, at] = value
            keys, values = (pool[i, rows].view(batch, -1, heads, width // heads).transpose(1, 2) for i in (0, 1))
            scores = query.view(batch, heads, 1, -1) @ keys.mT / (width // heads) ** 0.5
            attended = (scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, width)
            x = x + attended @ weight["out"]
            x = x + F.gelu(F.layer_norm(x, (width,)) @ weight["up"]) @ weight["down"]
        x = F.layer_norm(x, (width,))
        length += 1
        yield digest(x)


@case
def kind_embeddings():
    """26 tables with sparse gradients, some of them small."""
    rows = [1 << (12 + i % 9) for i in range(26)]
    tables = nn.ModuleList(nn.Embedding(n, 256, sparse=True) for n in rows).to(CUDA)
    head = nn.Sequential(nn.Linear(26 * 256, 1024), nn.ReLU(), nn.Linear(1024, 1)).to(CUDA)
    sparse, dense = torch.optim.SGD(tables.parameters(), lr=0.1), torch.optim.Adam(head.parameters())
    yield
    while True:
        ids = [torch.randint(0, table.num_embeddings, (4096,), device=CUDA) for table in tables]
        loss = head(torch.cat([table(each) for table, each in zip(tables, ids)], 1)).square().mean()
        loss.backward()
        for optimizer in (sparse, dense):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield loss_digest(loss)


class Stream:
    """A thread's model, which it trains on a stream of its own."""

    def __init__(self, number):
        self.stream = torch.cuda.Stream()
        self.random = torch.Generator(CUDA)
        self.random.manual_seed(number)
        self.model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(4096, 4096), nn.GELU())]).to(CUDA)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.digest = ""

    def step(self):
        with torch.cuda.stream(self.stream):
            x = torch.randn(2048, 4096, device=CUDA, generator=self.random)
            loss = (self.model(x) - x).square().mean()
            update(loss, self.optimizer)
            self.digest = loss_digest(loss)


def train_streams(make_step):
    streams = [Stream(i) for i in range(4)]
    torch.cuda.synchronize()
    yield
    while True:
        make_step(streams)
        yield " ".join(each.digest for each in streams)


@case
def kind_threads():
    """Four threads, each with its stream."""

    def step(streams):
        threads = [threading.Thread(target=each.step) for each in streams]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    yield from train_streams(step)


@case
def kind_streams():
    """The same work by one thread."""

    def step(streams):
        for each in streams:
            each.step()

    yield from train_streams(step)


@case
def kind_train_eval():
    """Each third step evaluates, on a larger batch."""
    model, config = gpt2_model(8, 1536, 16, 512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    yield
    number = 0
    while True:
        number += 1
        evaluates = number % 3 == 0
        ids = torch.randint(0, config.vocab_size, (8 if evaluates else 4, 512), device=CUDA)
        with torch.set_grad_enabled(not evaluates), torch.autocast(CUDA, dtype=torch.bfloat16):
            loss = model(ids, labels=ids).loss
        if not evaluates:
            update(loss, optimizer)
        yield loss_digest(loss)


@case
def kind_random():
    """Uses without an order."""
    tensors = [torch.randn(1 << 24, device=CUDA) for _ in range(80)]
    order = torch.Generator()
    order.manual_seed(0)
    yield
    while True:
        at = torch.randint(0, len(tensors), (3, 24), generator=order).tolist()
        for first, second, out in zip(*at):
            torch.add(tensors[first], tensors[second], alpha=0.5, out=tensors[out]).clamp_(-4, 4)
        yield digest(tensors[at[2][-1]][:: 1 << 10])
