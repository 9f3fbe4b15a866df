# SPDX-License-Identifier: Apache-2.0
"""The programs that are timed, and the one that runs for long."""

import itertools
import os
import time

import torch
from common import ARGS, DEVICE, main, size
from torch import nn
from torch.nn import functional


def pinned(tensor):
    return tensor.pin_memory() if DEVICE.type == "cuda" else tensor


def gpt2(**other):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**size({}, {"n_layer": 2, "n_embd": 64, "n_head": 2}), **other)
    with DEVICE:
        return config, GPT2LMHeadModel(config).train()


def gpt(run):
    """Training steps of a network of GPT-2's smallest size: bf16 autocast, AdamW, tokens from
    pinned memory."""
    config, net = gpt2()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    tokens = pinned(torch.randint(config.vocab_size, (4, *size((16, 1024), (2, 32)))))
    batches = itertools.cycle(tokens)
    losses = []

    def step():
        x = next(batches).to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = net(x, labels=x).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())

    run.steps(step, warm=5, every=10, blocks=size(4, 1))
    run.keep("losses", torch.stack(losses)[:: max(1, len(losses) // 10)])
    run.keep("head", net.transformer.h[0].mlp.c_fc.weight)


def resnet50(run, batch):
    """Inference in fp32, NCHW; `batch` gives what goes in."""
    from torchvision.models import resnet50

    with DEVICE:
        net = resnet50().eval()

    @torch.inference_mode()
    def step():
        nonlocal out
        out = net(batch())

    out = None
    run.steps(step, warm=5, every=10, blocks=size(10, 1))
    run.keep("logits", out)


IMAGES = (size(32, 2), 3, *size((224, 224), (64, 64)))


def resnet(run):
    """The images lie on the GPU."""
    images = torch.randn(IMAGES).to(DEVICE)
    resnet50(run, lambda: images)


def resnet_fed(run):
    """The images come from pinned memory, a byte a colour."""
    images = pinned(torch.randint(256, IMAGES, dtype=torch.uint8))
    resnet50(run, lambda: images.to(DEVICE, non_blocking=True).float().div_(255))


def layers():
    parts = ((nn.Linear(256, 256), nn.ReLU()) for _ in range(10))
    return nn.Sequential(*itertools.chain.from_iterable(parts)).to(DEVICE)


def launches(run):
    """Ten layers, inference: the processor has more to do than the GPU."""
    net, x = layers(), torch.randn(32, 256).to(DEVICE)

    @torch.inference_mode()
    def step():
        nonlocal out
        out = net(x)

    out = None
    run.steps(step, warm=20, every=size(200, 10), blocks=size(20, 1))
    run.keep("out", out)


def launches_train(run):
    """The same with backwards and a step of SGD."""
    net, x = layers(), torch.randn(32, 256).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        loss = functional.mse_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    run.steps(step, warm=20, every=size(100, 10), blocks=size(10, 1))
    run.keep("weight", net[0].weight)


def soak(run):
    """Trains for --seconds, to the last bit the same each time; batches of all sizes."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    config, net = gpt2(n_positions=128, attn_implementation="eager")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    tokens = pinned(torch.randint(config.vocab_size, (64, 16, 128)))
    begun, losses = time.monotonic(), []
    for step in itertools.count():
        x = tokens[step % 64, : 1 + step % 16].to(DEVICE, non_blocking=True)
        loss = net(x, labels=x).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            losses.append(loss.item())
            if time.monotonic() - begun > ARGS.seconds:
                break
    run.keep("losses", losses)


if __name__ == "__main__":
    main(
        {
            "gpt": gpt,
            "resnet": resnet,
            "resnet-fed": resnet_fed,
            "launches": launches,
            "launches-train": launches_train,
            "soak": soak,
        }
    )
