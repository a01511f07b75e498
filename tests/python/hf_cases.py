"""What the ranks of test_hf.py run, CASE(rank, world, directory): the Trainer of transformers and accelerate itself under FSDP2, on gloo and the CPU.

accelerate shards only over GPUs: here its state says that ranks on CPUs are FSDP's, too. Nothing else of it is replaced.
"""

import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import unittest
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]

import accelerate.state  # noqa: E402
import accelerate.utils.fsdp_utils as fsdp_utils  # noqa: E402
import cairn.hf  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import torch.distributed.checkpoint.state_dict  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.utils import DeepSpeedPlugin, DistributedType, FullyShardedDataParallelPlugin, ProjectConfiguration  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

_init = accelerate.state.AcceleratorState.__init__


def _init_with_fsdp(self, *positional, fsdp_plugin=None, **named):
    _init(self, *positional, fsdp_plugin=fsdp_plugin, **named)
    if fsdp_plugin is not None:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        accelerate.state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP


accelerate.state.AcceleratorState.__init__ = _init_with_fsdp
ROWS = 97


def llama():
    """Its first layer does not learn."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=ROWS, **sizes))
    model.model.layers[0].requires_grad_(False)
    return model, "LlamaDecoderLayer"


def gpt2():
    """Its output layer is its embedding."""
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=ROWS, n_positions=32, bos_token_id=0, eos_token_id=0)), "GPT2Block"


def samples():
    return [{"input_ids": row, "labels": row} for row in torch.randint(0, ROWS, (64, 16), generator=torch.Generator().manual_seed(3))]


SETTINGS = {"max_steps": 6, "save_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 2, "seed": 5, "disable_tqdm": True, "report_to": []}


def join(rank, world, directory, name):
    """What torchrun would set; the group itself is made here."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="localhost", MASTER_PORT="1")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/store-{name}", rank=rank, world_size=world)


def job(rank, world, directory, name, model, resume=None, kind="SHARDED_STATE_DICT", callbacks=(), store="", **settings):
    """Trains, and returns the Trainer with its losses and weights. `name`: of the case, and its directory. kind: None for DDP."""
    join(rank, world, directory, store or name)
    writer = dcp.FileSystemWriter
    torch.manual_seed(0)
    made, layer = model()
    fsdp = {"fsdp": True, "fsdp_config": {"state_dict_type": kind, "transformer_layer_cls_to_wrap": [layer]}} if kind else {}
    arguments = TrainingArguments(f"{directory}/{name}", use_cpu=True, ddp_backend="gloo", **{**SETTINGS, **fsdp, **settings})
    training = Trainer(model=made, args=arguments, train_dataset=samples(), callbacks=list(callbacks))
    training.train(resume_from_checkpoint=resume)
    assert dcp.FileSystemWriter is writer, "torch.distributed.checkpoint is not as it was"
    losses = {str(entry["step"]): entry["loss"] for entry in training.state.log_history if "loss" in entry}
    weights = training.accelerator.get_state_dict(training.model_wrapped) if training.deepspeed else training.model.state_dict()
    return {"losses": losses, "model": ranks.digests(weights or {}), "optimizer": ranks.digests(_states(training))}


def _states(training):
    if training.deepspeed:
        states = training.deepspeed.optimizer.optimizer.state.values()
        return {f"{number}.{name}": value for number, state in enumerate(states) for name, value in state.items()}
    states = torch.distributed.checkpoint.state_dict.get_optimizer_state_dict(training.model, training.optimizer)["state"]
    return {f"{name}.{key}": value for name, state in states.items() for key, value in state.items()}


def keep(directory, name, rank, found):
    pathlib.Path(directory, f"{name}-result-{rank}.json").write_text(json.dumps(found))


def kept(directory, name, rank):
    return json.loads(pathlib.Path(directory, f"{name}-result-{rank}.json").read_text())


def whole(rank, world, directory):
    """LLaMA with a frozen layer: six steps without a break."""
    cairn.enable("hf")
    cairn.enable("hf")  # repeated
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        cairn.hf.patch()  # the old name
    assert "cairn.hf.patch is now cairn.enable('hf')" in str(warned[-1].message), warned
    try:
        cairn.enable("jax")
    except ValueError as error:
        assert "hf, megatron" in str(error), error
    found = job(rank, world, directory, "whole", llama)
    assert list(found["losses"]) == list("123456") and not any(".layers.0." in name for name in found["optimizer"])
    keep(directory, "whole", rank, found)


def again(rank, world, directory):
    """From its step 4, in new processes: losses, weights and moments."""
    cairn.enable("hf")
    found = job(rank, world, directory, "again", llama, f"{directory}/whole/checkpoint-4")
    assert found == kept(directory, "whole", rank), (found["losses"], kept(directory, "whole", rank)["losses"])


def wider(rank, world, directory):
    """A save of two ranks, loaded by four: no step is left to train, so the weights are the loaded ones."""
    cairn.enable("hf")
    found = job(rank, world, directory, "wider", llama, f"{directory}/whole/checkpoint-6", learning_rate=0.0)
    expected = kept(directory, "whole", 0)
    assert found["model"] == expected["model"]


def tied(rank, world, directory):
    """GPT-2, whose output layer is its embedding; with all features of the callback, and a failure."""
    cairn.enable("hf")
    good = cairn.hf.CairnCallback(archive=f"{directory}/store", weights=f"{directory}/weights", dtype="fp32")
    bad = cairn.hf.CairnCallback(seal=False, weights="/proc/nowhere")
    found = job(rank, world, directory, "tied", gpt2, callbacks=[good, bad], save_total_limit=2, max_steps=4)
    good.wait()
    if rank == 0:
        loaded = GPT2LMHeadModel.from_pretrained(f"{directory}/weights/checkpoint-4")
        assert ranks.digests(loaded.state_dict()) == found["model"]
        assert len(bad.failures) == 2 and "checkpoint-4: cairn strip: " in bad.failures[1], bad.failures
        ranks.refused(cairn.CairnError, "nowhere", bad.wait)


def by_deepspeed(stage):
    """Settings of the Trainer."""
    os.environ.update(DS_ACCELERATOR="cpu", CROSS_SIZE="1", LOCAL_SIZE="1", CROSS_RANK="0")
    optimizer = {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True}
    parts = {"zero_optimization": zero, "optimizer": optimizer, "train_micro_batch_size_per_gpu": "auto"}
    return {"deepspeed": {**parts, "bf16": {"enabled": True}}, "bf16": True}


def without_fsdp(rank, world, directory, name):
    """A Trainer under DDP or DeepSpeed, without cairn.enable: its own checkpoints are sealed, archived and published."""
    settings = {**SETTINGS, "max_steps": 4, "use_cpu": True}
    if name == "zero3":
        settings |= by_deepspeed(3)
    if name != "alone":
        join(rank, world, directory, name)
        settings["ddp_backend"] = "gloo"
    torch.manual_seed(0)
    callback = cairn.hf.CairnCallback(archive=f"{directory}/store-of-{name}", weights=f"{directory}/weights-of-{name}", dtype="fp32")
    training = Trainer(model=gpt2()[0], args=TrainingArguments(f"{directory}/{name}", **settings), train_dataset=samples(), callbacks=[callback])
    training.train()
    callback.wait()
    weights = training.accelerator.get_state_dict(training.model_wrapped)
    if rank == 0:
        published = load_file(f"{directory}/weights-of-{name}/checkpoint-4/model.safetensors")
        if name == "zero3":  # from the fp32 masters
            published = {key: value.bfloat16() for key, value in published.items()}
        assert len(published) >= 28 and ranks.digests(published).items() <= ranks.digests(weights).items(), published.keys() ^ weights.keys()
        assert len(os.listdir(f"{directory}/weights-of-{name}")) == 2
    if name == "alone":
        made_up(directory, settings)


def made_up(directory, settings):
    """The kind: something is written after it has its final name, or never, because the job was killed. Nothing is
    written into a release that is published; what a kill left out is made at the next start, and said."""
    checkpoint, release = pathlib.Path(directory, "alone/checkpoint-4"), pathlib.Path(directory, "weights-of-alone/checkpoint-4")
    assert " config.json" in (release / "SHA256SUMS").read_text()
    cairn.run(["verify", release], capture=True)
    shutil.rmtree(release)
    (checkpoint / ".cairn-seal.json").unlink()
    unfinished = pathlib.Path(directory, "alone/checkpoint-3")  # its trainer_state.json is missing
    unfinished.mkdir()
    with unittest.TestCase().assertLogs("cairn.hf", "WARNING") as said:
        callback = cairn.hf.CairnCallback(archive=f"{directory}/store-of-alone", weights=release.parent, dtype="fp32")
        arguments = TrainingArguments(f"{directory}/alone", **settings)
        Trainer(model=gpt2()[0], args=arguments, train_dataset=samples(), callbacks=[callback]).train(resume_from_checkpoint=str(checkpoint))
        callback.wait()
    assert len(said.output) == 1 and said.output[0].endswith("checkpoint-4: made up for now, as the training had ended: seal, strip"), said.output
    assert (release / "config.json").is_file() and (checkpoint / ".cairn-seal.json").is_file() and not any(unfinished.iterdir())

    class Config:  # its disk is full
        def save_pretrained(self, place):
            pathlib.Path(place, "config.json").write_text("{")
            raise OSError("No space left on device")

    shutil.rmtree(release)
    callback._finish(checkpoint, Config())
    assert not release.exists() and "cairn strip: No space left" in callback.failures[0], callback.failures


def other_format(rank, world, directory):
    """State that accelerate saves by torch.save: it still does, with a warning."""
    cairn.enable("hf")
    with unittest.TestCase().assertLogs("cairn.hf", "WARNING") as said:
        job(rank, world, directory, "full", gpt2, kind="FULL_STATE_DICT", max_steps=2)
    assert "FULL_STATE_DICT; set SHARDED_STATE_DICT" in said.output[0], said.output
    assert os.path.isfile(f"{directory}/full/checkpoint-2/pytorch_model_fsdp.bin")


def fsdp_plugin(version, layer, **settings):
    kind = {"state_dict_type": "SHARDED_STATE_DICT", "auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": [layer]}
    return FullyShardedDataParallelPlugin(fsdp_version=version, **kind, **settings)


def accelerated(version, model, **settings):
    """accelerate by itself: its Accelerator, the prepared model, and a function that trains it on samples from number `begin` on, four at a time."""
    torch.manual_seed(0)
    made, layer = model()
    accelerator = Accelerator(cpu=True, fsdp_plugin=fsdp_plugin(version, layer, **settings))
    if version == 1:  # compares it with "cpu"; accelerate says "cpu:0"
        accelerate.state.PartialState._shared_state["device"] = accelerate.state.AcceleratorState._shared_state["device"] = torch.device("cpu")
        model = accelerator.prepare(made)
        optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=1e-2))
    else:
        model, optimizer = accelerator.prepare(made, torch.optim.AdamW(made.parameters(), lr=1e-3))

    def train(begin, end):
        losses = []
        for at in range(begin, end, 4):
            batch = torch.stack([sample["input_ids"] for sample in samples()[at : at + 4]])
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, ranks.digests(model.state_dict())

    return accelerator, model, train


def fsdp1(rank, world, directory):
    """Its shards are ShardedTensors. Once more in new processes: from the save."""
    again = os.path.isdir(f"{directory}/fsdp1_3")
    join(rank, world, directory, f"fsdp1-{again}")
    cairn.enable("hf")
    accelerator, _, train = accelerated(1, llama, use_orig_params=True)
    if again:
        accelerator.load_state(f"{directory}/fsdp1_3")
        assert list(train(12, 24)) == kept(directory, "fsdp1", rank)  # without the moments it is not; so accelerate resumes with DCP
        return
    train(0, 12)
    accelerator.save_state(f"{directory}/fsdp1_3")
    assert os.path.isdir(f"{directory}/fsdp1_3/optimizer_0/step-00000003")
    keep(directory, "fsdp1", rank, train(12, 24))


def loop(rank, world, directory):
    """accelerate by itself: save_state, two steps, load_state, the same two steps; and what DCP wrote before."""
    join(rank, world, directory, "loop")
    cairn.enable("hf")
    accelerator, model, train = accelerated(2, gpt2)
    before = train(0, 8)[1]
    accelerator.save_state(f"{directory}/state_2")
    assert os.path.isdir(f"{directory}/state_2/optimizer_0/step-00000002")
    first = train(8, 16)
    with unittest.TestCase().assertNoLogs("cairn.hf"):
        accelerator.load_state(f"{directory}/state_2")
    assert ranks.digests(model.state_dict()) == before
    less = dict(itertools.islice(model.state_dict().items(), 3))
    with unittest.TestCase().assertLogs("cairn.hf") as logged:  # a checkpoint of a larger model
        cairn.hf._load({"model": less}, f"{directory}/state_2/pytorch_model_fsdp_0", None)
    assert re.search(r"pytorch_model_fsdp_0: not loaded, .*: model\.\w+\..* and \d+ more$", logged.output[0]), logged.output
    assert train(8, 16) == first
    cairn.hf.unpatch()
    cairn.hf.unpatch()
    accelerator.save_state(f"{directory}/dcp_3")
    assert os.path.isfile(f"{directory}/dcp_3/pytorch_model_fsdp_0/.metadata")
    cairn.enable("hf")
    train(0, 4)
    accelerator.load_state(f"{directory}/dcp_3")
    assert ranks.digests(model.state_dict()) == first[1]


def refuses(rank, world, directory):
    """An accelerate that saves differently."""
    original = fsdp_utils.save_fsdp_optimizer
    fsdp_utils.save_fsdp_optimizer = lambda *arguments: None
    ranks.refused(ImportError, ["save_fsdp_optimizer", accelerate.__version__], cairn.enable, "hf")
    fsdp_utils.save_fsdp_optimizer = original
    hybrid = FullyShardedDataParallelPlugin(fsdp_version=1, reshard_after_forward="HYBRID_SHARD", state_dict_type="SHARDED_STATE_DICT")
    assert "which ranks hold the same" in cairn.hf._other_format({"fsdp_plugin": hybrid})
    assert cairn.hf.step_of("/a/run-3/checkpoint-500/optimizer_0") == 500
    assert cairn.hf.step_of("/a/checkpoint_12/pytorch_model_fsdp_0") == 12
    assert cairn.hf.step_of("/a/best/optimizer_0") == 0


def guide(rank, world, directory, steps):
    """docs/guide/save-from-hf-trainer.md, with a model of seconds and on the CPU."""
    join(rank, world, directory, f"guide-{steps}")
    torch.manual_seed(0)
    (model, layer), made = gpt2(), TrainingArguments.__init__
    small = {**SETTINGS, "use_cpu": True, "ddp_backend": "gloo", "max_steps": steps}
    TrainingArguments.__init__ = lambda self, *positional, **named: made(self, *positional, **{**small, **named})
    ranks.run_guide("save-from-hf-trainer.md", {"model": model, "layer": layer, "dataset": samples()}, directory)
    torch.distributed.barrier()
    if rank == 0:
        GPT2LMHeadModel.from_pretrained(f"{directory}/release/checkpoint-{steps}")
        saved = [name for name in os.listdir(f"{directory}/run/checkpoint-2/optimizer_0") if "step" in name]
        assert saved == ["step-00000002"], saved  # once: the second process has resumed behind it


class Counter:
    """An object that accelerate saves in a file."""

    steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def by_accelerate(rank, world, directory, job, name, how, until, at=None, killed_at=None, local=True, loads=None):
    """accelerate names the checkpoints: one after each iteration. at: the one that must be loaded; killed_at: all die after its save."""
    join(rank, world, directory, f"by-accelerate-{job}")
    cairn.enable("hf", **(ranks.local_of(directory, name) if local else {}))
    torch.manual_seed(0)
    made, layer = gpt2()
    place = pathlib.Path(directory, name, "project")
    project = ProjectConfiguration(place, automatic_checkpoint_naming=True, total_limit=2)
    plugin = {"fsdp": {"fsdp_plugin": fsdp_plugin(2, layer)}}.get(how, {})
    if how == "zero2":
        config = {**by_deepspeed(2)["deepspeed"], "train_micro_batch_size_per_gpu": 1}
        del config["optimizer"]
        plugin = {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config={**config, "zero_allow_untested_optimizer": True})}
    accelerator = Accelerator(cpu=True, project_config=project, **plugin)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(made, optimizer)
    schedule = accelerator.prepare(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    torch.manual_seed(rank)  # for dropout
    if at is not None:
        accelerator.load_state(loads and place / "checkpoints" / loads)
        assert counter.steps == at, (counter.steps, at)
        project.iteration = at
    seen = {}
    while counter.steps < until:
        counter.steps += 1
        batch = samples()[counter.steps * world + rank]["input_ids"][None]
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        seen[counter.steps] = [loss.item(), ranks.digests(model.state_dict())]
        accelerator.save_state()
        if counter.steps == killed_at:
            ranks.remember(directory, name, rank, seen)
            torch.distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    ranks.remember(directory, name, rank, seen)


class Killed(TrainerCallback):
    """The training begins at step `at`; all ranks die after the save of step `killed_at`."""

    def __init__(self, at, killed_at):
        self.at, self.killed_at, self.losses = at, killed_at, {}

    def on_train_begin(self, args, state, control, **others):
        assert state.global_step == self.at, (state.global_step, self.at)

    def on_save(self, args, state, control, **others):
        self.losses = {entry["step"]: entry["loss"] for entry in state.log_history if "loss" in entry}
        if state.global_step == self.killed_at:
            ranks.remember(*self.place, self.losses)
            torch.distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def by_trainer(rank, world, directory, jobs, name, how, at=0, killed_at=None, local=True, resume=None):
    """The Trainer, with a save after each of its six steps, and dropout."""
    cairn.enable("hf", **(ranks.local_of(directory, name) if local else {}))
    sealing, killed = cairn.hf.CairnCallback(), Killed(at, killed_at)
    killed.place = directory, name, rank
    kind = {"fsdp": "SHARDED_STATE_DICT", "full": "FULL_STATE_DICT"}.get(how)
    limit = 2 if local else None  # with one in each step, a checkpoint may be removed while it is sealed
    settings = {"save_steps": 1, "save_total_limit": limit, "store": f"by-trainer-{jobs}"}
    if "zero" in how:
        settings |= by_deepspeed(int(how[-1]))
    found = job(rank, world, directory, f"{name}/project", gpt2, resume, kind, [sealing, killed], **settings)
    ranks.remember(directory, name, rank, {**killed.losses, "model": found["model"], "optimizer": found["optimizer"]})
    sealing.wait()

