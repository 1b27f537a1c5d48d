"""torch.distributed.checkpoint over the files of another number of ranks, with DCP's own part played: what is tried is which files it sees and when
it is called. With a torch that has DCP the real one is tried as well."""

import json
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

from gpuos import checkpoint, dcp


class Played:
    """DCP as far as it is used here: each rank writes one file, rank 0 the metadata, and a reader looks for all that the metadata names."""

    def __init__(self, rank=0, size=1):
        self.rank, self.size = rank, size

    class FileSystemWriter:
        def __init__(self, path):
            self.path = Path(path)

    class FileSystemReader(FileSystemWriter):
        pass

    def save(self, state, storage_writer):
        (storage_writer.path / f"__{self.rank}_0.distcp").write_text(json.dumps(state))
        if self.rank == 0:
            names = [f"__{rank}_0.distcp" for rank in range(self.size)]
            (storage_writer.path / ".metadata").write_text(json.dumps(names))

    def load(self, state, storage_reader):
        for name in json.loads((storage_reader.path / ".metadata").read_text()):
            state.update(json.loads((storage_reader.path / name).read_text()))


def played(**numbers):
    module = Played(**numbers)
    names = {"torch": types.ModuleType("torch"), "torch.distributed": types.ModuleType("torch.distributed")}
    names["torch"].distributed = names["torch.distributed"]
    names["torch.distributed"].checkpoint = module
    names["torch.distributed.checkpoint"] = module
    return mock.patch.dict(sys.modules, names)


class Client(checkpoint.Checkpoints):
    """One that was given the files of two ranks."""

    def __init__(self, root):
        super().__init__(0, 1, root, all_files=True)

    def join(self, limit=None):
        return checkpoint.Restored(4, self._folder / "restored.4", 2, True)


# A rank with a tensor of its own and one that all have. Those that load read what three have saved, each into its own folder.
RANK = """
import sys
from pathlib import Path
import torch
import torch.distributed.checkpoint as real
from gpuos import dcp
root, size, what, rank = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
group = f"file://{root}/group-{size}"
torch.distributed.init_process_group("gloo", init_method=group, rank=rank, world_size=size)
folders = [root / f"many.4/rank-{of}-of-3" for of in range(3)]
if what == "save":
    folders[rank].mkdir(parents=True)
    state = {"all": torch.arange(1000), f"of {rank}": torch.full((10,), rank)}
    real.save(state, storage_writer=real.FileSystemWriter(str(folders[rank])))
else:
    state = {"all": torch.zeros(1000, dtype=torch.int64), **{f"of {of}": torch.zeros(10, dtype=torch.int64) for of in range(rank, 3, size)}}
    with dcp.view(folders) as seen:
        real.load(state, storage_reader=real.FileSystemReader(str(seen)))
    assert state["all"].tolist() == list(range(1000))
    for of in range(rank, 3, size):
        assert state[f"of {of}"].tolist() == [of] * 10, state
torch.distributed.destroy_process_group()
"""


class DcpTest(unittest.TestCase):
    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory())) if hasattr(self, "enterContext") else Path(tempfile.mkdtemp())

    def saved(self, size):
        folders = []
        for rank in range(size):
            folder = self.root / f"restored.4/rank-{rank}-of-{size}"
            folder.mkdir(parents=True)
            with played(rank=rank, size=size):
                Played(rank, size).save({f"part {rank}": rank}, Played.FileSystemWriter(folder))
            folders.append(folder)
        return folders

    def test_one_rank_reads_what_two_have_saved(self):
        self.saved(2)
        session = checkpoint.Session(Client(self.root), checkpoint._Ranks(), 1)
        with played(), session:
            state = {}
            self.assertTrue(dcp.load(session, state))
        self.assertEqual(state, {"part 0": 0, "part 1": 1})

    def test_without_a_checkpoint_nothing_is_read(self):
        client = checkpoint.Checkpoints(0, 1, None, all_files=True)
        with played(), checkpoint.Session(client, checkpoint._Ranks(), 1) as session:
            self.assertFalse(dcp.load(session, {}))

    def test_files_are_seen_in_one_folder_and_none_is_copied(self):
        folders = self.saved(3)
        with dcp.view(folders) as seen:
            names = sorted(path.name for path in seen.iterdir())
            self.assertEqual(names, [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"])
            self.assertTrue(all(path.is_symlink() for path in seen.iterdir()))
        self.assertFalse(seen.exists())
        with self.assertRaisesRegex(checkpoint.CheckpointError, "two ranks"):
            with dcp.view([folders[0], folders[0]]):
                pass

    def test_a_torch_without_it_is_told(self):
        names = {"torch": types.ModuleType("torch"), "torch.distributed": None, "torch.distributed.checkpoint": None}
        with mock.patch.dict(sys.modules, names):
            with self.assertRaisesRegex(checkpoint.CheckpointError, "comes with torch 2"):
                dcp.session()

    def real(self):
        try:
            import torch
            import torch.distributed.checkpoint as real
        except ImportError as error:
            self.skipTest(f"this torch has no DCP that can be imported: {error}")
        return torch, real

    def test_the_real_one_with_another_number_of_ranks(self):
        self.real()
        for size, what in ((3, "save"), (2, "load"), (1, "load")):
            start = [sys.executable, "-c", RANK, str(self.root), str(size), what]
            ranks = [subprocess.Popen([*start, str(rank)], cwd=Path(__file__).parents[1]) for rank in range(size)]
            self.assertEqual([rank.wait(120) for rank in ranks], [0] * size, f"{size} {what}")

    def test_the_real_one(self):
        torch, real = self.real()
        torch.distributed.init_process_group("gloo", init_method=f"file://{self.root}/group", rank=0, world_size=1)
        try:
            folder = self.root / "restored.4/rank-0-of-1"
            folder.mkdir(parents=True)
            write = getattr(real, "save", None) or real.save_state_dict
            write({"a": torch.arange(5)}, storage_writer=real.FileSystemWriter(str(folder)))
            client = Client(self.root)
            client.join = lambda limit=None: checkpoint.Restored(4, self.root / "restored.4", 1, True)
            state = {"a": torch.zeros(5, dtype=torch.int64)}
            with checkpoint.Session(client, checkpoint._Ranks(), 1) as session:
                self.assertTrue(dcp.load(session, state))
            self.assertEqual(state["a"].tolist(), [0, 1, 2, 3, 4])
        finally:
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
