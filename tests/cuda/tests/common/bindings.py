# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory of a device there and back, by NVIDIA's own cuda-bindings."""

from cuda.bindings import driver


def ok(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]


ok(driver.cuInit(0))
print("devices", ok(driver.cuDeviceGetCount()))
device = ok(driver.cuDeviceGet(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
size = 48 << 20
there = (bytes(range(251)) * (size // 251 + 1))[:size]
back = bytearray(size)
first, second = ok(driver.cuMemAlloc(size)), ok(driver.cuMemAlloc(size))
ok(driver.cuMemcpyHtoD(first, there, size))
ok(driver.cuMemcpyDtoD(second, first, size))
ok(driver.cuMemcpyDtoH(back, second, size))
for memory in (first, second):
    ok(driver.cuMemFree(memory))
print("equal" if back == there else "differ")
