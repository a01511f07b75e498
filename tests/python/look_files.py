"""Checkpoints for test_look.py: written by cairn train, by torch, by safetensors and by cairn.torch."""

import glob
import multiprocessing
import os
import pathlib
import subprocess

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

CAIRN = os.environ["CAIRN"]
TINY = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --vocab-size 61 --make-vocab-size-divisible-by 8 --mock-data "
    "--micro-batch-size 2 --global-batch-size 8 --lr 1e-3 --threads 1 --train-iters 2 --save-interval 2"
)


def cairn(*arguments):
    return subprocess.run([CAIRN, *map(str, arguments)], check=True, capture_output=True, text=True, timeout=300).stdout


def make_step(run, *flags):
    subprocess.run([os.environ["CAIRN_MAKE_STEP"], run, *map(str, flags)], check=True, timeout=60)


def train(run, log):
    """Two ranks with tensor parallelism, ZeRO-1 and bf16."""
    flags = ["--nproc-per-node", 2, "--tensor-model-parallel-size", 2, "--zero-stage", 1, "--bf16", *TINY.split()]
    pathlib.Path(log).write_text(cairn("train", *flags, "--save", run))


def every_type():
    """{name: tensor}: all types that a checkpoint holds, with all bit patterns of the small ones; a scalar, and empty ones."""
    torch.manual_seed(0)
    bytes_ = torch.arange(256, dtype=torch.uint8)
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    tensors = {
        "fp64": torch.randn(3, 5, dtype=torch.float64),
        "fp32": torch.cat([torch.randn(46, 5), torch.tensor([[float("nan"), float("inf"), -0.0, 1e-45, -1.0]])]),
        "fp16": halves.view(torch.float16).view(256, 256),
        "bf16": halves.view(torch.bfloat16).view(64, 4, 256),
        "fp8_e4m3": bytes_.view(torch.float8_e4m3fn).view(16, 16),
        "fp8_e5m2": bytes_.view(torch.float8_e5m2),
        "int64": torch.tensor([2**63 - 1, -(2**63), 0]),
        "int32": torch.arange(-30, 30, dtype=torch.int32).view(2, 3, 2, 5),
        "int16": torch.arange(-3, 3, dtype=torch.int16),
        "int8": bytes_.view(torch.int8),
        "uint8": bytes_.view(4, 64),
        "bool": torch.tensor([[True, False, True]]),
        "scalar": torch.tensor(3.5),
        "one": torch.tensor([7], dtype=torch.int32),
        "empty": torch.zeros(0, 4),
        "hollow": torch.zeros(3, 0, 2, dtype=torch.bfloat16),
    }
    return {name: tensor.clone() for name, tensor in tensors.items()}  # safetensors takes none that share memory


def write_safetensors(path):
    tensors = every_type()
    save_file(tensors, path)
    return tensors


def sharded():
    return {"rows": torch.randn(37, 6, generator=torch.Generator().manual_seed(1)), "columns": torch.arange(70).view(7, 10).bfloat16()}


def _save_shards(rank, directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}.store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = sharded()
    parts = {"rows": distribute_tensor(whole["rows"], mesh, [Shard(0)]), "columns": distribute_tensor(whole["columns"], mesh, [Shard(1)])}
    dcp.save({"model": parts, "step": 12}, checkpoint_id=directory)
    dist.destroy_process_group()


def write_dcp(directory):
    """Two ranks, a tensor cut by rows and one by columns."""
    ranks = [multiprocessing.get_context("fork").Process(target=_save_shards, args=(rank, directory)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        if rank.exitcode != 0:
            raise RuntimeError(f"a rank that saves ended with {rank.exitcode}")
    return sharded()


def step_of(run):
    (step,) = glob.glob(f"{run}/step-" + "[0-9]" * 8)
    return step
