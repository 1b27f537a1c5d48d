"""Prints the functions that NVIDIA's binding knows of and the library does not have."""

import re
import inspect

import pynvml as n

n.nvmlInit()
for name in sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"', inspect.getsource(n)))):
    try:
        n._nvmlGetFunctionPointer(name)
    except n.NVMLError_FunctionNotFound:
        print(name)
