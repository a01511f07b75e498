"""Trainings whose ranks save their parts of DTensors, as verl, SkyRL and torch_checkpointing do, or torch itself in safetensors: DIR JSON,
see forked_ranks.

DIR/NAME has the files, and DIR/NAME.pt the whole tensors of weights and moments, as torch gathers them.
"""

import os
import pathlib
import shutil
import sys

import torch
import torch.distributed.checkpoint as dcp
from forked_ranks import run_jobs
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardedOptimStateDictConfig, ShardedStateDictConfig, StateDictType, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import cairn.torch as cairn_torch  # noqa: E402


class Odd(torch.nn.Module):
    """Rows that no number of ranks divides, fewer rows than ranks, a frozen weight, and a count that is not a parameter."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(5, width), torch.nn.Linear(width, 3, bias=False), torch.nn.LayerNorm(3)
        self.register_buffer("seen", torch.tensor(12))
        self.norm.weight.requires_grad_(False)

    def forward(self, x):
        return self.norm(self.down(self.up(x)))


def built(spec):
    torch.manual_seed(7)
    if not spec.get("qwen3"):
        return Odd(6 if "tp" in spec.get("mesh", ()) else 7)  # tensor parallelism must divide it
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=True))


def parallel(model, spec):
    """FSDP2 over the last dimension of the mesh but tensor parallelism's; FSDP1 if the spec says so."""
    if spec.get("fsdp1"):
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    mesh = init_device_mesh("cpu", tuple(spec["mesh"].values()), mesh_dim_names=tuple(spec["mesh"]))
    if "tp" in spec["mesh"]:
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        mesh = mesh["dp"]
    for part in [*model.children()] if not spec.get("qwen3") else model.model.layers:
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, optimizer, spec):
    for step in range(2):
        torch.manual_seed(step)
        if spec.get("qwen3"):
            tokens = torch.randint(0, 61, (2, 8))
            model(input_ids=tokens, labels=tokens).loss.backward()
        else:
            model(torch.randn(2, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def resume(model, optimizer, directory):
    """At any number of ranks, in place. The optimizer's states exist after a step that changes nothing."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate
    weights, states = model.state_dict(), optimizer.state_dict()
    loaded = cairn_torch.load({**weights, "optimizer": states}, directory, strict=False)
    assert all(name.startswith("optimizer.param_groups.") for name in loaded.missing_keys), loaded.missing_keys
    model.load_state_dict(weights)
    optimizer.load_state_dict(states)


def save_as_verl(model, optimizer, out, rank, world):
    """utils/checkpoint/fsdp_checkpoint_manager.py."""
    if isinstance(model, FullyShardedDataParallel):
        FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True),
                                                     ShardedOptimStateDictConfig(offload_to_cpu=True))
    for kind, value in (("model", model.state_dict()), ("optim", optimizer.state_dict()), ("extra_state", {"rng": torch.get_rng_state()})):
        torch.save(value, f"{out}/{kind}_world_size_{world}_rank_{rank}.pt")


def save_by_torch_checkpointing(model, optimizer, out, rank):
    """0.1.1 cannot write on ext4."""
    import torch_checkpointing
    from torch_checkpointing.default_resharder import DefaultResharder

    weights, states = get_state_dict(model, optimizer)
    item = torch_checkpointing.ItemSpec(resharder=DefaultResharder())
    save = torch_checkpointing.SyncCheckpointSaverConfig()
    manager = torch_checkpointing.CheckpointManager.Config(items={"model": item, "optim": item}, save=save).build()
    memory = f"/dev/shm/{out.replace('/', '-')}"
    manager.save(memory, {"model": weights, "optim": states, "step": 2, "rng": torch.get_rng_state()})
    torch.distributed.barrier()
    if rank == 0:
        shutil.copytree(memory, out, dirs_exist_ok=True)
        shutil.rmtree(memory)


def place_torch_checkpointing(directory):
    """A copy that gathers on a CPU. It is installed beside torchtitan, whose torch is another one."""
    shutil.copytree(f"{os.environ['CAIRN_VENV']}/titan/torch_checkpointing", f"{directory}/packages/torch_checkpointing")
    gathers = pathlib.Path(directory, "packages/torch_checkpointing/metadata_manager.py")
    gathers.write_text(gathers.read_text().replace('device="cuda"', 'device="cpu"').replace(".cuda()", ""))
    sys.path.append(f"{directory}/packages")
    torch.cuda.current_device = lambda: 0


def job(rank, spec, out, port):
    torch.set_num_threads(1)
    os.makedirs(out, exist_ok=True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}.store", rank=rank, world_size=spec["world"])
    model = parallel(built(spec), spec)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    if "from" in spec:
        resume(model, optimizer, os.path.join(os.path.dirname(out), spec["from"]))
    else:
        train(model, optimizer, spec)
    whole, states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        moments = {f"{name}.{key}": value for name, held in states["state"].items() for key, value in held.items()}
        torch.save({"weights": whole, "moments": moments}, f"{out}.pt")
        if spec.get("qwen3"):
            plain = built(spec)
            plain.load_state_dict(whole)
            plain.save_pretrained(f"{out}/huggingface")
    if spec.get("slices"):
        weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}  # it refuses shared memory
        dcp.save(weights, storage_writer=dcp.HuggingFaceStorageWriter(out, save_distributed=True))
    elif spec.get("torch_checkpointing"):
        save_by_torch_checkpointing(model, optimizer, out, rank)
    else:
        save_as_verl(model, optimizer, out, rank, spec["world"])
    torch.distributed.barrier()


if __name__ == "__main__":
    place_torch_checkpointing(sys.argv[1])
    run_jobs(job)
