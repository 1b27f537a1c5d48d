"""Reads a DGX H100 whose GPU 1 is loaded and damaged, with NVIDIA's own binding."""

import ctypes

import pynvml as n

n.nvmlInit()
assert n.nvmlDeviceGetCount() == 8
gpu = n.nvmlDeviceGetHandleByIndex(1)
serial = n.nvmlDeviceGetSerial(gpu)
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleBySerial(serial)) == 1
assert n.nvmlDeviceGetName(gpu) == "NVIDIA H100 80GB HBM3"
assert n.nvmlDeviceGetArchitecture(gpu) == n.NVML_DEVICE_ARCH_HOPPER
assert n.nvmlDeviceGetCudaComputeCapability(gpu) == (9, 0)
assert n.nvmlDeviceGetPciInfo(gpu).pciDeviceId == 0x233010DE

memory = n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2)
assert memory.used == 2048 << 20 and memory.total == memory.used + memory.free + memory.reserved
assert n.nvmlDeviceGetUtilizationRates(gpu).gpu == 50
assert 70_000 < n.nvmlDeviceGetPowerUsage(gpu) < 700_000
assert n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU) == n.nvmlDeviceGetTemperatureV(gpu, 0)
(process,) = n.nvmlDeviceGetComputeRunningProcesses_v3(gpu)
assert (process.pid, process.usedGpuMemory) == (4242, 2048 << 20)
assert n.nvmlDeviceGetGraphicsRunningProcesses(gpu) == []
(sample,) = n.nvmlDeviceGetProcessUtilization(gpu, 0)
assert (sample.pid, sample.smUtil) == (4242, 50)

sram = (n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC, n.NVML_MEMORY_LOCATION_SRAM)
assert n.nvmlDeviceGetMemoryErrorCounter(gpu, *sram) == 3
status = n.c_nvmlEccSramErrorStatus_v1_t()
status.version = n.nvmlEccSramErrorStatus_v1
n.nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status))
assert (status.volatileUncSecDed, status.bThresholdExceeded) == (3, 0)
assert n.nvmlDeviceGetRemappedRows(gpu) == (0, 0, 0, 0)
assert n.nvmlDeviceGetRowRemapperHistogram(gpu).max == 2560

assert n.nvmlDeviceGetNvLinkState(gpu, 2) == 0 and n.nvmlDeviceGetNvLinkState(gpu, 3) == 1
assert n.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, 3) == n.NVML_NVLINK_DEVICE_TYPE_SWITCH
peer = n.nvmlDeviceGetHandleByIndex(2)
assert n.nvmlDeviceGetP2PStatus(gpu, peer, n.NVML_P2P_CAPS_INDEX_NVLINK) == n.NVML_P2P_STATUS_OK
assert n.nvmlDeviceGetTopologyCommonAncestor(gpu, peer) == n.NVML_TOPOLOGY_NODE

fields = n.nvmlDeviceGetFieldValues(
    gpu,
    [
        n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        (n.NVML_FI_DEV_NVLINK_GET_STATE, 2),
        (n.NVML_FI_DEV_NVLINK_GET_SPEED, 3),
        n.NVML_FI_DEV_POWER_INSTANT,
        n.NVML_FI_DEV_C2C_LINK_GET_STATUS,
    ],
)
values = [field.value.uiVal for field in fields[:4]]
assert values[:3] == [0, 0, 26562] and values[3] > 70_000, values
assert fields[4].nvmlReturn == n.NVML_ERROR_NOT_SUPPORTED

for refused in (
    lambda: n.nvmlDeviceGetFanSpeed(gpu),
    lambda: n.nvmlDeviceGetRetiredPages(gpu, 0),
    lambda: n.nvmlDeviceGetNumaNodeId(gpu),
):
    try:
        refused()
        raise SystemExit("it was supported")
    except n.NVMLError_NotSupported:
        pass
n.nvmlShutdown()
try:
    n.nvmlDeviceGetCount()
    raise SystemExit("it answered after nvmlShutdown")
except n.NVMLError_Uninitialized:
    pass
