# Trains a transformer of 0.6 billion parameters with Adam: 12 GB of GPU memory. It does not use
# vmem.
#
#     python train.py                                on a GPU with room for it
#     vmem run --hbm 6GiB -- python train.py         in half of that: the same losses
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
from torch import nn  # noqa: E402

# So that two runs can be compared digit by digit, with vmem or without.
torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
layer = nn.TransformerEncoderLayer(d_model=2048, nhead=16, dim_feedforward=8192, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, num_layers=12, enable_nested_tensor=False).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
x = torch.randn(8, 256, 2048, device="cuda")

for step in range(8):
    torch.cuda.synchronize()
    began = time.perf_counter()
    loss = (model(x) - x.roll(1, dims=1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.9f}, {time.perf_counter() - began:.2f} s")

print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of GPU memory allocated at once")
