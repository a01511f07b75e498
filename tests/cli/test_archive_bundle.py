"""Bundles of `cairn archive`: few large plain tars, made and restored as a user does, with and without cairn."""

import json
import os
import random
import shutil
import subprocess
import tarfile
import time
import unittest

from cairn_cli import CAIRN, CliTest, flip, tree


class BundleTest(CliTest):
    def policy(self, head="", bundle="100GB", **more):
        return super().policy(f'bundle = "{bundle}"\n{head}', **more)

    def tars(self):
        return sorted(p.name for p in self.store.glob("*.tar"))

    def members(self):
        return [m for m in self.json("archive", "ls", self.store) if "form" in m]

    def store_three(self, *flags, **policy):
        """Steps 10, 20 and 40: two full copies and three of weights."""
        for step in (10, 20, 40):
            self.make_step(*flags, step=step)
        policy = self.policy(**policy)
        self.archive("run", "--policy", policy)
        return policy

    def test_members_wait_until_they_fill_a_bundle(self):
        policy = self.store_three()
        self.assertEqual(len(self.tars()), 5)
        self.archive("plan", policy, says="5 members, ")
        self.assertEqual(self.json("archive", "plan", policy)["bundling"]["waiting_members"], 5)
        policy = self.policy(bundle="1MB")
        bundles = self.json("archive", "plan", policy)["bundling"]["bundles"]
        self.assertEqual(bundles[0]["why"], "they reach the size of a bundle")
        self.archive("run", "--policy", policy, says=["bundled", "read back and verified", "stored 0 members"])
        self.assertIn(bundles[0]["bundle"], self.tars())
        self.assertLess(len(self.tars()), 5)
        self.assertEqual(len(self.members()), 5)
        status = json.loads((self.store / "status.json").read_text())
        self.assertLessEqual(abs(status["store_files"] - len(list(self.store.iterdir()))), 3)  # SQLite's come and go
        self.archive("verify", self.store, says="whole")

    def test_gnu_tar_and_sha256sum_restore_everything(self):
        policy = self.store_three()
        before = {step: tree(self.run_dir / f"step-{step:08}") for step in (20, 40)}
        self.archive("bundle", policy, "--dry-run", says=["bundle 3 members", "nothing is left to add"])
        self.assertEqual(len(self.tars()), 5)
        self.archive("bundle", policy, says="bundled 3 members")
        bundles = self.tars()
        self.assertEqual(len(bundles), 2)  # a step in full and its weights have one directory, hence two bundles
        self.assertEqual({m["bundle"] for m in self.members()}, set(bundles))
        self.assertIn("bundle", (self.store / "README.txt").read_text())
        for number, name in enumerate(bundles):
            out = self.dir / f"out{number}"
            out.mkdir()
            subprocess.run(["tar", "-xf", self.store / name, "-C", out], check=True)
            listed = subprocess.run(["tar", "-tf", self.store / name], capture_output=True, text=True, check=True).stdout.split()
            self.assertEqual(listed[-1], name.replace(".tar", ".json"))
            steps = [p for p in (out / "gpt").iterdir()]
            self.assertEqual(len(steps), len([m for m in self.members() if m["bundle"] == name]))
            for step in steps:
                subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=step, check=True)
            with tarfile.open(self.store / name) as tar:
                self.assertEqual(len(tar.getnames()), len(listed))
        full = next(m for m in self.members() if m["step"] == 20 and m["form"] == "full")
        subprocess.run(["tar", "-xf", self.store / full["bundle"], "-C", self.dir, "gpt/step-00000020/index.h5",
                        "--transform", "s/^gpt/one/"], check=True)
        self.assertEqual((self.dir / "one/step-00000020/index.h5").read_bytes(), before[20]["index.h5"])
        for step, files in before.items():
            self.archive("restore", f"{self.store}:gpt@{step}", f"back/step-{step:08}", says="restored")
            self.assertEqual(tree(self.dir / f"back/step-{step:08}"), files)

    def test_bundled_members_are_checkpoints(self):
        self.archive("bundle", self.store_three(head="pack = true"))
        member = f"{self.store}:gpt@20"
        self.cairn("verify", member, "--hash", "--values", says="good")
        self.cairn("diff", member, self.run_dir / "step-00000020", says="no difference")
        self.cairn("reshape", member, "wide", "--tp", 2)
        self.assertEqual(self.json("fingerprint", "wide"), self.json("fingerprint", self.run_dir / "step-00000020"))
        self.archive("restore", member, "weights/step-00000020", "--weights-only", says="a part of")
        self.archive("restore", member, "one.safetensors", "--tensors", "final_norm.*", says="tensors")
        self.archive("restore", f"{self.store}:gpt@10", "w10", says="restored")  # weights are all that there is
        self.assertEqual({r["role"] for r in self.json("inspect", "w10")["tensors"]}, {"weight"})
        self.archive("run", self.run_dir, "--store", self.store, says="gpt@20 is stored and verified already")

    def test_one_tensor_reads_little_of_a_bundle(self):
        for step in (20, 40, 60):
            self.make_step("--hidden", 256, "--ffn", 1024, "--layers", 2, step=step)
        self.archive("run", "--policy", self.policy())
        self.archive("bundle", self.policy())
        self.assert_one_tensor_reads_little(f"{self.store}:gpt@40")

    def test_prune_removes_a_bundle_only_as_a_whole(self):
        policy = self.store_three()
        self.archive("bundle", policy)
        files = self.tars()
        policy = self.policy(full=40)  # no class keeps the full gpt@20 any longer
        entries = [e for e in self.json("archive", "prune", policy, "--dry-run") if e["step"] == 20]
        self.assertEqual([e["remove"] for e in entries], [False, False])
        self.assertTrue(any(e["why"].startswith("no class asks for it, but ") for e in entries), entries)
        self.archive("prune", policy, says="freed -")
        self.assertEqual(self.tars(), files)

    def test_members_that_no_class_keeps_are_pruned_not_bundled(self):
        policy = self.store_three()
        policy = self.policy(full=40)
        self.archive("bundle", policy)
        (alone,) = [m for m in self.members() if "bundle" not in m and m["step"] == 20]
        self.assertEqual(alone["form"], "full")
        self.archive("prune", policy, says="freed")
        self.assertNotIn(alone["tar"], self.tars())

    def test_a_lost_ledger_and_lost_sidecars_are_rebuilt(self):
        self.archive("bundle", self.store_three())
        before = self.members()
        for path in list(self.store.glob("ledger*")) + list(self.store.glob("*.tar.json")):
            path.unlink()
        self.assertEqual({m["state"] for m in self.members()}, {"stored"})
        self.archive("verify", self.store, code=1, says="--rebuild")
        self.archive("ls", self.store, "--rebuild")
        after = self.members()
        self.assertEqual([(m["tar"], m["bundle"], m["state"]) for m in after], [(m["tar"], m["bundle"], "verified") for m in before])
        self.archive("verify", self.store, says="whole")

    def test_damage_is_named_and_repaired(self):
        self.archive("bundle", self.store_three(head='parity = "5%"'))
        full = next(m for m in self.members() if m["step"] == 20 and m["form"] == "full")
        bundle = self.store / full["bundle"]
        good = bundle.read_bytes()
        with tarfile.open(bundle) as tar:
            at = tar.getmember("gpt/step-00000020/shard-00000.h5").offset_data + 5000
        shutil.move(self.run_dir, self.dir / "gone")
        flip(bundle, at)
        self.archive("verify", self.store, code=1, says=f"{full['bundle']}/gpt/step-00000020/shard-00000.h5")
        self.archive("restore", f"{self.store}:gpt@20", "back", code=1)
        self.assertFalse((self.dir / "back").exists())
        self.archive("verify", self.store, "--repair", says=["repaired from its parity", "whole"])
        self.assertTrue(bundle.read_bytes() == good)

    def test_a_bundle_is_recalled_once(self):
        policy = self.store_three("--hidden", 256)
        self.archive("bundle", policy)
        tape = self.dir / "tape"
        tape.mkdir()
        for name in self.tars():
            shutil.copy(self.store / name, tape / name)
            size = (self.store / name).stat().st_size
            os.truncate(self.store / name, 0)
            os.truncate(self.store / name, size)
        recall = self.dir / "recall.sh"
        recall.write_text(f'for f in "$@"; do echo $(basename "$f") >> {tape}/log; cp {tape}/$(basename "$f") "$f"; done\n')
        self.archive("ls", self.store, says="verified")
        self.archive("run", "--policy", policy, says="0 waiting")
        self.assertFalse((tape / "log").exists())  # neither recalls anything
        self.archive("recall", self.store, "--recall", f"sh {recall} {{paths}}", says="2 of 2 files, which hold 5 members")
        self.assertEqual(sorted((tape / "log").read_text().split()), self.tars())
        self.archive("verify", self.store, says="whole")

    def test_wrong_sizes_in_a_policy_are_named(self):
        self.make_step(step=20)
        self.archive("plan", self.policy(head='bundle_max = "1MB"'), code=2, says="between bundle_min and bundle_max")
        path = self.policy(head='bundle_min = "1MB"')
        path.write_text(path.read_text().replace('bundle = "100GB"', ""))
        self.archive("plan", path, code=2, says="has no effect without bundle")
        path.write_text(path.read_text().replace('bundle_min = "1MB"', ""))
        self.archive("bundle", path, code=2, says="is missing")

    def test_kills_at_random_moments_lose_nothing(self):
        policy = self.store_three(head='parity = "5%"', tail="[delete]\nsource = true")
        before = self.members()
        chance = random.Random(3)
        shutil.copytree(self.store, self.dir / "small")
        for _ in range(12):
            process = subprocess.Popen([CAIRN, "archive", "bundle", policy], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.random() * 0.3)
            process.kill()
            process.wait()
            self.archive("verify", self.store, says="whole")
            known = {(m["step"], m["form"], m["state"]) for m in self.members()}
            self.assertTrue(known >= {(m["step"], m["form"], m["state"]) for m in before}, known)
            self.archive("bundle", policy)
            self.assertEqual(len(self.tars()), 2)
            self.assertEqual([p.name for p in self.store.iterdir() if "partial" in p.name or "deleting" in p.name], [])
            self.assertEqual(len(self.members()), len(before))
            shutil.rmtree(self.store)
            shutil.copytree(self.dir / "small", self.store)


if __name__ == "__main__":
    unittest.main()
