#!/usr/bin/env python3
"""A training loop that ends with the same parameters, however often it was interrupted: train.py STEPS [SECONDS]

    sbatch --requeue --gpuos-checkpoint=10m train.py 100000

    export MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=29500
    srun python3 train.py 100000

The second form stands in a script of several nodes. With torch the ranks train a small network by torch.distributed over gloo; without it,
one process fits a line. PYTHONPATH has the package gpuos, /usr/share/gpuos/python where gpuos is installed.
"""

import hashlib
import os
import random
import struct
import sys
import time

from gpuos import checkpoint

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = dist = None


class Sampler:
    """Which example comes next: all of them in random order, then anew. What is left of the order is part of the state."""

    def __init__(self, examples):
        self.examples, self.left = examples, []

    def next(self):
        if not self.left:
            self.left = random.sample(self.examples, len(self.examples))
        return self.left.pop()


class Network:
    """A network of torch, the same on all ranks; each rank has examples and random numbers of its own."""

    def __init__(self, rank, size):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.size = size
        self.inputs = torch.randn(240, 8)
        self.targets = self.inputs.sum(1, keepdim=True).sin()
        layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.sampler = Sampler(range(rank, 240, size))
        torch.manual_seed(1 + rank)
        random.seed(1 + rank)

    def step(self):
        batch = [self.sampler.next() for _ in range(8)]
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(self.inputs[batch]), self.targets[batch])
        loss.backward()
        for parameter in self.model.parameters() if self.size > 1 else []:
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.size
        self.optimizer.step()

    def state(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "left": self.sampler.left,
            "random": checkpoint.rng_state(),
        }

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sampler.left = state["left"]
        checkpoint.set_rng_state(state["random"])

    def parameters(self):
        return [value for parameter in self.model.parameters() for value in parameter.detach().flatten().tolist()]


class Line:
    """A line through points, in Python alone."""

    def __init__(self, _rank, _size):
        random.seed(0)
        self.slope, self.height = 0.0, 0.0
        self.sampler = Sampler(range(100))

    def step(self):
        at = self.sampler.next() / 100
        error = self.slope * at + self.height - (3 * at + 1 + random.gauss(0, 0.1))
        self.slope -= 0.1 * error * at
        self.height -= 0.1 * error

    def state(self):
        return {"line": self.parameters(), "left": self.sampler.left, "random": checkpoint.rng_state()}

    def load(self, state):
        self.slope, self.height = state["line"]
        self.sampler.left = state["left"]
        checkpoint.set_rng_state(state["random"])

    def parameters(self):
        return [self.slope, self.height]


def main():
    steps = int(sys.argv[1])
    pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
    rank, size = checkpoint.launched()
    if size > 1 and torch:
        dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), rank=rank, world_size=size)
    task = Network(rank, size) if torch else Line(rank, size)
    with checkpoint.session() as ckpt:
        state = ckpt.load({"step": 0})
        step = state["step"]
        if ckpt.restored:
            task.load(state)
            print(f"restored checkpoint {ckpt.restored.number} at {step}", flush=True)
        else:
            print("new", flush=True)
        while step < steps:
            task.step()
            step += 1
            time.sleep(pause)
            if ckpt.due(step) and ckpt.save({"step": step, **task.state()}):
                print(f"saved {ckpt.number} at {step}", flush=True)
                if ckpt.ending:
                    return
    parameters = task.parameters()
    digest = hashlib.sha256(struct.pack(f"{len(parameters)}d", *parameters)).hexdigest()
    print(f"parameters {digest}", flush=True)
    print(f"done at {step}", flush=True)


main()
