#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What only a GPU can tell: gpuos's memory under the driver of NVIDIA, and what gpuos sees of the machine.

    make gpu-test                       builds what is needed and runs all
    tests/gpu/run.py --bin target/release --debug target/debug [--only NAME,...] [--json FILE]

Each check is a line: ok, FAILED or skipped with the reason, and what was measured. Nothing of the GPU's settings is changed. Exit codes: 0 nothing failed,
1 something did, 2 wrong usage.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from broker import Broker

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MIB, GIB = 1 << 20, 1 << 30


class Skip(Exception):
    """A check cannot be made here; the text says why."""


class Wrong(Exception):
    """Something is not as it has to be."""


def must(holds, why):
    if not holds:
        raise Wrong(why)


class Checks:
    """All checks; the name of a check is that of its method, and its first line of documentation what it looks at."""

    def __init__(self, given, folder):
        self.bin, self.debug, self.folder, self.small = given.bin, given.debug, Path(folder), given.small
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("GPUOS_")}

    # How programs are run.

    def library(self, debug=False):
        path = (self.debug if debug else self.bin) / "libgpuos_preload.so"
        if not path.exists():
            raise Skip(f"{path} is not there")
        return str(path)

    def start(self, *words, grant=None, hbm=None, debug=False, more=None):
        env = {**self.env, "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1", **(more or {})}
        if grant:
            env.update(LD_PRELOAD=self.library(debug), GPUOS_MEM_GRANT=str(int(grant)), GPUOS_MEM_REPORT="1")
        if hbm:
            env["GPUOS_MEM_HBM"] = str(int(hbm))
        file, *rest = words
        return subprocess.Popen([sys.executable, str(HERE / file), *map(str, rest)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def end(self, program, text=None, limit=150):
        """What a program printed as JSON, and what gpuos said in it."""
        try:
            out, err = program.communicate(text, timeout=limit)
        except subprocess.TimeoutExpired:
            program.kill()
            out, err = program.communicate()
            raise Wrong(f"not done after {limit} s; it said: {err[-600:]}") from None
        if program.returncode != 0:
            raise Wrong(f"exit {program.returncode}: {err[-1200:]}")
        return json.loads(out.strip().splitlines()[-1]), [line for line in err.splitlines() if line.startswith("gpuos:")]

    def program(self, *words, text=None, limit=150, **how):
        return self.end(self.start(*words, **how), text, limit)

    def torch(self):
        if subprocess.run([sys.executable, "-c", "import torch; assert torch.cuda.is_available()"], capture_output=True, check=False).returncode:
            raise Skip("no PyTorch that sees the GPU")

    # The checks.

    def machine(self):
        """the GPU, as the driver describes it"""
        told, _ = self.program("program.py", "machine")
        must(told["virtual_memory"] and told["host_virtual_memory"], f"no virtual memory, or none of the host's: {told}")
        return told

    def discover(self):
        """gpuos discover on this machine"""
        done = subprocess.run([str(self.bin / "gpuos"), "discover"], capture_output=True, text=True, timeout=60, check=False, env=self.env)
        must(done.returncode == 0, f"exit {done.returncode}: {done.stderr[-600:]}")
        return {"said": done.stdout.splitlines()}

    def health(self):
        """gpuosd beside the GPU, without a workload manager: what `gpuos health` has of it"""
        state, runtime = self.folder / "state", self.folder / "run"
        for folder in (state, runtime):
            folder.mkdir(mode=0o755)
        (self.folder / "gpuos.toml").write_text("")
        log = open(self.folder / "gpuosd.log", "w+")
        daemon = subprocess.Popen([str(self.bin / "gpuosd"), "--config", str(self.folder / "gpuos.toml"), "--state-dir", str(state), "--runtime-dir", str(runtime),
                                   "--slices", str(self.folder / "slices"), "--interval", "1", "--node", "n1", "--reset-command", "true"], stdout=log, stderr=log, env=self.env)
        try:
            time.sleep(8)
            done = subprocess.run([str(self.bin / "gpuos"), "health", "--json", "--runtime-dir", str(runtime)], capture_output=True, text=True, timeout=30, check=False, env=self.env)
            cpu = sum(map(int, Path(f"/proc/{daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK") if daemon.poll() is None else None
            rss = [line.split()[1] for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if line.startswith("VmRSS")] if daemon.poll() is None else None
        finally:
            daemon.terminate()
            daemon.wait(20)
        log.seek(0)
        return {"exit": done.returncode, "said": done.stdout[-3000:], "error": done.stderr[-600:], "log": log.read()[-3000:], "cpu_s": cpu, "rss_kb": rss}

    def functions(self):
        """cuGetProcAddress gives the addresses of the exports"""
        rows = [line.split("\t") for line in (ROOT / "crates/gpuos_preload/data/functions.tsv").read_text().splitlines() if line and not line.startswith("#")]
        told, _ = self.program("program.py", "functions", text="\n".join(f"{row[0]}:{row[1]}:{row[2]}" for row in rows if row[2].isdigit()))
        return {"asked": len(rows), "not_there": len(told["not_there"]), "at_another_address": told["other"]}

    def costs(self):
        """what the driver's calls and copies cost"""
        return self.program("program.py", "costs")[0]

    def charging(self):
        """host memory behind the GPU's addresses is charged to the control group"""
        told, _ = self.program("program.py", "host", 4)
        if told["charged"] is None:
            raise Skip("no control group with a memory controller")
        return told

    def crossing(self):
        """copies, fills and kernels across the border between GPU and host"""
        told, said = self.program("program.py", "crossing", grant=4 * GIB, hbm=1 * GIB)
        must(not told["failed"], f"{told}; {said}")
        return {**told, "said": said}

    def moves(self):
        """random work on more than it has of the GPU, moved by the policy"""
        told, said = self.program("program.py", "moves", 5, 1, grant=4 * GIB, hbm=1 * GIB)
        must(not told["wrong"], f"{told}; {said}")
        return {**told, "said": said}

    def shaken(self):
        """the same, with extents moved at random all the time"""
        told, said = self.program("program.py", "moves", 5, 2, grant=4 * GIB, hbm=1 * GIB, debug=True, more={"GPUOS_PRELOAD_SHAKE": "7"})
        must(not told["wrong"], f"{told}; {said}")
        return {**told, "said": said}

    def graphs(self):
        """graphs that were instantiated before their memory moved"""
        told, said = self.program("program.py", "moves", 5, 3, 1, grant=4 * GIB, hbm=1 * GIB, debug=True, more={"GPUOS_PRELOAD_SHAKE": "8"})
        must(not told["wrong"], f"{told}; {said}")
        return {**told, "said": said}

    def parking(self):
        """leaving the GPU and coming back when gpuosd says so"""
        size = 16
        broker = Broker(str(self.folder / "broker"))
        program = self.start("program.py", "held", size, 20, grant=24 * GIB, more={"GPUOS_MEM_SOCKET": str(self.folder / "broker")})
        try:
            lent = broker.lend(24 * GIB, 256 * MIB, 24 * GIB)
            program.stdout.readline()
            # What it parks in is made while it works.
            settle()
            rounds, used = [], []
            for _ in range(3):
                before = gpu_used()
                out, went, left = lent.park()
                used.append([before, gpu_used()])
                back, came = lent.turn()
                # What it has left in host memory is made ready for the next time.
                time.sleep(2)
                rounds.append({"out_gb_s": round(went / out / 1e9, 2), "back_gb_s": round(came / back / 1e9, 2), "went": went, "left": left})
            told, said = self.end(program)
        finally:
            program.kill()
        must(not told["wrong"], f"{told}; {said}")
        return {"rounds": rounds, "gpu_mib": used, **told, "said": said}

    def turns(self):
        """two programs of PyTorch that do not fit beside each other share the GPU in turns"""
        self.torch()
        gib, steps, slice_s = (8, 1400, 6) if self.small else (40, 400, 30)
        words = ["train.py", "work", gib, steps]
        size, path = (gib + 4) * GIB, str(self.folder / "turns")
        broker = Broker(path)

        def begin(wait):
            program = self.start(*words, grant=size, more={"GPUOS_MEM_SOCKET": path})
            return program, broker.lend(size, 256 * MIB, size, wait)

        alone = []
        for _ in range(2):
            program, _ = begin(False)
            alone.append(self.end(program)[0])
        begun = time.perf_counter()
        both = [begin(False), begin(True)]
        switches, whose, most = [], 0, 0
        try:
            while all(program.poll() is None for program, _ in both):
                try:
                    both[whose][0].wait(slice_s)
                    break
                except subprocess.TimeoutExpired:
                    pass
                out = both[whose][1].park()[0]
                whose = 1 - whose
                most = max(most, gpu_used() or 0)
                switches.append([round(out, 3), round(both[whose][1].turn()[0], 3)])
            other = both[1 - whose]
            if other[0].poll() is None:
                both[whose][0].wait(60)
                other[1].turn()
            done = [self.end(program)[0] for program, _ in both]
        finally:
            for program, _ in both:
                program.kill()
        makespan = max(one["ended"] for one in done) - min(one["began"] for one in done)
        serial = sum(one["ended"] - one["began"] for one in alone)
        must({one["sum"] for one in done + alone} == {alone[0]["sum"]}, f"other results: {alone} {done}")
        return {"serial_s": round(serial, 2), "makespan_s": round(makespan, 2), "ratio": round(makespan / serial, 3), "goal": 1.1, "switches": switches,
                "with_start_s": round(time.perf_counter() - begun, 2), "gpu_mib_while_parked": most}

    def driver_checkpoint(self):
        """the driver parks a process with memory of ours, and brings it back"""
        told = {"with_all_on_the_gpu": self.stopped(6)}
        try:
            told["with_host_memory"] = self.stopped(3)
        except Wrong as why:
            # The driver's own doing: the process is lost, so it is said and not asked for.
            told["with_host_memory"] = f"does not come back: {why}"
        return told

    def stopped(self, hbm):
        program = self.start("program.py", "held", 4, 8, grant=6 * GIB, hbm=hbm * GIB)
        try:
            program.stdout.readline()
            time.sleep(2)
            stat = Path(f"/proc/{program.pid}/stat").read_text().rsplit(")", 1)[1].split()
            took, used = {}, [gpu_used()]
            for way in ("out", "back"):
                words = [str(self.bin / "gpuosd"), "--driver-checkpoint", way, str(program.pid), stat[19], str(os.getuid()), "60000", str(os.getpid()), "/proc", "libcuda.so.1"]
                begun = time.perf_counter()
                done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False, env=self.env)
                took[way] = round(time.perf_counter() - begun, 2)
                used.append(gpu_used())
                must(done.returncode == 0, f"{way}: exit {done.returncode} {done.stdout} {done.stderr} after {took}; GPU {used} MiB")
            told, said = self.end(program)
        finally:
            program.kill()
        must(not told["wrong"], f"{told}; {said}")
        return {"took_s": took, "gpu_mib": used, **told}

    def losses(self):
        """PyTorch's losses are the same with memory in tiers"""
        self.torch()
        words = ["train.py", "train", 8, 4096, 8, 2048]
        plain, _ = self.program(*words)
        told = {"plain": plain}
        ways = {"fits": {"grant": 8 * GIB}, "larger": {"grant": 8 * GIB, "hbm": 1536 * MIB},
                "shaken": {"grant": 8 * GIB, "hbm": 2 * GIB, "debug": True, "more": {"GPUOS_PRELOAD_SHAKE": "3"}},
                "expandable": {"grant": 8 * GIB, "hbm": 1536 * MIB, "more": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}},
                "async": {"grant": 8 * GIB, "hbm": 1536 * MIB, "more": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}}}
        wrong = []
        for name, how in ways.items():
            if self.small and name == "shaken":
                continue
            try:
                done, said = self.program(*words, **how)
                told[name] = {**done, "said": said}
                if done.pop("losses") != plain["losses"]:
                    wrong.append(f"{name}: other losses")
            except Wrong as why:
                wrong.append(f"{name}: {why}")
        must(not wrong, f"{wrong}; {told}")
        return told

    def torch_graphs(self):
        """PyTorch's graphs with memory that moves"""
        self.torch()
        words = ["train.py", "train", 8, 4096, 12, 2048, 1]
        plain, _ = self.program(*words)
        done, said = self.program(*words, grant=12 * GIB, hbm=3 * GIB, debug=True, more={"GPUOS_PRELOAD_SHAKE": "5"})
        must(done["losses"] == plain["losses"], f"{plain} {done} {said}")
        return {"plain": plain["times"], **done, "said": said}

    def overhead(self):
        """what it costs where everything fits: 20 pairs"""
        self.torch()
        pairs = []
        for number in range(4 if self.small else 20):
            order = (None, 40 * GIB) if number % 2 else (40 * GIB, None)
            took = {bool(grant): self.program("train.py", "steps", grant=grant)[0]["step_ms"] for grant in order}
            pairs.append(took[True] / took[False])
        pairs.sort()
        middle = pairs[len(pairs) // 2]
        return {"ratios": [round(one, 4) for one in pairs], "median": round(middle, 4), "goal": 1.01, "reached": middle <= 1.01}

    def larger(self):
        """unmodified PyTorch that needs 60 GB with 40 GB of the GPU"""
        self.torch()
        layers, grant, hbm = (14, 20, 10) if self.small else (54, 66, 40)
        words = ["train.py", "train", layers, 8192, 5, 1024]
        plain, _ = self.program(*words)
        done, said = self.program(*words, grant=grant * GIB, hbm=hbm * GIB)
        must(done["losses"] == plain["losses"], f"{plain} {done} {said}")
        return {"plain": plain, "tiers": done, "said": said}

    def pool(self):
        """libgpuos's memory under PyTorch"""
        self.torch()
        told, _ = self.program("train.py", "pool", more={"GPUOS_LIBRARY": str(self.bin / "libgpuos.so")})
        must(all(told["good"]), str(told))
        return told

    def cache(self):
        """the example of a cache larger than the GPU's memory"""
        env = {**self.env, "PYTHONPATH": str(ROOT / "python"), "GPUOS_LIBRARY": str(self.bin / "libgpuos.so")}
        words = [sys.executable, str(ROOT / "examples/memory/kv_cache.py"), "--device=0", "--conversations=24", "--blocks=16", "--hbm=128", "--turns=400"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=env)
        must(done.returncode == 0, f"exit {done.returncode}: {done.stderr[-800:]}")
        return {"said": done.stdout.splitlines()}


def settle():
    """Waits until nobody takes host memory any more: 40 s at most."""

    def available():
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])

    before, end = available() + (1 << 20), time.monotonic() + 40
    while time.monotonic() < end:
        time.sleep(1)
        now = available()
        if abs(before - now) < 64 << 10:
            return
        before = now


def gpu_used():
    """MiB that the GPU has in use by NVIDIA's tool; None where that is not there."""
    if not shutil.which("nvidia-smi"):
        return None
    done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[0]) if done.returncode == 0 else None


NAMES = [name for name, value in vars(Checks).items() if callable(value) and value.__doc__ and name not in ("end", "start", "program") and not name.startswith("_")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, default=ROOT / "target/release", help="folder with gpuos, gpuosd, libgpuos_preload.so and libgpuos.so of a release build")
    parser.add_argument("--debug", type=Path, default=ROOT / "target/debug", help="folder with libgpuos_preload.so of a debug build, which can move memory at random")
    parser.add_argument("--only", help="names of checks, with commas between")
    parser.add_argument("--small", action="store_true", help="fewer and smaller")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    given = parser.parse_args()
    for folder, name in ((given.bin, "--bin"), (given.debug, "--debug")):
        if Path("/dev/nvidiactl").exists() and not folder.is_dir():
            parser.error(f"{name}: there is no folder {folder}: `make gpu-test` builds what belongs there")
    names = given.only.split(",") if given.only else NAMES
    for name in names:
        if name not in NAMES:
            parser.error(f"--only: there is no check {name!r}: {', '.join(NAMES)}")
    given.bin, given.debug = given.bin.resolve(), given.debug.resolve()
    results, failed = {}, 0
    if not Path("/dev/nvidiactl").exists():
        for name in names:
            print(f"skipped  {name}: {getattr(Checks, name).__doc__.splitlines()[0]}")
        print("         There is no NVIDIA driver on this machine (/dev/nvidiactl).")
        return 0
    for name in names:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            check = Checks(given, folder)
            what = getattr(Checks, name).__doc__.splitlines()[0]
            print(f"         {name}: {what} ...", end="\r", file=sys.stderr, flush=True)
            try:
                state, told = "ok", getattr(check, name)()
            except Skip as why:
                state, told = "skipped", {"why": str(why)}
            except Wrong as why:
                state, told, failed = "FAILED", {"why": str(why)}, failed + 1
            except Exception:  # noqa: BLE001 - one check that breaks is one line
                state, told, failed = "FAILED", {"why": traceback.format_exc()[-1500:]}, failed + 1
        took = time.perf_counter() - begun
        results[name] = {"state": state, "seconds": round(took, 1), **told}
        print(f"{state:8} {name}: {what} ({took:.1f} s)\n         {json.dumps(told)}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
