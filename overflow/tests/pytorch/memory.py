# SPDX-License-Identifier: Apache-2.0
"""PyTorch's other ways to have memory: ranges that grow, and the driver's pools."""

import os
import sys

# It is read when CUDA starts.
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = {
    "expandable": "expandable_segments:True",
    "pools": "backend:cudaMallocAsync",
}[sys.argv[1]]

import torch  # noqa: E402
from common import DEVICE, main  # noqa: E402


def blocks(run):
    """Blocks of all sizes come and go, on two streams, and keep what is in them."""
    run.keep("backend", torch.cuda.get_allocator_backend())
    side = torch.cuda.Stream()
    kept, total = [], torch.zeros((), dtype=torch.double, device=DEVICE)
    for at in range(60):
        block = torch.full((1 + at * 400_000,), float(at), device=DEVICE)
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.current_stream())
            block.record_stream(side)
            doubled = block * 2
        torch.cuda.current_stream().wait_stream(side)
        kept.append(doubled)
        if at % 3 == 2:
            total += kept.pop(0).double().sum()
        if at % 20 == 19:
            torch.cuda.empty_cache()
    for block in kept:
        total += block.double().sum()
    run.keep("total", total)
    run.keep("allocated", torch.cuda.memory_allocated())


if __name__ == "__main__":
    main({"expandable": blocks, "pools": blocks})
