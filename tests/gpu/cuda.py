# SPDX-License-Identifier: MIT OR Apache-2.0
"""The CUDA driver by ctypes, as far as these programs need it: no package is needed, and each call goes through what LD_PRELOAD put before it."""

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

MIB = 1 << 20
GIB = 1 << 30

# add: each of n 32-bit words from p on gets v more. sum: their sum is added to the 64-bit word at out.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 p, .param .u64 n, .param .u32 v)
{
    .reg .pred %q; .reg .b32 %r<8>; .reg .b64 %d<8>;
    ld.param.u64 %d0, [p]; ld.param.u64 %d1, [n]; ld.param.u32 %r0, [v];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %d2, %r1, %r2; cvt.u64.u32 %d3, %r3; add.u64 %d2, %d2, %d3; mul.wide.u32 %d4, %r4, %r2;
loop:
    setp.ge.u64 %q, %d2, %d1; @%q bra done;
    shl.b64 %d5, %d2, 2; add.u64 %d5, %d0, %d5;
    ld.global.u32 %r5, [%d5]; add.u32 %r5, %r5, %r0; st.global.u32 [%d5], %r5;
    add.u64 %d2, %d2, %d4; bra loop;
done:
    ret;
}
.visible .entry sum(.param .u64 p, .param .u64 n, .param .u64 out)
{
    .reg .pred %q; .reg .b32 %r<8>; .reg .b64 %d<12>;
    ld.param.u64 %d0, [p]; ld.param.u64 %d1, [n]; ld.param.u64 %d8, [out];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %d2, %r1, %r2; cvt.u64.u32 %d3, %r3; add.u64 %d2, %d2, %d3; mul.wide.u32 %d4, %r4, %r2;
    mov.u64 %d6, 0;
loop2:
    setp.ge.u64 %q, %d2, %d1; @%q bra done2;
    shl.b64 %d5, %d2, 2; add.u64 %d5, %d0, %d5;
    ld.global.u32 %r5, [%d5]; cvt.u64.u32 %d7, %r5; add.u64 %d6, %d6, %d7;
    add.u64 %d2, %d2, %d4; bra loop2;
done2:
    atom.global.add.u64 %d9, [%d8], %d6;
    ret;
}
\0"""


class CudaError(Exception):
    """A call of the driver failed: its name, and the number it answered."""

    def __init__(self, name, code):
        super().__init__(f"{name} answered {code}")
        self.code = code


class Location(ctypes.Structure):
    """CUmemLocation: 1 is a device, 3 a NUMA node of the host."""

    _fields_ = [("type", c_int), ("id", c_int)]


class Prop(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("meta", c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    """CUmemAccessDesc; 3 is to read and to write."""

    _fields_ = [("location", Location), ("flags", c_int)]


class Gpu:
    """A device with its primary context, which is the thread's from here on."""

    def __init__(self, number=0):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", c_uint(0))
        device, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), c_int(number))
        self.device = device.value
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        module, self.kernels = c_void_p(), {}
        self.call("cuModuleLoadData", byref(module), c_char_p(PTX))
        for name in ("add", "sum"):
            kernel = c_void_p()
            self.call("cuModuleGetFunction", byref(kernel), module, name.encode())
            self.kernels[name] = kernel

    def call(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        if code:
            raise CudaError(name, code)

    def attribute(self, number):
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), c_int(number), c_int(self.device))
        return value.value

    def info(self):
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def alloc(self, size):
        at = c_ulonglong()
        self.call("cuMemAlloc_v2", byref(at), c_size_t(size))
        return at.value

    def free(self, at):
        self.call("cuMemFree_v2", c_ulonglong(at))

    def fill(self, at, word, count):
        self.call("cuMemsetD32_v2", c_ulonglong(at), c_uint(word), c_size_t(count))

    def sync(self):
        self.call("cuCtxSynchronize")

    def stream(self):
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), c_uint(1))
        return stream

    def launch(self, name, *arguments, stream=None):
        """Launches a kernel over 1024 blocks of 256 threads."""
        pointers = (c_void_p * len(arguments))(*(ctypes.cast(ctypes.pointer(one), c_void_p) for one in arguments))
        sizes = [c_uint(size) for size in (1024, 1, 1, 256, 1, 1, 0)]
        self.call("cuLaunchKernel", self.kernels[name], *sizes, stream, pointers, None)

    def add(self, at, count, value, stream=None):
        self.launch("add", c_ulonglong(at), c_ulonglong(count), c_uint(value), stream=stream)

    def sum(self, at, count):
        """The sum of 32-bit words."""
        out = self.alloc(8)
        self.fill(out, 0, 2)
        self.launch("sum", c_ulonglong(at), c_ulonglong(count), c_ulonglong(out))
        got = c_ulonglong()
        self.call("cuMemcpyDtoH_v2", byref(got), c_ulonglong(out), c_size_t(8))
        self.free(out)
        return got.value

    def pinned(self, size):
        """Host memory that the driver has pinned."""
        at = c_void_p()
        self.call("cuMemHostAlloc", byref(at), c_size_t(size), c_uint(0))
        return at.value

    def timed(self, body, stream=None):
        """Seconds that the work which `body` gives to a stream takes on the GPU."""
        first, last, took = c_void_p(), c_void_p(), c_float()
        for event in (first, last):
            self.call("cuEventCreate", byref(event), c_uint(0))
        self.call("cuEventRecord", first, stream)
        body()
        self.call("cuEventRecord", last, stream)
        self.call("cuEventSynchronize", last)
        self.call("cuEventElapsedTime", byref(took), first, last)
        return took.value / 1000

    def create(self, size, place, number):
        """Physical memory; `place` is 1 for a device and 3 for a NUMA node of the host."""
        prop, handle = Prop(type=1, location=Location(place, number)), c_ulonglong()
        self.call("cuMemCreate", byref(handle), c_size_t(size), byref(prop), c_ulonglong(0))
        return handle.value

    def reserve(self, size):
        at = c_ulonglong()
        self.call("cuMemAddressReserve", byref(at), c_size_t(size), c_size_t(0), c_ulonglong(0), c_ulonglong(0))
        return at.value

    def map(self, at, size, handle, offset=0):
        self.call("cuMemMap", c_ulonglong(at), c_size_t(size), c_size_t(offset), c_ulonglong(handle), c_ulonglong(0))

    def access(self, at, size):
        one = Access(Location(1, self.device), 3)
        self.call("cuMemSetAccess", c_ulonglong(at), c_size_t(size), byref(one), c_size_t(1))

    def unmap(self, at, size):
        self.call("cuMemUnmap", c_ulonglong(at), c_size_t(size))

    def release(self, handle):
        self.call("cuMemRelease", c_ulonglong(handle))
