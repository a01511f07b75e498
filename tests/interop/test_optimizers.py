"""What each format keeps of each optimizer, and what each verb says of it: optimizers.txt has the answers.

`test_optimizers.py --write` writes the table again. A line that changes is visible to users: say why in the changelog.
"""

import collections
import concurrent.futures
import json
import pathlib
import re
import sys
import tempfile
import unittest

from harness import cairn, written_for

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cli"))
from cairn_cli import Table  # noqa: E402

PROGRAMS = ("torch", "deepspeed", "megatron")
TARGETS = ("native", "dcp", "torch-dist", "megatron", "megatron-deepspeed", "universal", "hf")
FORMATS = ("dcp", "torch", "deepspeed", "universal", "torch_dist", "mp_rank")


class OptimizersTest(Table, unittest.TestCase):
    answers = pathlib.Path(__file__).with_name("optimizers.txt")

    @classmethod
    def setUpClass(cls):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            cls.places = list(pool.map(lambda program: written_for(cls, "optimizer_writer.py", program), PROGRAMS))

    def said(self, text):
        """Without this machine's paths."""
        return re.sub(r"(/[\w.@-]+)+/(dcp|torch|deepspeed|universal|torch_dist|mp_rank)/", r"\2/", text)[:300]

    def refusal(self, done):
        return f"{done.returncode}: " + self.said((done.stderr or done.stdout).strip().split("\n")[-1].removeprefix("cairn: "))

    def roles(self, path):
        done = cairn("inspect", path, "--json", status=None)
        if done.returncode:
            return self.refusal(done)
        facts = json.loads(done.stdout)
        if "file" in facts:
            return "a file of torch.save"
        counted = collections.Counter(tensor["role"] for tensor in facts["tensors"])
        return " ".join(f"{role} {count}" for role, count in counted.items())

    def verified(self, path):
        done = cairn("verify", path, "--no-record", status=None)
        return self.refusal(done) if done.returncode else "good"

    def sealed(self, path):
        done = cairn("seal", path, "--dry-run", "--settle", 0, "--json", status=None)
        if done.returncode:
            return self.refusal(done)
        return "; ".join(self.said(text) for fact in json.loads(done.stdout) for text in [fact["state"], *fact["untold"]])

    def converted(self, path, target):
        config = [] if path.parts[-2] in ("torch_dist", "mp_rank") else ["--config", path.parents[1] / "config"]
        with tempfile.TemporaryDirectory() as out:
            done = cairn("convert", path, f"{out}/out", "--to", target, *config, status=None)
            return self.refusal(done) if done.returncode else self.roles(f"{out}/out")

    def answers_of(self, path):
        yield "inspect", self.roles(path)
        yield "verify", self.verified(path)
        yield "seal", self.sealed(path)
        for target in TARGETS:
            yield target, self.converted(path, target)

    def table(self):
        """A line has all verbs and targets with the same answer."""
        lines = []
        for kind in FORMATS:
            for path in sorted(at for place in self.places for at in place.glob(f"{kind}/*")):
                lines.append(f"{kind} {path.stem}")
                told = collections.defaultdict(list)
                for verb, answer in self.answers_of(path):
                    told[answer].append(verb)
                lines += [f"  {', '.join(verbs)}: {answer}" for answer, verbs in told.items()]
        return "\n".join(lines) + "\n"


if __name__ == "__main__":
    OptimizersTest.main()
