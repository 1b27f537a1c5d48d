# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs with PyTorch that know nothing of gpuos: `python3 train.py NAME [WORD...]`. Each ends with one line of JSON."""

import json
import sys
import time


def train(layers="8", width="4096", steps="6", tokens="2048", graph="0"):
    """Trains layers by Adam: weights, gradients and two moments, 16 bytes a parameter, are touched in each step. Tells losses and times of steps."""
    import torch

    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    width = int(width)
    with torch.device("cuda"):
        parts = []
        for _ in range(int(layers)):
            parts += [torch.nn.Linear(width, width, bias=False), torch.nn.GELU()]
        model = torch.nn.Sequential(*parts)
        data, want = torch.randn(int(tokens), width), torch.randn(int(tokens), width)
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False, capturable=graph != "0")

    def step():
        loss = torch.nn.functional.mse_loss(model(data), want)
        adam.zero_grad(set_to_none=False)
        loss.backward()
        adam.step()
        return loss

    losses, times, replay, loss = [], [], None, None
    if graph != "0":
        # Before a capture work has to be on a stream of its own, as PyTorch's documentation has it.
        torch.cuda.set_stream(torch.cuda.Stream())
    for number in range(int(steps)):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        if graph != "0" and number == 3:
            replay = torch.cuda.CUDAGraph()
            with torch.cuda.graph(replay, stream=torch.cuda.current_stream()):
                loss = step()
        if replay is None:
            loss = step()
        else:
            replay.replay()
        losses.append(loss.item())
        torch.cuda.synchronize()
        times.append(round(time.perf_counter() - begun, 4))
    free, total = torch.cuda.mem_get_info()
    return {"losses": losses, "times": times, "peak_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2), "info_gib": [round(free / 2**30, 1), round(total / 2**30, 1)]}


def work(gib="8", count="500"):
    """Works on all of so much memory in each step. Tells when it began and ended, by the clock of the machine, and a sum over its results."""
    import torch

    torch.manual_seed(1)
    with torch.device("cuda"):
        parts = [torch.ones(64 << 20, dtype=torch.int32) for _ in range(int(gib) * 4)]
        left = torch.randn(4096, 4096, dtype=torch.bfloat16)
    torch.cuda.synchronize()
    began = time.time()
    for number in range(int(count)):
        for part in parts:
            part.add_(number)
        for _ in range(16):
            left = (left @ left).clamp_(-1, 1)
        torch.cuda.synchronize()
    ended = time.time()
    total = sum(int(part.sum(dtype=torch.int64)) for part in parts)
    return {"began": began, "ended": ended, "sum": total}


def steps(count="400", warm="40", width="2048"):
    """A step of a small model, launched often: what a gate costs where everything fits. Tells seconds for each of the blocks of steps."""
    import torch

    torch.manual_seed(1)
    with torch.device("cuda"):
        model = torch.nn.Sequential(*(torch.nn.Linear(int(width), int(width)) for _ in range(24)))
        data = torch.randn(512, int(width))
    adam = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for number in range(int(warm) + int(count)):
        if number == int(warm):
            torch.cuda.synchronize()
            begun = time.perf_counter()
        adam.zero_grad()
        model(data).square().mean().backward()
        adam.step()
    torch.cuda.synchronize()
    return {"step_ms": round((time.perf_counter() - begun) * 1000 / int(count), 4)}


def pool():
    """Memory of gpuos under PyTorch: a pool that leaves the GPU between two uses, with its bytes at the same addresses after."""
    import torch

    from gpuos import memory

    with memory.open(hbm=6 << 30, host=8 << 30) as mem:
        mem.use_for_torch(0)
        pool = torch.cuda.MemPool(memory.torch_allocator().allocator())
        with torch.cuda.use_mem_pool(pool):
            parts = [torch.full((256 << 20,), index, dtype=torch.int32, device="cuda") for index in range(4)]
        torch.cuda.synchronize()
        before, places = torch.cuda.mem_get_info()[0], [part.data_ptr() for part in parts]
        mem.pause_torch(0)
        mem.limit(hbm=256 << 20, host=8 << 30)
        deadline = time.perf_counter() + 20
        while torch.cuda.mem_get_info()[0] < before + (3 << 30) and time.perf_counter() < deadline:
            time.sleep(0.01)
        while_away = torch.cuda.mem_get_info()[0]
        mem.limit(hbm=6 << 30, host=8 << 30)
        begun = time.perf_counter()
        mem.resume_torch(0)
        took = time.perf_counter() - begun
        good = [bool((part == index).all()) for index, part in enumerate(parts)] + [places == [part.data_ptr() for part in parts]]
        stats = mem.stats()
        del parts, pool
    return {"good": good, "left_gib": round((while_away - before) / 2**30, 2), "back_s": round(took, 3), "stats": stats}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
