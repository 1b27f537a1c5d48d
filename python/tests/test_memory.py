"""Memory in tiers, in host memory, and on the simulated driver where the tests have it. GPUOS_LIBRARY names libgpuos.so; without it they are skipped."""

import contextlib
import ctypes
import io
import os
import select
import tempfile
import unittest
import warnings
from unittest import mock

from gpuos import checkpoint, memory
from tests.mover import Mover, until

MIB = 1 << 20
EXTENT = 2 * MIB


@unittest.skipUnless(os.environ.get("GPUOS_LIBRARY"), "GPUOS_LIBRARY does not name libgpuos.so")
class MemoryTest(unittest.TestCase):
    def open(self, hbm, host, file=0, **options):
        """Host memory in the place of a GPU's, by extents."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        mem = memory.open(device=None, hbm=hbm * EXTENT, host=host * EXTENT, file=file * EXTENT, folder=folder.name, **options)
        self.addCleanup(mem.close)
        return mem

    def test_parts_come_and_go_with_their_bytes(self):
        mem = self.open(2, 2, 6)
        one = mem.alloc(6 * EXTENT)
        for index in range(6):
            with one.acquire(index * EXTENT, 100, write=True) as part:
                part.view()[:] = bytes([index + 1]) * 100
        for index in range(6):
            self.assertEqual(one.read(index * EXTENT, 100), bytes([index + 1]) * 100)
            with one.acquire(index * EXTENT, 101) as part:
                self.assertEqual(bytes(part.view()), bytes([index + 1]) * 100 + b"\0")
        stats = mem.stats()
        self.assertGreater(stats["filed"], 0)
        self.assertEqual((stats["objects"], stats["tickets"]), (1, 0))
        one.free()
        with self.assertRaisesRegex(memory.TierError, "gpuos_mem_free: the object was freed before"):
            one.free()

    def test_errors_have_their_class_and_sentence(self):
        mem = self.open(2, 2)
        with self.assertRaisesRegex(memory.Full, "all tiers together"):
            mem.alloc(1 << 50)
        with self.assertRaises(memory.TierError):
            mem.alloc(-1)
        with self.assertRaisesRegex(memory.TierError, "no regular file|directory"):
            mem.map("/")
        with self.assertRaisesRegex(memory.NoDriver, "GPU 77|no NVIDIA driver"):
            memory.open(device=77, hbm=EXTENT)
        one = mem.alloc(EXTENT)
        part = one.acquire(write=True).wait()
        with self.assertRaisesRegex(memory.TierError, "1 tickets hold it"):
            one.free()
        part.release()
        for again in (part.release, part.wait, part.view):
            with self.assertRaisesRegex(memory.TierError, "released before"):
                again()
        with self.assertRaisesRegex(memory.TierError, "no advice 'warm'"):
            one.advise("warm")
        with self.assertRaisesRegex(memory.TierError, "not inside"):
            one.acquire(EXTENT, 1)

    def test_pressure_is_told_by_the_descriptor(self):
        mem = self.open(2, 4)
        one = mem.alloc(3 * EXTENT)
        held = one.acquire(0, 2 * EXTENT).wait()
        self.assertEqual(select.select([mem], [], [], 0)[0], [])
        other = one.acquire(2 * EXTENT, 1)
        with self.assertRaises(memory.TimedOut):
            other.wait(0.001)
        self.assertEqual(select.select([mem], [], [])[0], [mem])
        self.assertEqual(mem.pressure(), memory.Event("wanted", "hbm", EXTENT))
        self.assertIsNone(mem.pressure())
        held.release()
        other.wait().release()

    def test_a_save_takes_what_was_written_since_the_last(self):
        mem = self.open(4, 4)
        one, other = mem.alloc(3 * EXTENT), mem.alloc(10)
        one.register("weights")
        other.register("step")
        self.assertEqual(mem.registered(), {"weights": one.number, "step": other.number})
        one.write(b"x", 5)
        time = mem.now()
        self.assertEqual(list(one.written()), [(0, EXTENT)])
        one.write(b"yy", 2 * EXTENT - 1)
        self.assertEqual(list(one.written(time)), [(EXTENT, 2 * EXTENT)])
        self.assertEqual(list(other.written()), [])
        one.register(None)
        self.assertEqual(list(mem.registered()), ["step"])

    def test_what_was_saved_is_loaded(self):
        mem = self.open(2, 2, 6)
        cache, step = mem.alloc(5 * EXTENT), mem.alloc(10)
        cache.register("cache")
        step.register("a/step")
        for index in range(5):
            cache.write(bytes([index]) * 1000, index * EXTENT)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "gpu0")
            mem.save(path)
            self.assertEqual(memory.saved(path), {"cache": 5 * EXTENT, "a/step": 10})
            with self.assertRaisesRegex(memory.SaveError, "gpuos_mem_save: .*File exists") as raised:
                mem.save(path)
            self.assertIsInstance(raised.exception, OSError)
            stats = mem.stats()
            self.assertEqual((stats["saves"], stats["saved"]), (1, 5 * EXTENT))
            self.assertLessEqual(stats["saved_hbm"], 2 * EXTENT)
            other = self.open(2, 6)
            loaded = {}
            for name, size in memory.saved(path).items():
                loaded[name] = other.alloc(size)
                loaded[name].register(name)
            other.load(path)
            for index in range(5):
                self.assertEqual(loaded["cache"].read(index * EXTENT, 1000), bytes([index]) * 1000)
            loaded["a/step"].register("step")
            with self.assertRaisesRegex(memory.SaveError, '"step" is registered, and was not saved'):
                other.load(path)
        with self.assertRaisesRegex(memory.SaveError, "No such file"):
            memory.saved(path)
        with self.assertRaisesRegex(memory.TierError, "NUL"):
            mem.save("a\0b")

    def test_a_program_goes_on_from_its_newest_whole_checkpoint(self):
        def start(ckpt):
            mem = self.open(2, 4)
            cache = mem.alloc(3 * EXTENT)
            cache.register("cache")
            ckpt.load(read=lambda folder: mem.load(folder / "gpu0"))
            return mem, cache

        with Mover() as mover, contextlib.redirect_stderr(io.StringIO()) as told:
            with checkpoint.session() as ckpt:
                mem, cache = start(ckpt)
                for step in (b"1", b"2"):
                    cache.write(step, EXTENT)
                    mover.ask("interval")
                    until(ckpt.due)
                    self.assertTrue(ckpt.save(write=lambda folder: mem.save(folder / "gpu0")))
                    mover.commit()
                mover.ask("interval")
                until(ckpt.due)

                def write(folder):
                    mover.fail("took too long")
                    mem.save(folder / "gpu0")

                self.assertFalse(ckpt.save(write=write))
            with checkpoint.session() as ckpt:
                self.assertEqual(start(ckpt)[1].read(EXTENT, 2), b"2\0")
            # What has no room now is no reason to refuse it.
            full = mock.Mock(side_effect=memory.Full("no room"))
            with checkpoint.session() as ckpt, self.assertRaises(memory.Full):
                ckpt.load(read=full)
            os.truncate(mover.base / "kept/2/0/gpu0/cache.memory", EXTENT)
            with checkpoint.session() as ckpt:
                self.assertEqual(start(ckpt)[1].read(EXTENT, 2), b"1\0")
        self.assertIn("checkpoint 2 is refused, and the one before is asked for: SaveError", told.getvalue())

    def test_a_mapped_file(self):
        mem = self.open(1, 0)
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(range(256)) * 20000)
            file.flush()
            weights = mem.map(file.name)
            self.assertEqual(weights.size, 256 * 20000)
            for offset in (0, 4 * MIB, 2 * MIB):
                with weights.acquire(offset, 256) as part:
                    self.assertEqual(bytes(part.view()), bytes(range(256)))
            with self.assertRaisesRegex(memory.TierError, "only be read"):
                weights.write(b"x")

    def test_torchs_allocator_functions(self):
        mem = self.open(2, 4)
        mem.use_for_torch(3)
        functions = ctypes.CDLL(memory.library())
        malloc, free = functions.gpuos_torch_malloc, functions.gpuos_torch_free
        malloc.argtypes, malloc.restype = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        free.argtypes, free.restype = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p], None
        one = malloc(EXTENT, 3, None)
        ctypes.memset(one, 7, EXTENT)
        self.assertIsNone(malloc(2 * EXTENT, 3, None))
        mem.pause_torch(3)
        other = malloc(2 * EXTENT, 3, None)
        self.assertTrue(other)
        with self.assertRaises(memory.Full):
            mem.resume_torch(3)
        free(other, 2 * EXTENT, 3, None)
        mem.resume_torch(3)
        self.assertEqual(ctypes.string_at(one, EXTENT), b"\7" * EXTENT)
        free(one, EXTENT, 3, None)

    def test_a_child_is_told(self):
        mem = self.open(2, 2)
        one = mem.alloc(EXTENT)
        with warnings.catch_warnings():
            # Newer Pythons warn of a fork beside threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                one.read(0, 1)
            except memory.Forked:
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(one.read(0, 1), b"\0")


@unittest.skipUnless(os.environ.get("GPUOS_LIBRARY"), "GPUOS_LIBRARY does not name libgpuos.so")
@unittest.skipUnless(os.environ.get("GPUOS_CUDA"), "no simulated driver here")
class GpuTest(unittest.TestCase):
    def test_bytes_go_through_a_gpu(self):
        with memory.open(hbm=2 * EXTENT, host=6 * EXTENT) as mem:
            one = mem.alloc(5 * EXTENT)
            for index in range(5):
                one.write(bytes([index]) * 1000, index * EXTENT)
            for index in range(5):
                self.assertEqual(one.read(index * EXTENT, 1000), bytes([index]) * 1000)
            with one.acquire(0, 10, stream=0) as part, self.assertRaisesRegex(memory.TierError, "GPU's memory"):
                part.view()


if __name__ == "__main__":
    unittest.main()
