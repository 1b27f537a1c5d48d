"""Divides GPU 0 of a DGX A100, which has MIG mode on, with NVIDIA's own binding."""

import pynvml as n

n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
assert n.nvmlDeviceGetMigMode(gpu) == [1, 1]
assert n.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7
profile = n.nvmlDeviceGetGpuInstanceProfileInfo(gpu, n.NVML_GPU_INSTANCE_PROFILE_3_SLICE, version=2)
assert (profile.id, profile.name, profile.multiprocessorCount) == (9, "MIG 3g.40gb", 42)
instance = n.nvmlDeviceCreateGpuInstance(gpu, profile.id)
info = n.nvmlGpuInstanceGetInfo(instance)
assert (info.id, info.placement.start, info.placement.size) == (2, 4, 4)
compute = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(
    instance, n.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE, 0
)
made = n.nvmlGpuInstanceCreateComputeInstance(instance, compute.id)
assert n.nvmlComputeInstanceGetInfo_v2(made).placement.size == 3
device = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
assert n.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
uuid = n.nvmlDeviceGetUUID(device)
assert uuid.startswith("MIG-")
again = n.nvmlDeviceGetHandleByUUID(uuid)
assert n.nvmlDeviceGetGpuInstanceId(again) == 2
assert n.nvmlDeviceGetAttributes(device).memorySizeMB == 40192
n.nvmlComputeInstanceDestroy(made)
n.nvmlGpuInstanceDestroy(instance)
try:
    n.nvmlDeviceGetUUID(device)
    raise SystemExit("the device is still there")
except n.NVMLError_NotFound:
    pass
