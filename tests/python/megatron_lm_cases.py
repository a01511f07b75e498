"""What the ranks of test_bridge.py run with Megatron-LM's own pretrain_gpt.py, on a CPU as in bridge_real.py: CASE(rank, world, directory)."""

import os
import pathlib
import runpy
import signal
import sys

import bridge_real
import cairn
import ranks
import torch
from megatron.training import initialize, training

PROGRAM = pathlib.Path(training.__file__).parents[2] / "pretrain_gpt.py"
ITERATIONS = 6
OFF = "masked-softmax-fusion bias-gelu-fusion bias-dropout-fusion rope-fusion gradient-accumulation-fusion persist-layer-norm mmap-bin-files"
FLAGS = f"""--num-layers 2 --hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16
    --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 --disable-bias-linear --transformer-impl local --attention-backend unfused
    --micro-batch-size 1 --global-batch-size 4 --lr 1e-2 --min-lr 1e-4 --lr-decay-iters 20 --lr-warmup-iters 1 --bf16 --use-distributed-optimizer
    --mock-data --tokenizer-type NullTokenizer --vocab-size 60 --num-workers 0 --no-create-attention-mask-in-dataloader --use-cpu-initialization
    --distributed-backend gloo --eval-iters 0 --eval-interval 100 --log-interval 1 --save-interval 3 --dist-ckpt-optim-fully-reshardable
    {" ".join(f"--no-{name}" for name in OFF.split())}"""


def train(rank, world, run, job, more=""):
    """Iterations from the newest one of the directory `run`, up to the sixth. Returns a rank's losses and tensors."""
    torch.set_num_threads(1)
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    port = ranks.free_port(rank, f"{run}-port-{job}")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # its args hold enums, which Python 3.11 pickles by getattr
    kept = {"losses": {}}
    bridge_real.replace(kept, 0, training, training, training)
    initialize._compile_dependencies = lambda: None
    saved = ["--save", run, "--load", run, "--train-iters", str(ITERATIONS)]
    sys.argv = [str(PROGRAM), *FLAGS.split(), *saved, *more.split()]
    try:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, ended.code
    return {"losses": list(kept["losses"].values()), "tensors": bridge_real.tensors(kept)}


def whole(rank, world, directory):
    cairn.enable("megatron")
    torch.save(train(rank, world, f"{directory}/whole", "whole"), f"{directory}/whole-{rank}.pt")


def enable(rank, directory):
    cairn.enable("megatron", local=f"{directory}/node-{rank}", redundancy="xor:2")


def on_nodes(rank, world, directory, job, flags):
    """Killed after the fifth iteration; the third is in the directory, and the others are on the nodes."""
    enable(rank, directory)
    train(rank, world, f"{directory}/run", job, f"--non-persistent-save-interval 1 --exit-interval 5 {flags}")
    os.kill(os.getpid(), signal.SIGKILL)


def from_nodes(rank, world, directory, job, first, flags=""):
    """As the training that is not interrupted."""
    enable(rank, directory)
    found = train(rank, world, f"{directory}/run", job, f"--non-persistent-save-interval 1 {flags}")
    expected = torch.load(f"{directory}/whole-{rank}.pt", weights_only=False)
    assert found["losses"] == expected["losses"][first:], (found["losses"], expected["losses"])
    ranks.check_equal(found["tensors"], expected["tensors"])
