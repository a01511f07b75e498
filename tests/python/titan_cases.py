"""What the ranks of test_titan.py run, CASE(rank, world, directory): torchtitan's own Trainer, on gloo and the CPU, with its own small models.

torchtitan wants a GPU, so torch says here that the CPU is one, and has what torch.cuda tells of a device. FlexAttention has no backward
pass on a CPU: the models have torchtitan's other attention. Nothing else of torchtitan is replaced.
"""

import json
import os
import pathlib
import shutil
import signal
import sys
import time
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [os.environ["CAIRN_TITAN"], str(ROOT / "python"), str(ROOT / "tests/python")]  # the torch that torchtitan needs comes first

import torch  # noqa: E402
import torch._utils  # noqa: E402

torch._utils._get_available_device_type = lambda: "cpu"
_DEVICE = {"get_device_name": "CPU", "current_device": 0, "memory_stats": {}, "reset_peak_memory_stats": None, "empty_cache": None}
for _name, _value in {**_DEVICE, "get_device_properties": types.SimpleNamespace(total_memory=1 << 34)}.items():
    setattr(torch.cpu, _name, lambda *_, value=_value: value)

import cairn.titan  # noqa: E402
import datasets  # noqa: E402
import ranks  # noqa: E402
import torchtitan.trainer  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.hf_datasets import DatasetConfig, text_datasets  # noqa: E402
from torchtitan.models.common.attention import FusedQKVLinear, ScaledDotProductAttention  # noqa: E402
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.models.qwen3.config_registry import qwen3_debugmodel, qwen3_debugmodel_non_fused_qkv, qwen3_moe_debug  # noqa: E402

EXPERTS = 4
_TEXTS = [f"{number} is {number * number} less than {number**3}" for number in range(400)]
text_datasets.DATASETS["counting"] = DatasetConfig("", lambda path: datasets.Dataset.from_dict({"text": _TEXTS}), lambda sample: sample["text"])
torchtitan.trainer.time = types.SimpleNamespace(**{**vars(torchtitan.trainer.time), "sleep": lambda seconds: None})  # at the end of a training


def small(config, directory):
    """The configuration of a training of seconds, from one of torchtitan's."""
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    del config.model_spec.model.layers[2:]
    config.dump_folder, config.hf_assets_path = directory, tokenizer(directory)
    config.dataloader.dataset = "counting"
    for name, value in {"seq_len": 32, "local_batch_size": 2, "steps": 6, "disable_cuda_graphs": True, "mixed_precision_param": "float32"}.items():
        setattr(config.training, name, value)
    config.parallelism.pipeline_parallel_schedule = "1F1B"
    config.parallelism.spmd_backend = "partial_dtensor"
    config.debug.seed, config.debug.enable_structured_logging = 1, False
    return config


def tokenizer(directory):
    """One token for each letter."""
    folder = pathlib.Path(directory, f"tokenizer-{os.environ['RANK']}")
    folder.mkdir(parents=True, exist_ok=True)
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    Tokenizer(models.BPE({word: number for number, word in enumerate(special + [chr(code) for code in range(32, 127)])}, [])).save(
        str(folder / "tokenizer.json")
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": special[0], "eos_token": special[1]}))
    return str(folder)


def freeze(config):
    """The first layer does not learn."""
    parallelize = config.model_spec.parallelize_fn

    def frozen(model, **others):
        model.layers["0"].requires_grad_(False)
        return parallelize(model, **others)

    config.model_spec.parallelize_fn = frozen
    return config


def tied(directory):
    """Qwen 3, whose output layer is its embedding, with a frozen layer."""
    return freeze(small(qwen3_debugmodel(), directory))


def llama(directory):
    return small(llama3_debugmodel(), directory)


def few_experts(moe):
    for part in (moe, moe.routed_experts.inner_experts, moe.routed_experts.token_dispatcher, moe.router):
        part.num_experts = EXPERTS
    moe.router.gate.out_features, moe.routed_experts.inner_experts.hidden_dim = EXPERTS, 32


def mixture(directory):
    """DeepSeek-V3 with four experts in its second layer."""
    config = small(deepseek_v3_debugmodel(), directory)
    few_experts(config.model_spec.model.layers[1].moe)
    return config


def qwen(directory, fused):
    """Qwen 3: a mixture, of which query, key and value are one parameter; or dense and tied, in which they are three."""
    config = small(qwen3_moe_debug() if fused else qwen3_debugmodel_non_fused_qkv(), directory)
    for layer in config.model_spec.model.layers if fused else ():
        few_experts(layer.moe)
        layer.moe.router.top_k = layer.moe.routed_experts.token_dispatcher.top_k = 2
    return config


def environment(rank, world, directory, name):
    """What torchrun would set."""
    port = ranks.free_port(rank, f"{directory}/{name}.port")
    settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in settings.items()})
    torch.set_num_threads(1)


def result(directory, name, rank):
    return json.loads(pathlib.Path(directory, f"{name}-result-{rank}.json").read_text())


class Job:
    """One Trainer in its own process. `name`: of the case. folder: its dump folder, in `directory`."""

    def __init__(self, rank, world, directory, name, model=llama, folder=None, config=None, parallelism=(), **checkpoint):
        environment(rank, world, directory, name)
        self.place = pathlib.Path(directory, f"{name}-result-{rank}.json")
        dump = f"{directory}/{folder or name}"
        if config is None:
            config = model(dump)
            manager = checkpoint.pop("manager", cairn.titan.CheckpointManager)
            config.checkpoint = manager.Config(**{"enable": True, "interval": 2, "last_save_model_only": False, **checkpoint})
        for key, value in dict(parallelism).items():
            setattr(config.parallelism, key, value)
        self.trainer, self.losses = config.build(), {}
        for module in (module for part in self.trainer.model_parts for module in part.modules()):
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no other
        self.trainer.metrics_processor.log = lambda step, average, *_, **__: self.losses.__setitem__(str(step), average)

    def load(self, step=-1):
        self.trainer.checkpointer.load(step)
        return self.end()

    def train(self):
        self.trainer.train()
        return self.end()

    def state(self):
        parts = self.trainer.model_parts
        return {
            "losses": self.losses,
            "step": self.trainer.step,
            "model": {name: digest for part in parts for name, digest in ranks.digests(part.state_dict()).items()},
            "optimizer": ranks.digests(self.trainer.optimizers.state_dict()),
        }

    def end(self):
        found = self.state()
        self.trainer.close()
        self.place.write_text(json.dumps(found))
        torch.distributed.destroy_process_group()
        return found


def same(found, expected, *parts):
    for part in parts:
        assert found[part] == expected[part], (part, found[part], expected[part])


def whole(rank, world, directory):
    """Tied embeddings, a frozen layer; six steps without a break, saved during the training."""
    job = Job(rank, world, directory, "whole", tied, async_mode="async_with_pinned_mem", keep_latest_k=0)
    learning = [name for part in job.trainer.model_parts for name, tensor in part.named_parameters() if tensor.requires_grad]
    assert learning and not any(name.startswith("layers.0.") for name in learning), learning
    assert list(job.train()["losses"]) == list("123456")


def again(rank, world, directory):
    """The same training in new processes, from its step 4."""
    if rank == 0:
        for step in ("step-00000002", "step-00000004"):
            shutil.copytree(f"{directory}/whole/checkpoint/{step}", f"{directory}/copying/checkpoint/{step}")
        shutil.copy(f"{directory}/whole/checkpoint/.run", f"{directory}/copying/checkpoint/.run")
        pathlib.Path(directory, "copying").rename(f"{directory}/again")
    found = Job(rank, world, directory, "again", tied, async_mode="async", keep_latest_k=2).train()
    expected = result(directory, "whole", rank)
    assert found["losses"] == {step: expected["losses"][step] for step in "56"}, (found["losses"], expected["losses"])
    same(found, expected, "model", "optimizer", "step")


def local(folder):
    """The newest steps on nodes of their own; each third save goes to the folder, too."""
    return {"interval": 1, "local": f"{folder}/node-{{rank}}", "every": 3, "redundancy": "xor:2"}


def local_killed(rank, world, directory):
    """All ranks die in the sixth iteration: steps 4 and 5 are only on the nodes."""
    job = Job(rank, world, directory, "local_killed", tied, folder="local", **local(directory))
    job.trainer.metrics_processor.log = lambda step, *_, **__: step < 6 or os.kill(os.getpid(), signal.SIGKILL)
    job.train()


def local_again(rank, world, directory):
    """The last iteration again, from the nodes, of which one was lost; its step goes to the folder."""
    job = Job(rank, world, directory, "local_again", tied, folder="local", **local(directory))
    found, expected = job.train(), result(directory, "whole", rank)
    assert found["losses"] == {"6": expected["losses"]["6"]}, (found["losses"], expected["losses"])
    same(found, expected, "model", "optimizer", "step")


def alone(rank, world, directory):
    """A save of two ranks, loaded by one."""
    found = Job(rank, world, directory, "alone", tied, "whole", exclude_from_loading=["dataloader"]).load()
    same(found, result(directory, "whole", 0), "model", "optimizer", "step")


def dcp_before(rank, world, directory):
    """With torchtitan's own manager, before the one line was changed."""
    Job(rank, world, directory, "dcp_before", folder="llama", manager=CheckpointManager, interval=4).train()


def dcp_after(rank, world, directory):
    """The training continues from a step of DCP's, and keeps its newest two steps, only of Cairn's."""
    if rank == 0:
        shutil.rmtree(f"{directory}/llama/checkpoint/step-6")
    time.sleep(1)
    job = Job(rank, world, directory, "dcp_after", folder="llama", interval=1, keep_latest_k=2)
    expected, found = result(directory, "dcp_before", rank), job.train()
    assert found["losses"] == {step: expected["losses"][step] for step in "56"}
    same(found, expected, "model", "optimizer")


def tensor_parallel(rank, world, directory):
    parallelism = {"tensor_parallel_degree": 2}
    found = Job(rank, world, directory, "tp", folder="llama", parallelism=parallelism, exclude_from_loading=["dataloader"]).load()
    same(found, result(directory, "dcp_before", 0), "model", "step")


def pipeline(rank, world, directory):
    """Each stage has its layers, and their states of the optimizer; then it saves, two stages' plain numbers included."""
    parallelism = {"pipeline_parallel_degree": 2}
    job = Job(rank, world, directory, "pp", folder="llama", parallelism=parallelism, exclude_from_loading=["dataloader"])
    job.trainer.checkpointer.load()
    expected, found = result(directory, "dcp_before", 0), job.state()
    for part in ("model", "optimizer"):
        assert found[part] and all(expected[part][name] == digest for name, digest in found[part].items()), part
    job.trainer.checkpointer.folder = f"{directory}/pp/checkpoint"
    job.trainer.checkpointer.save(8)
    job.end()


def after_pipeline(rank, world, directory):
    found = Job(rank, world, directory, "after_pp", folder="pp", exclude_from_loading=["dataloader"]).load()
    same(found, result(directory, "dcp_before", 0), "model", "optimizer")


def experts(rank, world, directory):
    """Experts along two ranks, and FSDP of each half over two; four steps without a break."""
    parallelism = {"expert_parallel_degree": 2}
    job = Job(rank, world, directory, "experts", mixture, parallelism=parallelism, keep_latest_k=0, async_mode="async")
    job.trainer.config.training.steps = 4
    found = job.train()
    assert {f"layers.1.moe.{name}" for name in ("routed_experts.inner_experts.w1_EFD", "expert_bias_E")} < found["model"].keys()


def experts_again(rank, world, directory):
    """From step 2, in new processes."""
    if rank == 0:
        shutil.copytree(f"{directory}/experts/checkpoint/step-00000002", f"{directory}/copied/checkpoint/step-00000002")
        pathlib.Path(directory, "copied").rename(f"{directory}/experts-again")
    parallelism = {"expert_parallel_degree": 2}
    while not pathlib.Path(directory, "experts-again").exists():
        time.sleep(0.01)
    job = Job(rank, world, directory, "experts-again", mixture, parallelism=parallelism)
    job.trainer.config.training.steps = 4
    same(job.train(), result(directory, "experts", rank), "model", "optimizer", "step")


def experts_elsewhere(rank, world, directory, degree):
    """A save of four ranks, on other ranks."""
    parallelism = {"expert_parallel_degree": degree}
    name = f"experts-{world}-{degree}"
    job = Job(rank, world, directory, name, mixture, "experts", parallelism=parallelism, exclude_from_loading=["dataloader"])
    same(job.load(), result(directory, "experts", 0), "model", "optimizer", "step")


def experts_release(rank, world, directory):
    """What torchtitan makes of it for Hugging Face, and a moment of the experts."""
    job = Job(rank, world, directory, "release", mixture, "experts", exclude_from_loading=["dataloader"])
    job.trainer.checkpointer.load()
    spec = job.trainer.config.model_spec
    model, optimizer = job.trainer.model_parts[0].state_dict(), job.trainer.optimizers.state_dict()
    whole = lambda tensor: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
    release = spec.state_dict_adapter(spec.model, None).to_hf({name: whole(tensor) for name, tensor in model.items()})
    moment = whole(optimizer["state.layers.1.moe.routed_experts.inner_experts.w1_EFD.exp_avg"])
    torch.save({"release": release, "moment": moment}, f"{directory}/release.pt")
    job.end()


def qwen_saved(rank, world, directory, fused):
    """Saved by torchtitan's own manager; with what it makes of the weights, and of the moments, for Hugging Face."""
    parallelism, model = {"expert_parallel_degree": 2 if fused else 1}, lambda directory: qwen(directory, fused)
    job = Job(rank, world, directory, f"qwen-{fused}", model, parallelism=parallelism, manager=CheckpointManager)
    job.trainer.config.training.steps = 2
    job.trainer.train()
    spec, part = job.trainer.config.model_spec, job.trainer.model_parts[0]
    whole = lambda tensor: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
    expected = {"weight": {name: whole(tensor) for name, tensor in part.state_dict().items()}}
    optimizer = {name: whole(tensor) for name, tensor in job.trainer.optimizers.state_dict().items() if name.endswith(("exp_avg", "exp_avg_sq"))}
    for role in ("exp_avg", "exp_avg_sq"):
        moments = {name[len("state.") : -len(role) - 1]: tensor for name, tensor in optimizer.items() if name.endswith("." + role)}
        for name, module in part.named_modules():
            if isinstance(module, FusedQKVLinear):
                own = name.replace("_checkpoint_wrapped_module.", "")
                module._split_qkv_on_save(module, moments, f"{own}.", {})  # as it does with weights
        expected[role] = moments
    adapter = spec.state_dict_adapter(spec.model, None)
    torch.save({role: adapter.to_hf(tensors) for role, tensors in expected.items()}, f"{directory}/qwen-{fused}.pt")
    job.end()


def model_alone(rank, world, directory):
    """The last step of a training that exports bfloat16, and a new training from it. torchtitan's errors would not explain what to do."""
    first = Job(rank, world, directory, "exported", last_save_model_only=True, export_dtype="bfloat16", interval=10)
    first.trainer.config.training.steps = 1
    first.train()
    job = Job(rank, world, directory, "more", folder="exported")
    ranks.refused(cairn.torch.LoadMismatch, ["holds only the model", "initial_load_path"], job.trainer.checkpointer.load)
    job.end()
    source = f"{directory}/exported/checkpoint/step-00000001"
    refused = Job(rank, world, directory, "refused", initial_load_path=source)
    ranks.refused(cairn.torch.LoadMismatch, "bfloat16", refused.trainer.checkpointer.load)
    refused.end()
    Job(rank, world, directory, "cast", initial_load_path=source, cast_on_load=True).load()


def guide(rank, world, directory):
    """docs/guide/save-from-torchtitan.md, and its training for some steps."""
    environment(rank, world, directory, "guide-environment")
    found = ranks.run_guide("save-from-torchtitan.md", {}, directory)
    config = small(found["my_llama"](), f"{directory}/guide")
    config.checkpoint.interval = 2
    assert list(Job(rank, world, directory, "guide", config=config).train()["losses"]) == list("123456")
