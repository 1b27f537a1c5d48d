"""Programs that can begin from the files of another number of ranks."""

import json
import os
import tempfile
import threading
import unittest
from pathlib import Path

from gpuos import checkpoint

from tests.mover import until


class Job:
    """The folder of a job whose checkpoint 4 two ranks have made; whoever joins is told `line`."""

    def __init__(self, line):
        self.line = line
        self.place = tempfile.TemporaryDirectory()
        self.path = Path(self.place.name)
        (self.path / "ranks").mkdir()
        for rank in range(2):
            folder = self.path / f"restored.4/rank-{rank}-of-2"
            folder.mkdir(parents=True)
            (folder / "state.json").write_text(json.dumps({"rank": rank}))
        self.said = None

    def __enter__(self):
        self.thread = threading.Thread(target=self._answer)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join()
        self.place.cleanup()

    def _answer(self):
        def joined():
            return [name for name in os.listdir(self.path / "ranks") if name[0].isdigit()]

        until(joined)
        rank, _, nonce = joined()[0].split(".")
        self.said = [name.split(".")[0] for name in os.listdir(self.path / "ranks") if name.endswith(f".{rank}.{nonce}") and not name[0].isdigit()]
        (self.path / ".new").write_text(self.line + "\n")
        os.rename(self.path / ".new", self.path / f"start.{rank}.{nonce}")


class RanksTest(unittest.TestCase):
    def test_what_is_said_is_there_before_the_join(self):
        for options, said in (({}, []), ({"any_ranks": True}, ["any"]), ({"all_files": True}, ["all"])):
            with Job("new") as job:
                client = checkpoint.Checkpoints(0, 1, job.path, **options)
                self.assertIsNone(client.join())
            self.assertEqual(job.said, said)

    def test_each_rank_reads_what_it_needs_of_all(self):
        with Job("restore 4 of 2") as job:
            client = checkpoint.Checkpoints(0, 1, job.path, any_ranks=True)
            with checkpoint.Session(client, checkpoint._Ranks(), 1) as session:
                read = session.load(reshape=lambda folders: [json.loads((folder / "state.json").read_text())["rank"] for folder in folders])
                self.assertEqual(read, [0, 1])
                self.assertEqual((session.restored.number, session.restored.ranks, session.restored.shared), (4, 2, True))

    def test_who_says_so_has_to_be_able_to(self):
        client = checkpoint.Checkpoints(0, 1, None, any_ranks=True)
        with self.assertRaisesRegex(checkpoint.CheckpointError, "reshape"):
            checkpoint.Session(client, checkpoint._Ranks(), 1).load({})

    def test_lines_that_are_none(self):
        for line in ("restore 4 of", "restore 4 of x", "restore of 2", "new 2"):
            with Job(line) as job, self.assertRaisesRegex(checkpoint.CheckpointError, "does not know"):
                checkpoint.Checkpoints(0, 1, job.path).join()


if __name__ == "__main__":
    unittest.main()
