"""A training loop of so many steps, with so many MiB of parameters: train.py STEPS MIB. Its last line has what it took."""

import sys
import time

import torch
from gpuos import checkpoint

steps, layers = int(sys.argv[1]), max(1, int(sys.argv[2]) // 16)
torch.set_num_threads(1)
torch.manual_seed(0)
# 16 MiB each.
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(layers)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
inputs, targets = torch.randn(16, 2048), torch.randn(16, 2048)


def step():
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()


with checkpoint.session() as ckpt:
    ckpt.load({"step": 0})
    step()
    saved, stood = 0, 0.0
    begun = time.monotonic()
    for at in range(steps):
        step()
        if ckpt.due(at):
            before = time.monotonic()
            if ckpt.save({"step": at, "model": model.state_dict()}):
                saved += 1
            stood += time.monotonic() - before
    print(f"took {time.monotonic() - begun:.3f} saved {saved} stood {stood:.3f}", flush=True)
    # Until somebody has asked what gpuos has measured.
    if len(sys.argv) > 3:
        time.sleep(float(sys.argv[3]))
