"""nvitop sees MIG devices that NVIDIA's binding makes."""

import pynvml as n

n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
assert n.nvmlDeviceSetMigMode(gpu, 1) == 0
for profile, compute in ((9, 2), (14, 1)):
    n.nvmlGpuInstanceCreateComputeInstance(n.nvmlDeviceCreateGpuInstance(gpu, profile), compute)

from nvitop import Device

device = Device(0)
assert device.is_mig_mode_enabled() and device.gpu_utilization() == "N/A"
first, second = device.mig_devices()
assert first.name().endswith("MIG 3g.40gb") and second.name().endswith("MIG 2g.20gb"), second.name()
assert first.memory_total() == 40448 << 20
assert second.gpu_instance_id() in (3, 4, 5) and second.uuid().startswith("MIG-")
assert Device(1).mig_devices() == []
