#!/bin/sh
# The GPUs of this machine as a boot leaves them: whole, but for those of the MIG pool.
set -eu
export GPUOS_NVML_STATE=/var/lib/nvml/state
if [ -e "$GPUOS_NVML_STATE" ]; then
    gpuos-nvml reboot
else
    gpuos-nvml create dgx-h100 --seed 1 --dir /var/lib/nvml --library /usr/lib/gpuos-nvml/libnvidia-ml.so.1
fi >/dev/null
for gpu in 4 5 6 7; do gpuos-nvml mig $gpu on >/dev/null; done
chmod a+rw "$GPUOS_NVML_STATE"
