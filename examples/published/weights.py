"""A model's weights that one process of a cluster publishes, and others open as tensors.

    vmem run -- python weights.py publish NAME   publishes them, and keeps them until its input ends
    vmem run -- python weights.py open NAME      waits for the name, and gives them to a model

The cluster is VMEM_CLUSTER. Needs PyTorch and a GPU. The weights have the same address in all
processes, and are copied to none before it uses them. Each process prints the checksum of its
model's weights: the publisher's is of what it made, an opener's of what its GPU reads.
"""

import sys

import torch
import vmem.torch


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))


def checksum(module):
    return sum(tensor.view(torch.int32).sum().item() for tensor in module.state_dict().values())


def publish(name):
    module = model()  # on the CPU; tensors on a GPU can be published as well
    published = vmem.torch.publish_state_dict(name, module.state_dict())
    print(f"published {published.nbytes >> 20} MiB as '{name}': the checksum is {checksum(module)}", flush=True)
    sys.stdin.read()  # others fetch pages from here


def use(name):
    tensors = vmem.torch.open_state_dict(name)
    with torch.device("meta"):
        module = model()  # without memory
    module.load_state_dict(tensors, assign=True)  # no copy
    print(f"opened '{name}' at {tensors['0.weight'].data_ptr():#x}: the checksum is {checksum(module)}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("publish", "open"):
        sys.exit(f"usage: {sys.argv[0]} publish|open NAME")
    (publish if sys.argv[1] == "publish" else use)(sys.argv[2])
