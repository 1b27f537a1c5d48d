#!/usr/bin/env python3
"""A loop that counts, and goes on from its last checkpoint: loop.py LIMIT [SECONDS]

    sbatch --requeue --gpuos-checkpoint=10m loop.py 100000

PYTHONPATH has the package gpuos, /usr/share/gpuos/python where gpuos is installed.
"""

import sys
import time

from gpuos import checkpoint

limit = int(sys.argv[1])
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1

with checkpoint.session() as ckpt:
    state = ckpt.load({"count": 0})
    if ckpt.restored:
        print(f"restored checkpoint {ckpt.restored.number} at {state['count']}", flush=True)
    else:
        print("new", flush=True)
    while state["count"] < limit:
        state["count"] += 1
        time.sleep(pause)
        if ckpt.due(state["count"]) and ckpt.save(state):
            print(f"saved {ckpt.number} at {state['count']}", flush=True)
            if ckpt.ending:
                break
    else:
        print(f"done at {state['count']}")
