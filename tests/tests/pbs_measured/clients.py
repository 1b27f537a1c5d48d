"""Submits jobs at a steady pace, on the server's host, and asks the server all the while: prints JSON, the seconds of each command.

Arguments: how many jobs, seconds from one to the next, then what qsub is told.
"""
import json
import subprocess
import sys
import threading
import time


def took(command):
    begun = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begun


def ask():
    while not ended.is_set():
        qstat.append(took(["qstat", "-B"]))
        time.sleep(0.01)


count, pace, options = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
ended, qstat, qsub = threading.Event(), [], []
thread = threading.Thread(target=ask)
thread.start()
try:
    begun = time.monotonic()
    for nth in range(count):
        time.sleep(max(0, begun + nth * pace - time.monotonic()))
        qsub.append(took(["qsub", "-j", "oe", "-o", "/dev/null"] + options))
finally:
    ended.set()
    thread.join()
print(json.dumps({"qsub": qsub, "qstat": qstat}))
