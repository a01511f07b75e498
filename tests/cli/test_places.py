"""What a path means to each verb: the same trees are given to all verbs, and places.txt has their answers.

`test_places.py --write` writes the table again. A line that changes is visible to users: say why in the changelog.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time

from cairn_cli import CAIRN, MAKE_STEP, CliTest, Table

TREES: dict = {}  # by name: (how to make it in a directory, the argument that means it)
TORCH_FILE = "megatron/iter_0000004/mp_rank_00/model_optim_rng.pt"
SYSTEMS = {
    "dcp": "dcp/step-4",
    "megatron": "megatron",
    "torch-dist": "torch_dist",
    "megatron-deepspeed": "deepspeed",
    "universal": "universal",
    "hf": "hf",
}


def tree(argument=".", name=None):
    """Registers a function that makes a tree; `argument` is what the verbs are given, from inside of it. The lowest is the first."""

    def register(make):
        TREES[name or make.__name__] = (make, argument)
        return make

    return register


class Maker:
    """Puts together a tree from the parts, which are made once."""

    def __init__(self, parts, root):
        self.parts, self.root = parts, root
        self.last = []  # commands that run when all files look old

    def put(self, part, at="."):
        """A copy of a part; a directory's contents go into `at`."""
        source, target = self.parts / part, self.root / at
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)
        return target

    def write(self, at, text):
        path = self.root / at
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def cairn(self, *args):
        subprocess.run([CAIRN, *map(str, args)], cwd=self.root, check=True, capture_output=True)


# A run of Cairn


@tree("../tree@9", "run_at_a_number_that_it_lacks")
@tree("../tree@4", "run_at_a_number")
@tree("step-00000004/", "step_with_a_slash")
@tree("step-00000004", "step")
@tree()
def run(t):
    t.put("run")


@tree("../tree@best")
def run_at_a_tag(t):
    t.put("run")
    t.cairn("tag", "step-00000004", "best")


@tree()
def run_of_a_damaged_newest_step(t):
    t.put("run")
    t.write("step-00000006/manifest.json", "{")


@tree("step-00000006", "step_without_manifest")
@tree()
def run_of_a_newest_step_without_manifest(t):
    t.put("run")
    (t.root / "step-00000006/manifest.json").unlink()


@tree()
def run_with_a_partial_step(t):
    t.put("run")
    (t.root / "step-00000006").rename(t.root / "step-00000006.partial-0123456789abcdef")


@tree()
def run_without_a_finished_step(t):
    t.put("run/step-00000006", "step-00000006.partial-0123456789abcdef")


@tree()
def run_with_a_superseded_step(t):
    t.put("run")
    (t.root / "step-00000006").rename(t.root / "step-00000006.superseded-0123456789abcdef")


@tree()
def run_without_steps(t):
    t.write("latest", "step-00000006\n")


@tree("best")
def step_of_another_name(t):
    t.put("run/step-00000004", "best")


@tree("link")
def link_to_a_run(t):
    t.put("run", "there")
    (t.root / "link").symlink_to("there")


@tree()
def directory_of_a_run(t):
    t.put("run", "a")


@tree()
def directory_of_two_runs(t):
    t.put("run", "a")
    t.put("run", "b")


@tree("old", "run_whose_step_is_held")
@tree("new")
def virtual_run(t):
    t.put("run", "old")
    t.cairn("reshape", "old@4", "new", "--virtual", "--tp", 2)


@tree()
def run_that_went_back(t):
    t.put("run")
    subprocess.run([MAKE_STEP, t.root, "--step", "5", *SMALL], check=True)


@tree()
def run_with_a_release_in_it(t):
    t.put("run")
    t.put("hf")


def iteration_of_cairn_megatron(t, number):
    t.put("run/step-00000004", f"iter_000000{number}/step-00000004")
    t.write(f"iter_000000{number}/metadata.json", json.dumps({"sharded_backend": "cairn", "sharded_backend_version": 1}))
    t.write("latest_checkpointed_iteration.txt", str(number))


@tree()
def run_of_cairn_megatron(t):
    for number in (2, 4):
        iteration_of_cairn_megatron(t, number)


@tree("iter_0000004")
def iteration_of_cairn_in_megatron(t):
    iteration_of_cairn_megatron(t, 4)


def local_steps(t, at):
    """Of a training on one node: its shard, whole."""
    t.put("run", at)
    t.write(f"{at}/OWNER", json.dumps({"run": "0" * 32, "run_directory": "/run", "inode": 1, "born_unix_nanoseconds": 1, "host": "n1"}))


@tree("step-00000004", "local_step_of_a_node")
@tree()
def local_steps_of_a_node(t):
    local_steps(t, ".")


@tree()
def local_steps_of_a_node_with_a_lost_shard(t):
    local_steps(t, ".")
    (t.root / "step-00000006/shard-00000.h5").unlink()


@tree()
def directory_of_local_steps(t):
    local_steps(t, "0" * 32)


# Runs of the Trainer


def trainer(t, last=True):
    for number in (2, 4):
        t.put("hf", f"checkpoint-{number}")
        if number == 2 or last:
            t.write(f"checkpoint-{number}/trainer_state.json", json.dumps({"global_step": number}))


@tree("../tree@2", "trainer_run_at_a_number")
@tree("checkpoint-4", "trainer_step")
@tree()
def trainer_run(t):
    trainer(t)


@tree("checkpoint-4", "trainer_step_that_is_being_written")
@tree()
def trainer_run_that_is_writing(t):
    trainer(t, last=False)


@tree()
def trainer_run_with_a_sealed_step(t):
    trainer(t)
    t.last.append(lambda: t.cairn("seal", "checkpoint-4", "--settle", 0))


@tree()
def trainer_run_that_changed_since_it_was_sealed(t):
    trainer_run_with_a_sealed_step(t)
    t.last.append(lambda: t.write("checkpoint-4/trainer_state.json", "{}"))


@tree()
def trainer_run_with_a_release_in_it(t):
    trainer(t)
    t.put("hf")


@tree()
def trainer_run_that_has_ended(t):
    trainer_run_with_a_release_in_it(t)
    t.write("trainer_state.json", "{}")  # transformers' save_state(), as run_clm and LLaMA-Factory call it


@tree()
def trainer_run_with_deepspeed_that_has_ended(t):
    deepspeed_in_a_trainer_run(t)
    t.put("hf")
    t.write("trainer_state.json", "{}")


@tree()
def directory_of_one_trainer_run(t):
    trainer(Maker(t.parts, t.root / "v0-20261201-014349"))  # as ms-swift makes it


@tree()
def directory_of_trainer_runs(t):
    for name in ("a", "b"):
        trainer(Maker(t.parts, t.root / name))


# Runs with a tracker


def numbered(t, part, name, at, tracker, says):
    for number in (2, 4):
        t.put(part, at.format(number))
    if says is not None:
        t.write(tracker, says)


def megatron(t, says):
    numbered(t, "megatron/iter_0000004", "", "iter_000000{}", "latest_checkpointed_iteration.txt", says)


@tree()
def megatron_run(t):
    megatron(t, "4")


@tree()
def megatron_run_that_is_writing(t):
    megatron(t, "2")


@tree()
def megatron_run_whose_tracker_lies(t):
    megatron(t, "8")


@tree()
def megatron_run_whose_tracker_is_garbage(t):
    megatron(t, "\x00\x01")


@tree()
def megatron_run_without_tracker(t):
    megatron(t, None)


@tree("iter_0000002")
def megatron_iteration(t):
    megatron(t, "4")


@tree("iter_0000004")
def megatron_iteration_that_is_being_written(t):
    megatron(t, "2")


@tree()
def torch_dist_run(t):
    numbered(t, "torch_dist/iter_0000004", "", "iter_000000{}", "latest_checkpointed_iteration.txt", "4")


@tree()
def torch_dist_run_that_is_writing(t):
    torch_dist_run(t)
    (t.root / "iter_0000004/.metadata").unlink()


def deepspeed(t, says):
    numbered(t, "deepspeed/global_step4", "", "global_step{}", "latest", says)


@tree()
def deepspeed_run(t):
    deepspeed(t, "global_step4")


@tree()
def deepspeed_run_that_is_writing(t):
    deepspeed(t, "global_step2")


@tree()
def deepspeed_run_whose_latest_lies(t):
    deepspeed(t, "global_step8")


@tree()
def deepspeed_run_without_latest(t):
    deepspeed(t, None)


@tree("global_step4")
def deepspeed_step(t):
    deepspeed(t, "global_step4")


@tree()
def deepspeed_in_a_trainer_run(t):
    for number in (2, 4):
        step = Maker(t.parts, t.root / f"checkpoint-{number}")
        step.put("deepspeed/global_step4", f"global_step{number}")
        step.write("latest", f"global_step{number}")
        step.write("trainer_state.json", "{}")


@tree()
def universal(t):
    t.put("universal")


# torch.distributed.checkpoint and programs that use it


@tree()
def dcp_run(t):
    for number in (2, 4):
        t.put("dcp/step-4", f"step-{number}")


@tree("step-4", "dcp_step_that_is_being_written")
@tree()
def dcp_run_that_is_writing(t):
    dcp_run(t)
    (t.root / "step-4/.metadata").unlink()


@tree()
def dcp_run_with_a_checkpoint_beside_its_steps(t):
    dcp_run(t)
    t.put("dcp/step-4")


@tree()
def dcp(t):
    t.put("dcp/step-4")


@tree()
def dcp_in_a_directory(t):
    t.put("dcp/step-4", "model")


@tree()
def lightning_run(t):
    for number in (2, 4):
        t.put("dcp/step-4", f"epoch=0-step={number}.ckpt")


# The kind: a step is a file, and the directory of several passed for one step.


def files(t, last, *names):
    for name in names:
        t.put(TORCH_FILE, name)
    (t.root / last).symlink_to(pathlib.Path(names[-1]).name)


@tree("last.ckpt", "lightning_link_to_a_file")
@tree("../tree@2", "lightning_file_at_a_number")
@tree()
def lightning_run_of_files(t):
    files(t, "last.ckpt", "epoch=0-step=2.ckpt", "epoch=0-step=10-v1.ckpt")


@tree()
def directory_of_a_lightning_run_of_files(t):
    files(t, "checkpoints/last.ckpt", "checkpoints/epoch=0-step=2.ckpt", "checkpoints/epoch=0-step=10.ckpt")


@tree()
def composer_run_of_files(t):
    files(t, "latest-rank0.pt", "ep0-ba2-rank0.pt", "ep1-ba10-rank0.pt")


@tree()
def files_of_unknown_names(t):
    files(t, "best.pt", "model_a.pt", "model_b.pt")


@tree()
def torchtune_run(t):
    for epoch in range(2):
        t.put("hf", f"epoch_{epoch}")


@tree()
def prime_rl_run(t):
    for number in (2, 4):
        t.put("dcp/step-4", f"step_{number}/trainer")
        t.put("hf", f"step_{number}/weight")


@tree()
def automodel_run(t):
    for number in (2, 4):
        t.put("hf", f"epoch_0_step_{number}/model/consolidated")
        t.put("dcp/step-4", f"epoch_0_step_{number}/optim")
    (t.root / "LATEST").symlink_to("epoch_0_step_4")


# The kind: a step has more than the one checkpoint that is found in it, and that one passed for the whole.


@tree()
def automodel_run_of_shards(t):
    for number in (2, 4):
        t.put("hf/model.safetensors", f"epoch_0_step_{number}/model/shard-00001-model-00001-of-00001.safetensors")
        t.put("dcp/step-4", f"epoch_0_step_{number}/optim")


@tree()
def automodel_run_that_is_writing(t):
    automodel_run(t)
    t.write("epoch_0_step_4/.incomplete", "")


@tree()
def automodel_run_of_a_damaged_optimizer(t):
    automodel_run(t)
    next((t.root / "epoch_0_step_4/optim").glob("*.distcp")).unlink()


@tree()
def nemo_rl_run(t):
    for number in (2, 4):
        t.put("dcp/step-4", f"step_{number}/policy/weights")


@tree()
def nemo_rl_run_of_safetensors(t):
    for number in (2, 4):
        t.put("hf", f"step_{number}/policy/weights/model/consolidated")
        t.put("dcp/step-4", f"step_{number}/policy/optimizer/optim")


@tree()
def verl_run_of_fsdp(t):
    for rank in range(2):
        t.put(TORCH_FILE, f"global_step_4/actor/model_world_size_2_rank_{rank}.pt")
    t.put(TORCH_FILE, "global_step_4/data.pt")
    t.write("latest_checkpointed_iteration.txt", "4")


@tree()
def skyrl_run(t):
    for number in (2, 4, 6):
        for rank in range(2):
            t.put(TORCH_FILE, f"global_step_{number}/policy/model_world_size_2_rank_{rank}.pt")
        t.put(TORCH_FILE, f"global_step_{number}/trainer_state.pt")
    t.write("latest_ckpt_global_step.txt", "4")


@tree()
def verl_run(t):
    for number in (2, 4):
        t.put("torch_dist/iter_0000004", f"global_step_{number}/actor/dist_ckpt")
    t.write("latest_checkpointed_iteration.txt", "4")


@tree()
def swift_run(t):
    for number in (2, 4):
        t.put("torch_dist/iter_0000004", f"checkpoint-{number}/iter_000000{number}")
        t.write(f"checkpoint-{number}/latest_checkpointed_iteration.txt", str(number))


@tree()
def run_of_unknown_names(t):
    for name in ("ckpt_a", "ckpt_b"):
        t.put("dcp/step-4", name)


@tree()
def run_of_numbers(t):
    for number in (2, 4):
        t.put("dcp/step-4", str(number))


# Weights, and files


@tree()
def release(t):
    t.put("hf")


@tree("model.safetensors")
def file_of_safetensors(t):
    t.put("hf/model.safetensors", "model.safetensors")


@tree("model_optim_rng.pt")
def file_of_torch_save(t):
    t.put(TORCH_FILE, "model_optim_rng.pt")


@tree("models--a--b")
def hub_cache(t):
    t.put("hf", "models--a--b/snapshots/0123456789abcdef")
    t.write("models--a--b/.no_exist/0123456789abcdef/adapter_config.json", "")


@tree()
def two_releases(t):
    t.put("hf", "a")
    t.put("hf", "b")


@tree()
def two_trainings(t):
    megatron(t, "4")
    deepspeed(t, "global_step4")


@tree()
def run_of_cairn_with_a_step_of_the_trainer(t):
    t.put("run")
    t.put("hf", "checkpoint-8")
    t.write("checkpoint-8/trainer_state.json", "{}")


@tree("nothing", "missing")
@tree()
def empty(t):
    pass


@tree("notes.txt", "file_of_text")
@tree()
def notes(t):
    t.write("notes.txt", "notes")


@tree()
def gguf(t):
    t.write("model.gguf", "GGUF")


@tree("a")
def loop_of_links(t):
    (t.root / "a").symlink_to("b")
    (t.root / "b").symlink_to("a")


# An archive


def store(t):
    t.put("run", "gpt")
    trainer(Maker(t.parts, t.root / "hf"))
    t.cairn("archive", "run", "gpt", "hf", "--store", "store")


@tree("store:hf@4", "member_of_another_system")
@tree("store:gpt@9", "member_that_is_not_there")
@tree("store:gpt@4", "member")
@tree("store:gpt", "archived_run")
@tree("store")
def archive(t):
    store(t)


SMALL = ["--layers", "1", "--hidden", "16", "--heads", "2", "--vocab", "32"]
POLICY = 'store = "{}"\nruns = ["{}"]\n[[class]]\nkeep = "full"\nevery = 1\n'


class PlacesTest(CliTest, Table):
    answers = pathlib.Path(__file__).with_name("places.txt")

    def make_parts(self):
        parts = self.dir / "parts"
        for number in (2, 4, 6):
            subprocess.run([MAKE_STEP, parts / "run", "--step", str(number), *SMALL], check=True)
        for system, at in SYSTEMS.items():
            self.cairn("convert", parts / "run/step-00000004", parts / at, "--to", system)
        nested = parts / "deepspeed/global_step4"
        if not nested.exists():
            raise RuntimeError(sorted((parts / "deepspeed").iterdir()))
        return parts

    def ask(self, root, *args):
        """Exit status and the JSON of a verb."""
        done = subprocess.run([CAIRN, *map(str, args), "--json"], cwd=root, capture_output=True, text=True)
        try:
            facts = json.loads(done.stdout)
        except json.JSONDecodeError:
            facts = None
        return done.returncode, facts

    def answers_of(self, root, argument):
        """By verb: its exit status, if it is not 0, and the places that it takes for checkpoints."""

        def at(path):
            path = os.path.normpath(os.path.relpath(root / path, root)) if path else "?"
            path = re.sub(r"\.[0-9a-f]{8}\.tar$", ".tar", path)  # of times and sizes
            return re.sub(r"^\.\./tree/?", "", path) or "."

        def line(code, places):
            return " ".join([*([str(code)] if code else []), *places]) or "-"

        def rows(answer, text):
            code, facts = answer
            return line(code, [text(row) for row in facts] if isinstance(facts, list) else [])

        def listed(step):
            return f"{at(step['directory'])}:{step['state'].replace(' ', '-')}"

        def stored(row):
            if "error" in row:
                return f"{at(row.get('source', ''))}:error"
            return f"{row['run'].replace('tree', '.')}@{row['step']}" + (":passed-over" if row["passed_over"] else "")

        answers = {}
        code, facts = self.ask(root, "inspect", argument)
        answers["inspect"] = line(code, [at(facts.get("checkpoint") or facts["file"])] if code == 0 else [])
        for name, flags in {"verify": [], "verify --all": ["--all"]}.items():
            answers[name] = rows(self.ask(root, "verify", argument, *flags, "--no-record"), lambda row: at(row["checkpoint"]))
        code, facts = self.ask(root, "ls", argument)
        runs = facts if code == 0 else []
        beside = ["(and a checkpoint beside them)" for run in runs if "beside" in run]
        answers["ls"] = line(code, [listed(step) for run in runs for step in run["steps"]] + beside)
        answers["seal"] = rows(
            self.ask(root, "seal", argument, "--dry-run", "--settle", 0),
            lambda row: f"{at(row['checkpoint'])}:{row['state'].replace(' ', '-')}",
        )
        code, facts = self.ask(root, "seal", "--newest", argument)
        answers["newest"] = line(code, [at(facts["checkpoint"])] if code == 0 and facts else [])
        answers["archive"] = rows(
            self.ask(root, "archive", "run", argument, "--store", "st", "--dry-run"),
            stored,
        )
        (root / "policy.toml").write_text(POLICY.format(root / "st", root / argument))
        code, facts = self.ask(root, "archive", "plan", "policy.toml")
        entries = facts.get("entries", []) if facts else []
        answers["policy"] = line(code, sorted(at(entry.get("source", "")) for entry in entries))
        return answers

    def table(self):
        parts, lines = self.make_parts(), []
        then = time.time() - 3600
        for name, (make, argument) in TREES.items():
            root = self.dir / name / "tree"
            root.mkdir(parents=True)
            maker = Maker(parts, root)
            make(maker)
            for path in root.rglob("*"):
                os.utime(path, (then, then), follow_symlinks=False)
            for command in maker.last:
                command()
            lines.append(f"{name.replace('_', ' ')} ({argument})")
            lines += [f"  {verb:12} {answer}" for verb, answer in self.answers_of(root, argument).items()]
            shutil.rmtree(root)
        return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PlacesTest.main()
