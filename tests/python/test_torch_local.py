"""The local level of `cairn.torch`: steps on the nodes, which survive the loss of nodes, ranks and bits."""

import fcntl
import glob
import json
import os
import shutil
import subprocess
import tempfile
import time
import unittest

import ranks


class LocalTest(ranks.RanksCase):
    """Jobs of several processes: what each rank does is in local_cases.py."""

    cases = "local_cases"
    jobs = 0

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.rmdir(cls.directory)
        cls.directory = tempfile.mkdtemp(dir="/dev/shm")

    def train(self, world, *arguments, killed=()):
        name = arguments[0]
        os.makedirs(f"{self.directory}/{name}", exist_ok=True)
        LocalTest.jobs += 1
        self.run_ranks("train", world, killed=killed, arguments=(LocalTest.jobs, *arguments))

    def node(self, name, rank):
        return f"{self.directory}/{name}/node-{rank}"

    def local_files(self, name, rank, pattern):
        found = sorted(glob.glob(f"{self.node(name, rank)}/*/step-*/{pattern}"))
        self.assertTrue(found, (name, rank, pattern))
        return found

    def await_names(self, name, rank, names):
        """Until the helpers have ended: the rank's directory holds only these."""
        until = time.monotonic() + 60
        while sorted(os.path.basename(path) for path in glob.glob(f"{self.node(name, rank)}/*/*")) != names:
            self.assertLess(time.monotonic(), until, os.listdir(self.node(name, rank)))
            time.sleep(0.1)

    def events(self, name, last="end"):
        """Of the run, once rank 0's helper has written the last of them."""
        until = time.monotonic() + 60
        while True:
            with open(f"{self.directory}/{name}/run/events", encoding="utf-8") as file:
                events = [json.loads(line) for line in file]
            if events[-1]["event"] == last:
                return events
            self.assertLess(time.monotonic(), until, events)
            time.sleep(0.1)

    def test_a_resume_has_the_very_bits_whatever_is_lost(self):
        name, how, xor = "fsdp", "fsdp", "xor:4"
        self.train(4, name, how, xor, None, 4)
        with self.subTest("nothing"):
            self.train(4, name, how, xor, 4, 5)
        with self.subTest("a node"):
            shutil.rmtree(self.node(name, 2))
            self.train(4, name, how, xor, 5, 7)
        with self.subTest("a bit in a shard and one in another's parity"):
            for file in self.local_files(name, 1, "shard-00001.h5"):
                ranks.flip(file, os.path.getsize(file) - 5000)
            for file in self.local_files(name, 0, "shard-00000.parity"):
                ranks.flip(file, os.path.getsize(file) - 100)
            self.train(4, name, how, xor, 7, 7)
        with self.subTest("manifests, the index, and values of all but one node"):
            for rank in (0, 1, 3):
                for file in self.local_files(name, rank, "manifest.json"):
                    os.truncate(file, 100)
                for pattern in ("index.h5", "shard-00004.h5"):
                    for file in self.local_files(name, rank, pattern):
                        os.remove(file)
            self.train(4, name, how, xor, 7, 8)
        with self.subTest("a rank"):
            self.train(3, name, how, "xor:3", 8, 10)
        for damaged in ((0,), (1, 2)):
            with self.subTest("values, which every node has", damaged=damaged):
                for rank in damaged:
                    for file in self.local_files(name, rank, "shard-0000[34].h5"):
                        for at in range(0, os.path.getsize(file), 64):
                            ranks.flip(file, at)
                self.train(3, name, how, "xor:3", 10, 10)
        with self.subTest("two nodes, so only the run has a step"):
            for rank in (0, 1):
                shutil.rmtree(self.node(name, rank))
            self.train(3, name, how, "xor:3", 8, 11)
        with self.subTest("the run's steps"):
            for step in glob.glob(f"{self.directory}/{name}/run/step-*"):
                shutil.rmtree(step)
            self.train(2, name, how, "xor:2", 11, 12)

    def test_a_training_that_went_back(self):
        """It loads a step by its path, not from the nodes: those that it gave up are not resumed from."""
        self.train(2, "back", "ddp", "xor:2", None, 5)
        self.run_ranks("go_back", 2)
        self.train(2, "back", "ddp", "xor:2", 4, 4)

    def test_a_job_without_local_steps_gives_them_up(self):
        self.train(2, "without", "ddp", "xor:2", None, 5)
        self.run_ranks("without_local", 2, arguments=("without",))
        self.train(2, "without", "ddp", "xor:2", 4, 6)
        self.assertIn("local steps 4, 5 given up: the run was continued without them", self.logs("train", [0]))
        self.train(2, "without", "ddp", "xor:2", 6, 6)

    def test_a_run_directory_that_was_removed(self):
        """Its steps on the nodes are not those of the next one of that name, which names them."""
        self.train(2, "removed", "ddp", "xor:2", None, 2)
        (old,) = os.listdir(self.node("removed", 0))
        shutil.rmtree(f"{self.directory}/removed/run")
        self.train(2, "removed", "ddp", "xor:2", None, 1)
        self.assertIn(f"{old} holds steps of a run directory that was at {self.directory}/removed/run before", self.logs("train", [0]))
        self.assertTrue(os.path.exists(f"{self.node('removed', 0)}/{old}/step-00000002"))

    def test_steps_on_the_nodes_that_turn_out_bad_are_given_up(self):
        self.train(2, "bad", "ddp", "xor:2", None, 5)
        self.run_ranks("give_up", 2)
        (gave_up,) = [event for event in self.events("bad") if event["event"] == "gave_up_local"]
        self.assertEqual((gave_up["step"], gave_up["why"]), (5, "the loss is nan"))
        self.train(2, "bad", "ddp", "xor:2", 4, 6)
        self.train(2, "bad", "ddp", "xor:2", 6, 6)

    def test_trainers_die_while_they_save(self):
        """Their helpers finish what was copied."""
        self.train(4, "killed", "hsdp", "rs:4,2", None, 4, 3, killed=range(4))
        for rank in range(4):
            self.await_names("killed", rank, ["OWNER", "latest", "step-00000002", "step-00000003"])
        for rank in (1, 2):
            shutil.rmtree(self.node("killed", rank))
        self.train(4, "killed", "hsdp", "rs:4,2", 3, 4)
        starts = [event for event in self.events("killed") if event["event"] == "start"]
        self.assertEqual([(start.get("step"), start.get("tier"), start["ranks"]) for start in starts], [(None, None, 4), (3, "local", 4)])
        plan = [os.environ["CAIRN"], "plan", "--checkpoints", f"{self.directory}/killed/run", "--step-seconds", "1"]
        said = subprocess.run(plan, capture_output=True, text=True).stdout  # of a training that hardly moves
        self.assertRegex(said, r"Failures: 1 in .* of training on 1 node \(1 of a process\)")

    def test_replicas_and_a_single_rank(self):
        self.train(2, "ddp", "ddp", "xor:2", None, 4)
        shutil.rmtree(self.node("ddp", 0))
        self.train(2, "ddp", "ddp", "xor:2", 4, 5)
        self.train(1, "one", "one", "", None, 4)
        self.train(1, "one", "one", "", 4, 5)

    def test_the_writer_of_dcp_saves_on_the_nodes(self):
        for ending in (False, True):
            self.run_ranks("with_dcp", 2, arguments=(ending,))

    def cairn(self, *arguments, code=0):
        done = subprocess.run([os.environ["CAIRN"], *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout + done.stderr

    def test_the_verbs_show_the_part_of_a_node(self):
        """`cairn ls` of the directory on a node, and `cairn verify` of a step there: whole, and with a flipped bit and without a shard."""
        self.train(4, "shown", "fsdp", "rs:4,2", None, 2)
        run = f"{self.directory}/shown/run"
        (node,) = glob.glob(self.node("shown", 1) + "/*")
        shards = [f"shard-0000{rank}.h5" for rank in range(4)]
        for given in (self.node("shown", 1), node):
            (listed,) = json.loads(self.cairn("ls", given, "--json"))
            self.assertEqual((listed["run"], listed["local_steps_of"]["run"]), (node, run))
            self.assertEqual([(step["step"], step["state"]) for step in listed["steps"]], [(1, "whole here"), (2, "whole here")])
            for step in listed["steps"]:
                self.assertEqual((step["shards_here"], step["shards_elsewhere"]), ([shards[1]], [shards[0], *shards[2:]]))
                self.assertEqual(step["parity"], [{"redundancy": "rs:4,2", "shards": shards, "needed": 2}])
                self.assertGreater(step["bytes"], 1000)
        said = self.cairn("ls", node)
        self.assertIn(f"local steps of this node, of the run {run}", said)
        self.assertRegex(said, r"2 +whole here +1 of 4 +rs:4,2 +any 2 of shard-00000.h5, shard-00001.h5, ")
        said = self.cairn("verify", node)
        self.assertIn("step-00000002: good", said)
        self.assertIn("not on this node: shard-00000.h5", said)
        self.cairn("verify", node, "--values", code=2)
        self.assertIn("only this node's part", self.cairn("convert", f"{node}/step-00000002", f"{self.directory}/out", "--to", "dcp", code=2))
        self.assertIn("other nodes have the rest", self.cairn("archive", "run", node, "--store", f"{self.directory}/store", code=2))
        ranks.flip(f"{node}/step-00000002/shard-00001.parity", 5000)
        self.assertIn("shard-00001.parity", self.cairn("verify", f"{node}/step-00000002", code=1))
        self.assertIn("whole here", self.cairn("ls", f"{node}/step-00000002"))  # which reads no bytes
        os.remove(f"{node}/step-00000002/shard-00001.h5")
        self.assertRegex(self.cairn("ls", node), r"(?s)2 +damaged here .*step 2: .*shard-00001.h5: is missing: its parity is here")
        self.cairn("verify", node, code=1)
        self.cairn("verify", f"{node}/step-00000001")

    def test_every_auto_follows_the_failures_of_the_run(self):
        """Of a run that lost several nodes every second, each save is copied that can be; of one without a history, only the first."""
        for name, failures in (("quiet", 0), ("failing", 200)):
            os.makedirs(run := f"{self.directory}/{name}/run")
            start = {"event": "start", "hosts": ["a", "b"], "ranks": 2, "local": True, "seconds": 0.1, "step": 1, "tier": "run"}
            with open(f"{run}/events", "w", encoding="utf-8") as file:
                for second in range(failures):
                    file.write(json.dumps({**start, "time": 1000 + second, "step_time": 999.5 + second}) + "\n")
            self.run_ranks("automatic", 2, arguments=(name,))
            found = []
            for rank in (0, 1):
                with open(f"{self.directory}/{name}/places-{rank}.json", encoding="utf-8") as file:
                    found.append(json.load(file))
            self.assertEqual(found[0], found[1], name)
            self.assertEqual((found[0][0], sum(found[0]) > 1), (True, failures > 0), (name, found))

    def test_memory_of_a_job_that_was_killed(self):
        """The next start removes it, and leaves that of another process."""
        os.makedirs(f"{self.directory}/memory")
        self.run_ranks("memory", 2, arguments=(None,))
        until = time.monotonic() + 60
        while memory := glob.glob(f"{self.node('memory', '*')}/*/.memory-*"):
            self.assertLess(time.monotonic(), until, memory)
            time.sleep(0.1)
        dead, used = (f"{os.path.dirname(os.path.dirname(self.local_files('memory', 0, 'manifest.json')[0]))}/.memory-{name}"
                      for name in ("00000001", "00000002"))
        with open(dead, "w"), open(used, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.run_ranks("memory", 2, arguments=(8,))
        self.assertEqual((os.path.exists(dead), os.path.exists(used)), (False, True))

    def test_a_directory_with_room_for_one_step(self):
        os.makedirs(small := f"{self.directory}/tight/small")
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", small], capture_output=True).returncode:
            self.skipTest("mounting a small tmpfs needs root")
        self.addCleanup(subprocess.run, ["umount", "-l", small])
        self.run_ranks("tight", 2)

    def test_jobs_that_check_themselves(self):
        """What each shows, local_cases.py says."""
        for case, world, *killed in (("refused", 2), ("unusable", 2), ("told_late", 2), ("rank_dies", 3, 1), ("node_dies", 3, 1)):
            with self.subTest(case):
                self.run_ranks(case, world, killed=killed)
        self.assertEqual([event["event"] for event in self.events("rank_dies")], ["start", "save_failed", "end"])


class OnDiskTest(LocalTest):
    """The same, with copies that become files, in place of memory that does."""

    @classmethod
    def setUpClass(cls):
        super(LocalTest, cls).setUpClass()


def load_tests(loader, tests, pattern):
    """On disk, one of them."""
    return unittest.TestSuite([loader.loadTestsFromTestCase(LocalTest), OnDiskTest("test_replicas_and_a_single_rank")])


if __name__ == "__main__":
    unittest.main()
