# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that the checks start, with gpuos's library before them or without: `python3 program.py NAME [WORD...]`. Each ends with one line of JSON."""

import ctypes
import json
import random
import sys
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

from cuda import GIB, MIB, CudaError, Gpu


def functions():
    """Which functions of the driver cuGetProcAddress gives at another address than the loader. Words: NAME:BASE:VERSION."""
    gpu, other, none = Gpu(), [], []
    for word in sys.stdin.read().split():
        name, base, version = word.split(":")
        try:
            export = ctypes.cast(getattr(gpu.lib, name), c_void_p).value
        except AttributeError:
            none.append(name)
            continue
        found, status = c_void_p(), c_int()
        flag = 2 if name.endswith(("_ptsz", "_ptds")) else 0
        code = gpu.lib.cuGetProcAddress_v2(base.encode(), byref(found), c_int(int(version)), c_ulonglong(flag), byref(status))
        if code or found.value != export:
            other.append(name)
    return {"other": other, "not_there": none}


def machine():
    """What the driver says of itself and of the GPU."""
    gpu, version = Gpu(), c_int()
    gpu.call("cuDriverGetVersion", byref(version))
    name = ctypes.create_string_buffer(96)
    gpu.call("cuDeviceGetName", name, c_int(96), c_int(gpu.device))
    numbers = {"virtual_memory": 102, "host_virtual_memory": 141, "host_node": 134, "compute_major": 75, "unified": 41, "pageable": 88}
    return {"name": name.value.decode(), "driver": version.value, "memory": gpu.info(), **{key: gpu.attribute(one) for key, one in numbers.items()}}


def costs():
    """What the driver's calls cost, for extents of 64 MiB: milliseconds for each, and GB/s of copies."""
    gpu, size, count = Gpu(), 64 * MIB, 8
    told = {}
    at = gpu.reserve(count * size)
    for place, number in ((1, 0), (3, max(0, gpu.attribute(134)))):
        name, handles, took = {1: "hbm", 3: "host"}[place], [], {}

        def step(what, body):
            begun = time.perf_counter()
            for index in range(count):
                body(index)
            took[what] = round((time.perf_counter() - begun) * 1000 / count, 3)

        step("create", lambda _: handles.append(gpu.create(size, place, number)))
        step("map", lambda index: gpu.map(at + index * size, size, handles[index]))
        step("access", lambda index: gpu.access(at + index * size, size))
        words = count * size // 4
        gpu.fill(at, 1, words)
        gpu.add(at, words, 1)
        gpu.sync()
        seconds = min(gpu.timed(lambda: gpu.add(at, words, 1)) for _ in range(3))
        took["kernel_gb_s"] = round(2 * count * size / seconds / 1e9, 1)
        if place == 3:
            there = gpu.alloc(count * size)
            for what, to, source in (("host_to_hbm_gb_s", there, at), ("hbm_to_host_gb_s", at, there)):
                def copy(to=to, source=source):
                    gpu.call("cuMemcpyDtoDAsync_v2", c_ulonglong(to), c_ulonglong(source), c_size_t(count * size), None)
                took[what] = round(count * size / min(gpu.timed(copy) for _ in range(3)) / 1e9, 1)
            gpu.free(there)
        gpu.sync()
        step("unmap", lambda index: gpu.unmap(at + index * size, size))
        step("release", lambda index: gpu.release(handles[index]))
        told[name] = took
    pinned, there = gpu.pinned(count * size), gpu.alloc(count * size)

    def up():
        gpu.call("cuMemcpyHtoDAsync_v2", c_ulonglong(there), c_void_p(pinned), c_size_t(count * size), None)

    def down():
        gpu.call("cuMemcpyDtoHAsync_v2", c_void_p(pinned), c_ulonglong(there), c_size_t(count * size), None)

    told["pinned"] = {name: round(count * size / min(gpu.timed(body) for _ in range(3)) / 1e9, 1) for name, body in (("up_gb_s", up), ("down_gb_s", down))}
    return told


def crossing():
    """Copies and fills across the end of the GPU's part of an allocation, and what the driver says of addresses on both sides."""
    gpu, size = Gpu(), 1536 * MIB
    words = size // 4
    first, second = gpu.alloc(size), gpu.alloc(size // 2)
    failed = []

    def tried(what, body):
        try:
            body()
            gpu.sync()
        except CudaError as error:
            failed.append(f"{what}: {error}")

    tried("fill", lambda: gpu.fill(first, 3, words))
    tried("fill of bytes", lambda: gpu.call("cuMemsetD8_v2", c_ulonglong(first), ctypes.c_ubyte(1), c_size_t(size)))
    tried("fill", lambda: gpu.fill(first, 3, words))
    tried("kernel", lambda: gpu.add(first, words, 4))
    tried("copy", lambda: gpu.call("cuMemcpyDtoD_v2", c_ulonglong(second), c_ulonglong(first), c_size_t(size // 2)))
    tried("copy from both", lambda: gpu.call("cuMemcpyDtoD_v2", c_ulonglong(second), c_ulonglong(first + size // 3), c_size_t(size // 2)))
    buffer = (c_uint * words)()
    tried("download", lambda: gpu.call("cuMemcpyDtoH_v2", buffer, c_ulonglong(first), c_size_t(size)))
    wrong = sum(1 for index in range(0, words, 4093) if buffer[index] != 7)
    tried("upload", lambda: gpu.call("cuMemcpyHtoD_v2", c_ulonglong(first), buffer, c_size_t(size)))
    tried("unified copy", lambda: gpu.call("cuMemcpy", c_ulonglong(second), c_ulonglong(first), c_size_t(size // 2)))
    got = [gpu.sum(first, words), gpu.sum(second, words // 2)]
    kinds = []
    for at in (first, first + size - 4096, second):
        kind = c_uint()
        code = gpu.lib.cuPointerGetAttribute(byref(kind), c_int(2), c_ulonglong(at))
        kinds.append(kind.value if code == 0 else f"error {code}")
    if got != [7 * words, 7 * (words // 2)] or wrong:
        failed.append(f"sums {got}, {wrong} words wrong after the download")
    return {"failed": failed, "memory_types": kinds, "info": gpu.info()}


def moves(seconds="5", seed="1", graphs="0"):
    """Works on random parts of more memory than it has of the GPU, directly or by graphs that are instantiated once, and compares all at the end."""
    gpu, pick = Gpu(), random.Random(int(seed))
    count, size = 24, 96 * MIB
    words = size // 4
    places = [gpu.alloc(size) for _ in range(count)]
    for at in places:
        gpu.fill(at, 0, words)
    stream, wanted, replays = gpu.stream(), [0] * count, []
    if graphs != "0":
        for at in places:
            graph, ready = c_void_p(), c_void_p()
            gpu.call("cuStreamBeginCapture_v2", stream, c_int(2))
            gpu.add(at, words, 1, stream=stream)
            gpu.call("cuStreamEndCapture", stream, byref(graph))
            gpu.call("cuGraphInstantiateWithFlags", byref(ready), graph, c_ulonglong(0))
            replays.append(ready)
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < float(seconds):
        # Hot for a while, then others.
        hot = (done // 200 * 5) % count
        which = (hot + pick.randrange(6)) % count if pick.random() < 0.9 else pick.randrange(count)
        if replays:
            gpu.call("cuGraphLaunch", replays[which], stream)
        else:
            gpu.add(places[which], words, 1, stream=stream)
        wanted[which] += 1
        done += 1
        if done % 16 == 0:
            gpu.call("cuStreamSynchronize", stream)
    gpu.sync()
    wrong = [index for index, at in enumerate(places) if gpu.sum(at, words) != wanted[index] * words]
    return {"launches": done, "wrong": wrong, "seconds": round(time.perf_counter() - begun, 2)}


def held(gib="8", seconds="10"):
    """Fills memory, works a little all the time, and compares at the end: for what is done to it meanwhile."""
    gpu, size = Gpu(), int(float(gib) * GIB)
    part = 512 * MIB
    places = [gpu.alloc(part) for _ in range(size // part)]
    for index, at in enumerate(places):
        gpu.fill(at, index, part // 4)
    gpu.sync()
    print("ready", flush=True)
    begun, times, longest = time.perf_counter(), 0, 0.0
    while time.perf_counter() - begun < float(seconds):
        before = time.perf_counter()
        gpu.add(places[times % len(places)], part // 4, 1)
        gpu.sync()
        longest = max(longest, time.perf_counter() - before)
        times += 1
        time.sleep(0.01)
    rounds = [times // len(places) + (index < times % len(places)) for index in range(len(places))]
    wrong = [index for index, at in enumerate(places) if gpu.sum(at, part // 4) != (index + rounds[index]) * (part // 4)]
    return {"times": times, "wrong": wrong, "longest_s": round(longest, 2)}


def host(gib="4"):
    """Takes host memory behind addresses of the GPU, and tells what the control group and the process are charged."""
    from pathlib import Path

    group = Path("/proc/self/cgroup").read_text().split("\n")
    two = [line[3:] for line in group if line.startswith("0::")]
    one = [line.split(":", 2)[2] for line in group if ":memory:" in line]
    files = [Path("/sys/fs/cgroup/memory" + path + "/memory.usage_in_bytes") for path in one] + [Path("/sys/fs/cgroup" + path + "/memory.current") for path in two]
    files = [file for file in files if file.exists()]

    def used():
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        return (int(files[0].read_text()) if files else None), rss

    gpu, before = Gpu(), used()
    handles = [gpu.create(256 * MIB, 3, max(0, gpu.attribute(134))) for _ in range(int(gib) * 4)]
    after = used()
    for handle in handles:
        gpu.release(handle)
    charged = after[0] - before[0] if files else None
    return {"asked": int(gib) * GIB, "charged": charged, "resident": after[1] - before[1], "group": str(files[0]) if files else None}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
