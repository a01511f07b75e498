"""What the ranks of test_titan.py's jobs run: torchtitan's own Trainer, on gloo and the CPU, with its own small models.

torchtitan wants a GPU, so torch says here that the CPU is one, and has what torch.cuda tells of a device. FlexAttention has no backward
pass on a CPU: the models have torchtitan's other attention. Nothing else of torchtitan is replaced.
"""

import hashlib
import json
import os
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [os.environ["CAIRN_TITAN"], str(ROOT / "python")]  # the torch that torchtitan needs comes first

import torch  # noqa: E402
import torch._utils  # noqa: E402

torch._utils._get_available_device_type = lambda: "cpu"
_DEVICE = {"get_device_name": "CPU", "current_device": 0, "memory_stats": {}, "reset_peak_memory_stats": None, "empty_cache": None}
for _name, _value in {**_DEVICE, "get_device_properties": types.SimpleNamespace(total_memory=1 << 34)}.items():
    setattr(torch.cpu, _name, lambda *_, value=_value: value)

import cairn.titan  # noqa: E402
import datasets  # noqa: E402
import torchtitan.trainer  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.hf_datasets import DatasetConfig, text_datasets  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.models.qwen3.config_registry import qwen3_debugmodel  # noqa: E402

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


def from_page(directory):
    """As docs/guide/save-from-torchtitan.md says."""
    namespace = {}
    exec((pathlib.Path(directory) / "page.py").read_text(), namespace)
    return small(namespace["my_llama"](), directory)


MANAGERS = {"cairn": cairn.titan.CheckpointManager, "dcp": CheckpointManager}


def digests(state):
    """SHA-256 of every whole tensor and every other value, by name."""
    found = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            whole = (value.full_tensor() if isinstance(value, DTensor) else value).detach().contiguous()
            value = whole.reshape(-1).view(torch.uint8).numpy().tobytes()
        found[name] = hashlib.sha256(value if isinstance(value, bytes) else repr(value).encode()).hexdigest()
    return found


def run(rank, world, port, directory, job):
    """job: model, manager, checkpoint (settings), parallelism (settings), steps; train: False only loads. Leaves result-RANK.json."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="localhost", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    config = globals()[job["model"]](directory)
    if "manager" in job:
        settings = {"enable": True, "interval": 2, "last_save_model_only": False, **job.get("checkpoint", {})}
        config.checkpoint = MANAGERS[job["manager"]].Config(**settings)
    config.training.steps = job.get("steps", 6)
    for name, value in job.get("parallelism", {}).items():
        setattr(config.parallelism, name, value)
    trainer, result = config.build(), {}
    for module in (module for part in trainer.model_parts for module in part.modules()):
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    losses = {}
    trainer.metrics_processor.log = lambda step, average, *_, **__: losses.__setitem__(step, average)
    try:
        if job.get("train", True):
            trainer.train()
        else:
            trainer.checkpointer.load(config.checkpoint.load_step)
        result = {
            "losses": losses,
            "step": trainer.step,
            "model": {name: digest for part in trainer.model_parts for name, digest in digests(part.state_dict()).items()},
            "optimizer": digests(trainer.optimizers.state_dict()),
            "trainable": [name for part in trainer.model_parts for name, tensor in part.named_parameters() if tensor.requires_grad],
        }
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    trainer.close()
    pathlib.Path(directory, f"result-{rank}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()
