"""gpuos.checkpoint against a mover of the tests: python3 -m unittest discover -s python/tests -t python"""

import contextlib
import fcntl
import io
import json
import os
import random
import signal
import sys
import threading
import types
import unittest
from unittest import mock

from gpuos import checkpoint
from tests.mover import Mover, until


def quiet():
    """Catches what is told on standard error."""
    return contextlib.redirect_stderr(io.StringIO())


class WithoutCheckpoints(unittest.TestCase):
    def setUp(self):
        patched = mock.patch.dict(os.environ)
        patched.start()
        self.addCleanup(patched.stop)
        os.environ.pop("GPUOS_CHECKPOINT_DIR", None)

    def test_a_program_runs_on(self):
        with checkpoint.session() as ckpt:
            self.assertEqual(ckpt.load({"step": 0}), {"step": 0})
            self.assertIsNone(ckpt.restored)
            self.assertFalse(ckpt.due(1))
            with self.assertRaisesRegex(checkpoint.CheckpointError, "no checkpoint is due"):
                ckpt.save({})
        client = checkpoint.Checkpoints(0, 1)
        self.assertFalse(client.available)
        self.assertIsNone(client.join())
        self.assertIsNone(client.wanted())
        self.assertEqual(client.wait(1).state, "failed")
        for call in (client.folder, client.ready):
            with self.assertRaisesRegex(checkpoint.CheckpointError, "GPUOS_CHECKPOINT_DIR is not set"):
                call(1)

    def test_many_ranks_need_no_way_to_agree(self):
        with checkpoint.session(rank=1, size=4) as ckpt:
            self.assertFalse(ckpt.due())


class Launchers(unittest.TestCase):
    def test_the_launcher_says_which_rank_it_is(self):
        def step(number):
            return {"SLURM_STEP_ID": number, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}

        torch = {"RANK": "5", "WORLD_SIZE": "16"}
        pmi = {"PMI_RANK": "2", "PMI_SIZE": "4"}
        ompi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
        for environ, expected in [
            ({}, (0, 1)),
            (step("0"), (1, 2)),
            (step("4294967291"), (0, 1)),
            ({**step("0"), **torch}, (5, 16)),
            ({**step("0"), **torch, **pmi}, (2, 4)),
            ({**pmi, **ompi}, (3, 8)),
            ({**step("0"), **torch, **pmi, "TORCHELASTIC_RUN_ID": "none"}, (5, 16)),
            ({"RANK": "1"}, (0, 1)),
            ({"RANK": "01", "WORLD_SIZE": "2"}, (0, 1)),
            ({"RANK": "\u0661", "WORLD_SIZE": "2"}, (0, 1)),
        ]:
            self.assertEqual(checkpoint.launched(environ), expected, environ)

    def test_a_rank_that_cannot_be_is_refused(self):
        for rank, size in [(4, 4), (-1, 2), (0, 65536), (0, 0)]:
            with self.assertRaisesRegex(checkpoint.CheckpointError, "cannot be"):
                checkpoint.Checkpoints(rank, size)


class Protocol(unittest.TestCase):
    def test_what_was_saved_is_there_at_the_next_start(self):
        with Mover() as mover:
            client = checkpoint.Checkpoints(0, 1)
            client.ask()
            self.assertIsNone(client.join())
            self.assertIsNone(client.wanted())
            client.ask()
            client.ask()
            # The mover removes it; there is one however often it was asked.
            (mover.path / "ranks/ask.0").unlink()
            number = mover.ask("interval")
            self.assertEqual(client.wanted(), (number, "interval"))
            self.assertEqual(client.outcome(number).state, "pending")
            self.assertEqual(client.wait(number, 0).state, "pending")
            (client.folder(number) / "state").write_text("17")
            client.ready(number)
            self.assertIsNone(client.wanted())
            mover.commit()
            self.assertEqual(client.wait(number).state, "committed")

            client = checkpoint.Checkpoints(0, 1)
            restored = client.join()
            self.assertEqual(restored.number, number)
            self.assertEqual((restored.folder / "state").read_text(), "17")
            self.assertEqual(len(os.listdir(mover.path / "ranks")), 1)

    def test_a_checkpoint_that_was_given_up_is_over(self):
        with Mover() as mover:
            client = checkpoint.Checkpoints(0, 1)
            client.join()
            first = mover.ask("interval")
            client.folder(first)
            mover.fail("rank 0 took too long")
            with self.assertRaisesRegex(checkpoint.GivenUp, "rank 0 took too long"):
                client.ready(first)
            with self.assertRaises(checkpoint.GivenUp):
                client.folder(first)
            mover.ask("interval")
            mover.fail("no room")
            self.assertEqual(client.outcome(first).state, "failed")
            third = mover.ask("asked")
            client.ready(third)
            mover.commit()
            self.assertEqual(client.outcome(first + 1), ("failed", "no room"))
            self.assertEqual(client.outcome(third).state, "committed")
            self.assertEqual(client.outcome(third + 1).state, "pending")

    def test_a_checkpoint_whose_folder_does_not_come_is_not_wanted_again(self):
        with Mover() as mover:
            client = checkpoint.Checkpoints(0, 1)
            client.join()
            mover.write("request", "7 interval")
            self.assertEqual(client.wanted().number, 7)
            with self.assertRaises(TimeoutError):
                client.folder(7, limit=0)
            self.assertIsNone(client.wanted())
            mover.write("request", "8 interval")
            self.assertEqual(client.wanted().number, 8)

    def test_a_process_keeps_its_join_locked(self):
        with Mover() as mover:
            client = checkpoint.Checkpoints(0, 1)
            client.join()
            (path,) = (mover.path / "ranks").iterdir()
            self.assertEqual(path.read_text(), "locked\n")
            with open(path, "rb") as file:
                with self.assertRaises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                del client
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def test_of_two_programs_at_once_the_later_one_alone_saves(self):
        with Mover() as mover:
            first, second = checkpoint.Checkpoints(0, 1), checkpoint.Checkpoints(0, 1)
            first.join()
            second.join()
            number = mover.ask("interval")
            with quiet() as told:
                self.assertIsNone(first.wanted())
                self.assertIsNone(first.wanted())
            self.assertEqual(told.getvalue().count("one program at a time"), 1)
            for call in (first.folder, first.ready):
                with self.assertRaisesRegex(checkpoint.GivenUp, "one program at a time"):
                    call(number)
            self.assertEqual(second.wanted().number, number)

    def test_starts_that_fail_say_why(self):
        with Mover() as mover, mock.patch.object(mover, "_answer") as answer:
            def told(line):
                answer.side_effect = lambda rank, nonce: mover.write(f"start.{rank}.{nonce}", line)
                return checkpoint.Checkpoints(0, 1).join()

            with self.assertRaisesRegex(checkpoint.CheckpointError, "^made by 8 ranks$"):
                told("failed made by 8 ranks")
            for line in ["migrate 7", "restore", "restore x", "new 1"]:
                with self.assertRaisesRegex(checkpoint.CheckpointError, "does not know"):
                    told(line)
            answer.side_effect = None
            with self.assertRaises(TimeoutError):
                checkpoint.Checkpoints(0, 1).join(limit=0)
        with self.assertRaisesRegex(checkpoint.CheckpointError, "in a container, bind"):
            checkpoint.Checkpoints(0, 1, "/nonexistent/7").join()


class Sessions(unittest.TestCase):
    def test_a_loop_goes_on_where_it_was(self):
        with Mover() as mover:
            with checkpoint.session(look_every=10) as ckpt:
                state = ckpt.load({"step": 0})
                mover.ask("interval")
                self.assertFalse(ckpt.due(15))
                self.assertTrue(ckpt.due(20))
                self.assertEqual(ckpt.request.reason, "interval")
                state["step"] = 20
                self.assertTrue(ckpt.save(state))
                self.assertFalse(ckpt.due(30))
                mover.commit()
                self.assertFalse(ckpt.ending)
            with checkpoint.session() as ckpt:
                self.assertEqual(ckpt.restored.number, 1)
                self.assertEqual(ckpt.load(), {"step": 20})
                self.assertEqual(ckpt.load(read=lambda folder: os.listdir(folder)), ["state.json"])

    def test_the_last_checkpoint_is_waited_for(self):
        with Mover() as mover, checkpoint.session() as ckpt:
            # One that comes to nothing is not the last.
            for end, ending in [(lambda: mover.fail("no room"), False), (mover.commit, True)]:
                mover.ask("end")
                self.assertTrue(ckpt.due())
                folder = mover.path / str(mover.last)
                ender = threading.Thread(target=lambda end=end, folder=folder: (until((folder / "ready.0").exists), end()))
                ender.start()
                with quiet():
                    self.assertEqual(ckpt.save(write=lambda folder: (folder / "own").write_text("x")), ending)
                ender.join()
                self.assertEqual(ckpt.ending, ending)

    def test_what_was_saved_and_is_not_stored_is_told_by_what_comes_next(self):
        with Mover() as mover, checkpoint.session() as ckpt:
            self.assertTrue(ckpt.ask())
            for number, why in [(1, "no room on n1"), (2, "user 7 has 4 GiB there")]:
                mover.ask("interval")
                self.assertTrue(ckpt.due())
                self.assertEqual(ckpt.save({"step": number}), number == 1)
                self.assertEqual(ckpt.lost and ckpt.lost.number, None if number == 1 else 1)
                mover.fail(why)
                with contextlib.redirect_stderr(io.StringIO()) as told:
                    self.assertFalse(ckpt.due())
                    self.assertFalse(ckpt.due())
                    self.assertFalse(ckpt.ask())
                self.assertEqual(ckpt.lost, checkpoint.Lost(number, why))
                self.assertEqual(
                    told.getvalue(),
                    f"gpuos: checkpoint {number} was saved and came to nothing: {why}; the program goes on, and it would begin again from its start\n",
                )
            # One that exists ends it.
            mover.ask("interval")
            self.assertTrue(ckpt.due())
            self.assertFalse(ckpt.save({"step": 3}), "the one before")
            mover.commit()
            mover.ask("interval")
            self.assertTrue(ckpt.due())
            self.assertIsNone(ckpt.lost)
            self.assertTrue(ckpt.save({"step": 4}))
            mover.fail("no room")
            with contextlib.redirect_stderr(io.StringIO()) as told:
                ckpt.due()
            self.assertIn("would begin again from checkpoint 3\n", told.getvalue())
        # What it goes on from is in its output.
        with Mover() as mover:
            mover.ranks = {0: 1}
            with checkpoint.session() as ckpt:
                mover.ask("interval")
                ckpt.due()
                ckpt.save({"step": 1})
                mover.commit()
            with contextlib.redirect_stderr(io.StringIO()) as told, checkpoint.session() as ckpt:
                self.assertIn("gpuos: the program goes on from checkpoint 1\n", told.getvalue())

    def test_a_checkpoint_that_goes_while_it_is_written_is_left(self):
        with Mover() as mover, checkpoint.session() as ckpt:
            def write(folder):
                mover.fail("took too long")
                (folder / "late").write_text("x")

            mover.ask("interval")
            self.assertTrue(ckpt.due())
            with quiet() as told:
                self.assertFalse(ckpt.save(write=write))
            self.assertIn("took too long", told.getvalue())

    def test_what_cannot_be_loaded_is_refused_until_none_is_left(self):
        with Mover() as mover, quiet() as told:
            with checkpoint.session() as ckpt:
                for step in (1, 2, 3):
                    mover.ask("interval")
                    until(ckpt.due)
                    ckpt.save({"step": step})
                    mover.commit()

            def read(folder):
                state = json.loads((folder / "state.json").read_text())
                if state["step"] != 1:
                    raise ValueError(f"no layer {state['step']}\nat all")
                return state

            with checkpoint.session() as ckpt:
                with self.assertRaises(MemoryError):
                    ckpt.load(read=mock.Mock(side_effect=MemoryError))
                with self.assertRaisesRegex(ValueError, "no layer 3"):
                    ckpt.load(read=read, refuse=False)
                self.assertEqual(mover.refused, {})
                self.assertEqual(ckpt.load(read=read), {"step": 1})
                self.assertEqual(ckpt.restored.number, 1)
                mover.ask("interval")
                until(ckpt.due)
            said = sorted(mover.refused.values())
            self.assertEqual(said, ["ValueError: no layer 2", "ValueError: no layer 3"])
            with checkpoint.session() as ckpt, self.assertRaisesRegex(checkpoint.CheckpointError, "no checkpoint can be restored"):
                ckpt.load(read=mock.Mock(side_effect=OSError("gone")))
        self.assertIn("checkpoint 3 is refused, and the one before is asked for: ValueError", told.getvalue())

    def test_ranks_that_cannot_agree_refuse_and_end(self):
        with Mover() as mover:
            with checkpoint.session() as ckpt:
                mover.ask("interval")
                until(ckpt.due)
                ckpt.save({"step": 1})
                mover.commit()
            with checkpoint.session(broadcast=lambda value: value) as ckpt:
                with self.assertRaisesRegex(checkpoint.CheckpointError, "start the program again"):
                    ckpt.load(read=mock.Mock(side_effect=KeyError("layer")))
            until(lambda: list(mover.refused.values()) == ["KeyError: 'layer'"])

    def test_an_error_of_the_program_is_its_own(self):
        with Mover() as mover, checkpoint.session() as ckpt:
            for error in (ValueError, OSError):
                mover.ask("interval")
                self.assertTrue(ckpt.due())
                with self.assertRaises(error):
                    ckpt.save(write=mock.Mock(side_effect=error))
                self.assertFalse((mover.path / f"{mover.last}/ready.0").exists())
                mover.fail("of the test")

    def test_sigterm_ends_no_session_that_is_to_outlive_it(self):
        self.assertEqual(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)
        for outlive in (False, True):
            with Mover():
                with checkpoint.session(outlive=outlive):
                    during = signal.getsignal(signal.SIGTERM)
                self.assertEqual(during, signal.SIG_IGN if outlive else signal.SIG_DFL)
            self.assertEqual(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)

    def test_ranks_save_what_rank_0_has_seen(self):
        barrier, seen = threading.Barrier(2), {}

        def rank(number):
            def broadcast(value):
                if number == 0:
                    seen["value"] = value
                barrier.wait()
                value = seen["value"]
                barrier.wait()
                return value

            with checkpoint.session(broadcast=broadcast, rank=number, size=2) as ckpt:
                while not ckpt.due():
                    pass
                ckpt.save({"rank": number})

        with Mover() as mover:
            ranks = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
            for thread in ranks:
                thread.start()
            until(lambda: len(mover.answered) == 2)
            mover.ask("interval")
            mover.commit()
            for thread in ranks:
                thread.join()
            kept = [json.loads((mover.base / f"kept/1/{number}/state.json").read_text()) for number in (0, 1)]
            self.assertEqual(kept, [{"rank": 0}, {"rank": 1}])

    def test_ranks_without_a_way_to_agree_are_refused(self):
        with Mover(), self.assertRaisesRegex(checkpoint.CheckpointError, "2 ranks have to agree"):
            checkpoint.session(rank=0, size=2)


class Torch:
    """As much of torch as the module uses, for a process group of two, whose other rank the test plays."""

    def __init__(self, rank, backend="gloo"):
        self.others = []
        self.devices = set()
        self.seed = [1, 2, 3]
        self.int64 = "int64"
        self.distributed = types.SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_rank=lambda: rank,
            get_world_size=lambda: 2,
            get_backend=lambda group: backend,
            ReduceOp=types.SimpleNamespace(MIN=min),
            broadcast=self.broadcast,
            all_reduce=self.all_reduce,
        )
        self.rank = rank
        self.cuda = types.SimpleNamespace(current_device=lambda: 3, is_available=lambda: False)

    def device(self, *which):
        return which

    def tensor(self, values, dtype, device):
        self.devices.add(device)
        return _Tensor(values)

    def broadcast(self, tensor, src, group):
        if self.rank != src:
            tensor.values = list(self.others.pop(0))

    def all_reduce(self, tensor, op, group):
        tensor.values = [op(tensor.values[0], self.others.pop(0))]

    def save(self, state, path):
        path.write_text("torch " + json.dumps(state))

    def load(self, path, map_location):
        return json.loads(path.read_text().removeprefix("torch "))

    def get_rng_state(self):
        return list(self.seed)

    def set_rng_state(self, state):
        self.seed = state


class _Tensor:
    def __init__(self, values):
        self.values = values

    def tolist(self):
        return self.values


class WithTorch(unittest.TestCase):
    def torch(self, *arguments):
        torch = Torch(*arguments)
        patched = mock.patch.dict(sys.modules, {"torch": torch})
        patched.start()
        self.addCleanup(patched.stop)
        return torch

    def start(self, mover, rank, nonce=7):
        """Joins for the other rank."""
        (mover.path / f"ranks/{rank}.2.{nonce}").touch()

    def test_rank_1_saves_what_rank_0_tells(self):
        torch = self.torch(1)
        with Mover() as mover:
            self.start(mover, 0)
            torch.others = [1, (0, 0), (1, 0)]
            with checkpoint.session() as ckpt:
                self.assertFalse(ckpt.due())
                mover.ask("interval")
                self.assertTrue(ckpt.due())
                self.assertTrue(ckpt.save({"rank": 1}))
                folder = mover.path / "1/files/rank-1-of-2"
                self.assertEqual((folder / "state.pt").read_text(), 'torch {"rank": 1}')
                (mover.path / "1/ready.0").touch()
                mover.commit()
            self.start(mover, 0, 8)
            torch.others = [1, 1]
            with checkpoint.session() as ckpt:
                self.assertEqual(ckpt.load(), {"rank": 1})
            self.assertEqual(torch.devices, {("cpu",)})

    def test_what_one_rank_cannot_load_all_refuse(self):
        torch = self.torch(1)
        with Mover() as mover, quiet() as told:
            self.start(mover, 0)
            torch.others = [1, (1, 0), (2, 0)]
            with checkpoint.session() as ckpt:
                for step in (1, 2):
                    mover.ask("interval")
                    self.assertTrue(ckpt.due())
                    ckpt.save({"step": step})
                    (mover.path / f"{step}/ready.0").touch()
                    mover.commit()
            self.start(mover, 0, 8)
            torch.others = [1, 0, 1]
            with checkpoint.session() as ckpt:
                # Rank 0 has refused it and joins again.
                self.start(mover, 0, 9)
                self.assertEqual(ckpt.load(), {"step": 1})
                self.assertEqual(ckpt.restored.number, 1)
            self.assertEqual(list(mover.refused.values()), ["another rank could not load it"])
        self.assertIn("checkpoint 2 is refused, and the one before is asked for", told.getvalue())

    def test_nccl_is_given_tensors_of_the_gpu(self):
        torch = self.torch(0, "nccl")
        with Mover() as mover:
            self.start(mover, 1)
            torch.others = [1]
            with checkpoint.session() as ckpt:
                self.assertFalse(ckpt.due())
        self.assertEqual(torch.devices, {("cuda", 3)})

    def test_no_rank_waits_for_one_that_has_no_mover(self):
        torch = self.torch(0)
        torch.others = [0]
        with Mover() as mover, quiet() as told, checkpoint.session() as ckpt:
            self.assertIsNone(ckpt.load())
            mover.ask("interval")
            self.assertFalse(ckpt.due())
        self.assertIn("not all ranks have gpuos_mover", told.getvalue())


class RandomNumbers(unittest.TestCase):
    def test_they_go_on_where_they_were(self):
        with mock.patch.dict(sys.modules):
            sys.modules.pop("torch", None)
            state = json.loads(json.dumps(checkpoint.rng_state()))
            drawn = [random.random() for _ in range(5)]
            checkpoint.set_rng_state(state)
            self.assertEqual([random.random() for _ in range(5)], drawn)

    def test_those_of_torch_too(self):
        torch = Torch(0)
        with mock.patch.dict(sys.modules, {"torch": torch}):
            state = checkpoint.rng_state()
            torch.seed = [9]
            checkpoint.set_rng_state(state)
        self.assertEqual(torch.seed, [1, 2, 3])


if __name__ == "__main__":
    unittest.main()
