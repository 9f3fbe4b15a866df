# SPDX-License-Identifier: Apache-2.0
"""What a program sees of the machine, and what its child processes may do."""

import os
import subprocess
import sys

import torch
import torch.multiprocessing
from common import DEVICE, main


def facts(run):
    """The GPU's properties and memory, by CUDA and by NVML."""
    import pynvml

    at = torch.cuda.get_device_properties(0)
    run.keep("count", torch.cuda.device_count())
    run.keep("capability", list(torch.cuda.get_device_capability()))
    for name in ("name", "total_memory", "multi_processor_count", "L2_cache_size", "uuid"):
        run.keep(name, str(getattr(at, name)))
    pynvml.nvmlInit()
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    run.keep("names by NVML", [pynvml.nvmlDeviceGetName(gpu) for gpu in gpus])
    run.keep("uuids by NVML", [pynvml.nvmlDeviceGetUUID(gpu) for gpu in gpus])
    run.keep("memory by NVML", [pynvml.nvmlDeviceGetMemoryInfo(gpu).total for gpu in gpus])

    torch.ones(1).to(DEVICE)
    free, total = torch.cuda.mem_get_info()
    used = torch.cuda.device_memory_used()
    block = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)
    less, _ = torch.cuda.mem_get_info()
    more = torch.cuda.device_memory_used()
    run.keep("total", total)
    run.keep("a GiB less is free", str(abs(free - less - len(block)) < 1 << 26))
    run.keep("a GiB more is used by NVML", str(abs(more - used - len(block)) < 1 << 26))


SEES = """
import torch
print(torch.cuda.is_available(), torch.cuda.device_count())
try:
    print(torch.ones(3).cuda().sum().item())
except Exception as e:
    print(type(e).__name__, str(e).splitlines()[0])
"""


def visible(run):
    """CUDA_VISIBLE_DEVICES."""
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    seen = {}
    for devices in ("", "0", "-1", "7", "0,0", uuid, uuid[:12]):
        env = os.environ | {"CUDA_VISIBLE_DEVICES": devices}
        command = [sys.executable, "-W", "ignore", "-c", SEES]
        seen[devices] = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE)
    for devices, child in seen.items():
        out, _ = child.communicate(timeout=100)
        run.keep(f"={devices}", out.splitlines())


def compute(queue, value):
    """What a child does; the error is an answer too."""
    try:
        queue.put((torch.full((1000,), value).to(DEVICE) * 2).sum().item())
    except RuntimeError as e:
        queue.put(str(e).splitlines()[0])


def children(run, method):
    """Two children compute after their parent has."""
    run.keep("parent", torch.ones(10).to(DEVICE).sum())
    context = torch.multiprocessing.get_context(method)
    queues = [context.Queue() for _ in range(2)]
    both = [context.Process(target=compute, args=(q, i + 1.0)) for i, q in enumerate(queues)]
    for child in both:
        child.start()
    for at, (child, queue) in enumerate(zip(both, queues)):
        run.keep(f"child {at}", queue.get(timeout=100))
        child.join(timeout=20)
        run.keep(f"child {at} ended", child.exitcode)
    run.keep("parent again", torch.ones(20).to(DEVICE).sum())


def change(given, made):
    """What a child does with tensors of its parent: it changes each, and gives one that it made of
    it. Those it keeps until the parent is done with them."""
    kept = []
    try:
        while (tensor := given.get(timeout=60)) is not None:
            tensor += 1
            kept.append(tensor * 2)
            made.put((tensor.double().sum().item(), kept[-1]))
    except Exception as e:
        made.put((f"{type(e).__name__}: {e}", None))


def shared(run):
    """Tensors of the device from one process to another and back, where they are."""
    context = torch.multiprocessing.get_context("spawn")
    given, made = context.Queue(), context.Queue()
    child = context.Process(target=change, args=(given, made))
    child.start()

    def exchange(tensor):
        given.put(tensor)
        total, answer = made.get(timeout=60)
        if isinstance(total, str):
            raise RuntimeError(total)
        return total, answer

    ramp = torch.arange(1 << 20).float().to(DEVICE)
    tensors = {
        "large": ramp,
        "part": ramp[1000:2000],
        "small": torch.rand(3, 5).to(DEVICE),
        "half": torch.rand(64, 64).to(DEVICE).half().t(),
    }
    for name, tensor in tensors.items():
        total, answer = exchange(tensor)
        run.keep(f"{name}, as the child sees it", total)
        run.keep(f"{name}, changed", tensor)
        run.keep(f"{name}, doubled", answer)
        del answer
    turns = [exchange(torch.full((1000,), float(turn)).to(DEVICE)) for turn in range(50)]
    run.keep("turns, as the child sees them", [total for total, _ in turns])
    run.keep("turns, doubled", torch.stack([answer.sum() for _, answer in turns]))
    del turns
    given.put(None)
    child.join(timeout=20)
    run.keep("child ended", child.exitcode)


if __name__ == "__main__":
    main(
        {
            "facts": facts,
            "visible": visible,
            "spawn": lambda run: children(run, "spawn"),
            "fork": lambda run: children(run, "fork"),
            "shared": shared,
        }
    )
