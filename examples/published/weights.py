"""A model's weights that one process of a cluster publishes, and others open as tensors.

    vmem run -- python weights.py publish NAME   keeps them until its input ends
    vmem run -- python weights.py open NAME      computes with them

The cluster is VMEM_CLUSTER. Needs PyTorch and a GPU. The weights have the same address in all
processes, and are copied to none before it uses them.
"""

import sys

import torch
import vmem.torch


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))


def result(module):
    with torch.no_grad():
        return module(torch.ones(8, 1024, device="cuda")).double().sum().item()


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("publish", "open"):
        sys.exit(f"usage: {sys.argv[0]} publish|open NAME")
    if sys.argv[1] == "publish":
        module = model().cuda()
        published = vmem.torch.publish_state_dict(sys.argv[2], module.state_dict())
        print(f"published {published.nbytes >> 20} MiB as '{sys.argv[2]}': {result(module):.6f}", flush=True)
        sys.stdin.read()
        return
    tensors = vmem.torch.open_state_dict(sys.argv[2])
    with torch.device("meta"):
        module = model()
    module.load_state_dict(tensors, assign=True)  # no copy
    print(f"opened '{sys.argv[2]}' at {tensors['0.weight'].data_ptr():#x}: {result(module):.6f}")


if __name__ == "__main__":
    main()
