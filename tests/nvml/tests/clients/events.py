"""Waits for an Xid that the program in argv[1] injects, with NVIDIA's own binding."""

import subprocess
import sys

import pynvml as n

n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(3)
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(gpu, n.nvmlEventTypeXidCriticalError, events)
try:
    n.nvmlEventSetWait_v2(events, 10)
    raise SystemExit("an event out of nothing")
except n.NVMLError_Timeout:
    pass
subprocess.run([sys.argv[1], "fault", "gpu3", "xid", "79"], check=True)
heard = n.nvmlEventSetWait_v2(events, 10_000)
assert (heard.eventType, heard.eventData) == (n.nvmlEventTypeXidCriticalError, 79)
try:
    n.nvmlDeviceGetTemperature(gpu, 0)
    raise SystemExit("a lost GPU answered")
except n.NVMLError_GpuIsLost:
    pass
n.nvmlEventSetFree(events)
