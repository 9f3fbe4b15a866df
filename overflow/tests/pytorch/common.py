# SPDX-License-Identifier: Apache-2.0
"""What the programs share. A program is told the names of its workloads and says one line of JSON
for each: `result` (names and numbers or text), `first_s` (from the process's start to the first
result), `step_s` (seconds a step, of each block of steps) and, where calls go elsewhere, `calls`
(of each kind of the counters, a step) and `waits` (of each call that was waited for, a step)."""

import argparse
import json
import math
import os
import struct
import time
import traceback

import torch

_args = argparse.ArgumentParser()
_args.add_argument("names", nargs="+")
_args.add_argument("--device", default="cuda")
_args.add_argument("--small", action="store_true", help="sizes for a processor")
_args.add_argument("--seconds", type=float, help="fewer steps where they take longer than this")
ARGS = _args.parse_args()
# Words of the shim's file before those of the calls that were waited for.
COUNTERS = 6
DEVICE = torch.device(ARGS.device)
# CLOCK_MONOTONIC when the process was started, as its parent says.
STARTED = float(os.environ.get("STARTED_S", time.monotonic()))


def size(full, small):
    """The one or, with --small, the other."""
    return small if ARGS.small else full


def sync():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def counters():
    """What the shim has counted for this process; nothing where no call goes elsewhere."""
    try:
        with open(os.environ["GHOST_OVERFLOW"]) as ticket:
            folder = json.load(ticket)["stats"]
        with open(f"{folder}/{os.getpid()}", "rb") as file:
            words = file.read()
        return struct.unpack(f"<{len(words) // 8}Q", words)
    except (KeyError, OSError, struct.error):
        return None


class Run:
    """What comes out of one workload."""

    def __init__(self):
        self.said = {"result": {}}

    def keep(self, name, value):
        """A part of the result. A tensor of more than 16 elements becomes three sums."""
        if isinstance(value, torch.Tensor):
            value = value.detach().to("cpu").double().flatten()
            if len(value) > 16:
                ramp = torch.linspace(-1, 1, len(value), dtype=torch.double)
                value = torch.stack([value.sum(), value.abs().sum(), (value * ramp).sum()])
            # JSON has no word for what is no number.
            value = [v if math.isfinite(v) else str(v) for v in value.tolist()]
        self.said["result"][name] = value

    def first(self):
        """The first result is there."""
        self.said["first_s"] = time.monotonic() - STARTED

    def steps(self, step, warm, every, blocks):
        """Times `step` in blocks of `every` steps that end with a wait for the GPU, as a loop does
        that looks at its loss now and then."""
        for done in range(warm):
            begun = time.monotonic()
            step()
            if done == 0:
                sync()
                self.first()
            elif ARGS.seconds:
                sync()
                every = max(1, min(every, int(ARGS.seconds / (time.monotonic() - begun))))
                if every == 1:
                    break
        sync()
        before, begun = counters(), time.monotonic()
        took = []
        for _ in range(blocks):
            block = time.monotonic()
            for _ in range(every):
                step()
            sync()
            took.append((time.monotonic() - block) / every)
            if ARGS.seconds and time.monotonic() - begun > ARGS.seconds:
                break
        after = counters()
        self.said["step_s"] = took
        if before and after:
            done = every * len(took)
            calls = [(b - a) / done for a, b in zip(before, after)]
            self.said["calls"] = calls[:COUNTERS]
            self.said["waits"] = {at: n for at, n in enumerate(calls[COUNTERS:]) if n}


def main(workloads):
    """Runs those that were named; one that fails says why, and the next runs."""
    for name in ARGS.names:
        run = Run()
        torch.manual_seed(1)
        try:
            workloads[name](run)
            sync()
        except Exception as e:
            traceback.print_exc()
            run.said["error"] = f"{type(e).__name__}: {e}"
        print(json.dumps({"name": name, **run.said}), flush=True)
