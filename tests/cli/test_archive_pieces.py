"""Tars beyond the limit of `cairn archive`: several files, each a plain tar, read with and without cairn as one member."""

import os
import random
import re
import shutil
import subprocess
import time
import unittest

from cairn_cli import CAIRN, CliTest, flip, tree


class PiecesTest(CliTest):
    def policy(self, head="", every=20):
        return super().policy(f'bundle_max = "1MB"\n{head}', runs=self.run_dir, full=every, weights=0)

    def files(self, step):
        return sorted(p for p in self.store.iterdir() if re.search(rf"step-{step:08}\.\w+\.tar(\.\d+)?$", p.name))

    def store_one(self, *flags, step=20):
        made = self.make_step("--pp", 4, "--layers", 4, "--hidden", 192, "--ffn", 768, step=step)
        self.archive("run", made, "--store", self.store, "--max-tar-size", "1MB", *flags, says=" files: ")
        return tree(made)

    def test_gnu_tar_and_sha256sum_restore_every_file(self):
        before = self.store_one("--pack")
        files = self.files(20)
        self.assertGreater(len(files), 4)
        listed = []
        for path in files:
            done = subprocess.run(["tar", "-tf", path], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            listed += done.stdout.split()
        self.assertEqual(len(listed), len(before) + 1)
        line = next(t for t in (self.store / "README.txt").read_text().splitlines() if "for f in" in t).split("done")[0]
        shell = line.replace("RUN-step-NNNNNNNN.XXXXXXXX", files[0].name.removesuffix(".tar")) + "done"
        subprocess.run(["sh", "-ec", shell], cwd=self.store, check=True)
        out = self.store / "gpt/step-00000020"
        python = os.environ.get("CAIRN_VENV", "/usr") + "/bin/python3"
        subprocess.run([python, "unpack.py", out], cwd=self.store, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=out, check=True)
        (out / "SHA256SUMS").unlink()
        self.assertEqual(tree(out), before)

    def test_it_is_one_member_for_every_verb(self):
        before = self.store_one()
        (member,) = self.json("archive", "ls", self.store)
        self.assertEqual([p["name"] for p in member["pieces"]][0], member["tar"])
        self.assertEqual({p["name"]: p["bytes"] for p in member["pieces"]}, {p.name: p.stat().st_size for p in self.files(20)})
        self.assertEqual(sum(p["bytes"] for p in member["pieces"]), member["bytes"])
        self.archive("ls", self.store, says=f"{member['tar']} in {len(member['pieces'])} files")
        name = f"{self.store}:gpt@20"
        self.archive("verify", name, says="whole")
        self.archive("restore", name, "back/step-00000020", says="restored")
        self.assertEqual(tree(self.dir / "back/step-00000020"), before)
        self.cairn("reshape", name, "wide", "--tp", 2)
        self.assertEqual(self.json("fingerprint", "wide"), self.json("fingerprint", self.run_dir / "step-00000020"))
        self.archive("restore", name, "weights/step-00000020", "--weights-only", says="a part of")
        self.archive("run", self.run_dir, "--store", self.store, says=["stored and verified already", "files"])
        for path in list(self.store.glob("ledger*")) + list(self.store.glob("*.json")):
            path.unlink()
        self.archive("ls", self.store, "--rebuild", says="verified")
        (again,) = self.json("archive", "ls", self.store)
        self.assertEqual(again["pieces"], member["pieces"])

    def test_a_policy_limits_sizes_and_prunes_pieces(self):
        for step in (20, 30):
            self.make_step("--pp", 4, "--layers", 4, "--hidden", 192, "--ffn", 768, step=step)
        plan = self.json("archive", "plan", self.policy(every=10))
        self.archive("run", "--dry-run", self.run_dir / "step-00000020", "--store", self.store, "--max-tar-size", "1MB", says="would store")
        self.archive("plan", self.policy("[quota]\ninodes = 4"), code=1, says="the quota is 4")
        self.archive("run", "--policy", self.policy(every=10), says=["stored gpt@20", "in 6 files"])
        self.assertEqual(plan["inodes"], len(self.files(20)) + len(self.files(30)) + 2)
        self.archive("run", "--policy", self.policy('bundle = "500kB"', every=10), says="stored 0 members")
        self.archive("bundle", self.policy('bundle = "500kB"', every=10))
        self.assertEqual([m for m in self.json("archive", "ls", self.store) if "bundle" in m], [])
        self.archive("prune", self.policy(every=30), says="freed")
        self.assertEqual(self.files(20), [])
        self.assertEqual([m["step"] for m in self.json("archive", "ls", self.store)], [30])
        self.archive("verify", self.store, says="whole")

    def test_damage_is_named_and_repaired(self):
        before = self.store_one("--parity", "5%")
        shutil.move(self.run_dir, self.dir / "gone")
        third = self.files(20)[2]
        flip(third, third.stat().st_size // 2)
        self.archive("verify", self.store, code=1, says=[third.name, "step-00000020"])
        self.archive("restore", f"{self.store}:gpt@20", "back", code=1)
        self.assertFalse((self.dir / "back").exists())
        self.archive("verify", self.store, "--repair", says=["repaired from its parity", "whole"])
        os.truncate(third, third.stat().st_size - 4096)
        self.archive("ls", self.store, says=["damaged", f"{third.name} has "])
        self.archive("verify", self.store, "--repair", says=["repaired from its parity", "whole"])
        third.unlink()
        self.archive("verify", self.store, code=1, says=f"{third.name} is missing")
        self.archive("verify", self.store, "--repair", code=1, says="cannot be repaired")
        shutil.move(self.dir / "gone", self.run_dir)
        self.archive("verify", self.store, "--repair", says=["stored again from", "whole"])
        self.archive("restore", f"{self.store}:gpt@20", "back", says="restored")
        self.assertEqual(tree(self.dir / "back"), before)

    def test_only_needed_files_are_recalled_from_tape(self):
        self.store_one()
        tape = self.dir / "tape"
        tape.mkdir()
        stubs = [p for p in self.files(20) if p.stat().st_size >= 1 << 20]
        self.assertGreaterEqual(len(stubs), 4)
        for path in stubs:
            shutil.copy(path, tape / path.name)
            os.truncate(path, 0)
            os.truncate(path, (tape / path.name).stat().st_size)
        recall = self.dir / "recall.sh"
        recall.write_text(f'for f in "$@"; do echo $(basename "$f") >> {tape}/log; cp {tape}/$(basename "$f") "$f"; done\n')
        flags = ["--recall", f"sh {recall} {{paths}}"]
        log = lambda: sorted((tape / "log").read_text().split())
        self.archive("ls", self.store, says="verified")
        self.archive("restore", f"{self.store}:gpt@20", "one.safetensors", "--tensors", "layers.1.mlp.up.weight", *flags, says="tensors")
        self.assertEqual(len(log()), 1)
        self.archive("recall", self.store, *flags, says=f"{len(stubs) - 1} of {len(self.files(20))} files, which hold 1 members")
        self.assertEqual(log(), [p.name for p in stubs])
        self.archive("verify", self.store, says="whole")

    def test_kills_at_random_moments_leave_no_apparent_member(self):
        self.make_step("--pp", 4, "--layers", 4, "--hidden", 192, "--ffn", 768, step=20)
        chance = random.Random(7)
        for _ in range(10):
            process = subprocess.Popen([CAIRN, "archive", "run", "--policy", self.policy('parity = "5%"')],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.random() * 0.4)
            process.kill()
            process.wait()
            if self.store.exists() and any(m["state"] == "verified" for m in self.json("archive", "ls", self.store)):
                self.archive("verify", self.store, says="whole")
            self.archive("run", "--policy", self.policy('parity = "5%"'))
            self.archive("verify", self.store, says="whole")
            self.assertEqual([p.name for p in self.store.iterdir() if "partial" in p.name], [])
            shutil.rmtree(self.store)


if __name__ == "__main__":
    unittest.main()
