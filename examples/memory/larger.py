# SPDX-License-Identifier: MIT OR Apache-2.0
"""A CUDA program that fills blocks of memory and reads them back, by the driver's own functions: more than the GPU has, or in turns with others.

    python3 larger.py --blocks=4 --mib=64 --rounds=3

It needs no CUDA but the driver. In a lab of `gpuos lab up --memory` it is run by `cuda python3 larger.py`.
"""

import argparse
import ctypes
import time

MIB = 1 << 20


class Driver:
    """The functions of libcuda.so.1; one that fails ends the program with its code."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise SystemExit(f"{name} gave {code}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--mib", type=int, default=64, help="MiB of each block")
    parser.add_argument("--rounds", type=int, default=3, help="how often all of them are written and read")
    given = parser.parse_args()
    driver = Driver()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver.call("cuInit", 0)
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    print(f"the program sees {total.value // MIB} MiB", flush=True)
    size = given.mib * MIB
    blocks = []
    for _ in range(given.blocks):
        address = ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        blocks.append(address)
    word = ctypes.c_uint32()
    for turn in range(given.rounds):
        for at, block in enumerate(blocks):
            driver.call("cuMemsetD32_v2", block, ctypes.c_uint32(turn * 1000 + at), ctypes.c_size_t(size // 4))
        driver.call("cuCtxSynchronize")
        for at, block in enumerate(blocks):
            last = ctypes.c_uint64(block.value + size - 4)
            driver.call("cuMemcpyDtoH_v2", ctypes.byref(word), last, ctypes.c_size_t(4))
            if word.value != turn * 1000 + at:
                raise SystemExit(f"block {at} has {word.value} in round {turn}")
        print(f"{time.strftime('%X')} round {turn + 1}: {given.blocks} blocks of {given.mib} MiB hold what was written", flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
