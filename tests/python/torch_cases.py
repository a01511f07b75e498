"""What the ranks of test_torch_ranks.py's jobs run: CASE(rank, world, directory). Every job is gloo on the CPU."""

import dataclasses
import os
import pathlib
import pickle
import random
import signal
import socket
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE)]

import cairn.torch  # noqa: E402
import numpy  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from ranks import join  # noqa: E402
from torch.distributed._shard.sharded_tensor import ShardedTensor  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard  # noqa: E402
from torch.distributed.fsdp.wrap import ModuleWrapPolicy  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402

WIDTH = 48


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self, rows=101):
        super().__init__()
        self.embed = torch.nn.Embedding(rows, WIDTH)  # rows that no number of ranks divides
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.register_buffer("table", torch.arange(64 * WIDTH, dtype=torch.float32).view(64, WIDTH))  # plain under FSDP, too

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.table.T.to(x.dtype) * 1e-3


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(model, rank):
    pass


def fsdp(model, rank):
    shard(model, init_device_mesh("cpu", (dist.get_world_size(),)))


def hsdp(model, rank):
    shard(model, init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard")))


def tp_fsdp(model, rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    shard(model, mesh["dp"])


@dataclasses.dataclass
class Training:
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    rank: int
    step: int = 0

    def train(self, steps):
        for _ in range(steps):
            generator = torch.Generator().manual_seed(1000 + self.step)  # the same batch on all ranks: the sums do not depend on how many
            tokens = torch.randint(0, 101, (4, 6), generator=generator)
            self.optimizer.zero_grad()
            self.model(tokens).square().mean().backward()
            self.optimizer.step()
            self.schedule.step()
            self.step += 1

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optim": optimizer,
            "schedule": self.schedule.state_dict(),
            "step": self.step,
            "rng": {str(self.rank): {"python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state()}},
            "loader": {str(self.rank): {"epoch": 1, "seen": [3, 1, 2], "shard": ("file", 7), "left": {"a", "b"}}},
        }

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]


def training(parallelism, rank, seed=0):
    torch.manual_seed(seed)
    random.seed(seed + rank)
    numpy.random.seed(seed + rank)
    model = Model()
    parallelism(model, rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Training(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5), rank)


def full(state):
    """{path: whole tensor} of a nested state dict; all ranks must call it."""
    tensors = {}
    for key, value in sorted(state.items()):
        if isinstance(value, dict):
            tensors.update({f"{key}.{inner}": tensor for inner, tensor in full(value).items()})
        elif isinstance(value, torch.Tensor):
            tensors[key] = (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
    return tensors


def keep(state, rank, file):
    """Records the contents of the state, for `compare`."""
    tensors = {part: full(state[part]) for part in ("model", "optim")}
    if rank == 0:
        torch.save(tensors, file)


def compare(state, file):
    expected = torch.load(file)
    for part in ("model", "optim"):
        ranks.check_equal(full(state[part]), expected[part])


def save_all(rank, world, directory):
    """One run directory for each way to shard: NAME/, and its expected contents in NAME.pt."""
    join(rank, world, directory, "save")
    for parallelism in (fsdp, hsdp, tp_fsdp, whole):
        name = parallelism.__name__
        job = training(parallelism, rank)
        if parallelism is tp_fsdp:
            job.step = 2  # its forward pass wants batches that are sharded, too
        else:
            job.train(2)
        state = job.state_dict()
        keep(state, rank, f"{directory}/{name}.pt")
        saved = cairn.torch.save(state, f"{directory}/{name}", 2, deadline=60)
        assert os.path.isdir(saved.step_dir), saved
        with open(f"{directory}/{name}-rank{rank}.pickle", "wb") as file:
            pickle.dump({"rng": state["rng"], "loader": state["loader"]}, file)


def load_all(rank, world, directory):
    """Loads the results of save_all, under FSDP on `world` ranks, or whole on one."""
    join(rank, world, directory, f"load{world}")
    for name in ("fsdp", "hsdp", "tp_fsdp", "whole"):
        job = training(fsdp if world > 1 else whole, rank, seed=1)
        if name != "tp_fsdp":
            job.train(1)
        state = job.state_dict()
        assert cairn.torch.load(state, f"{directory}/{name}") == 2
        compare(state, f"{directory}/{name}.pt")
        with open(f"{directory}/{name}-rank{rank}.pickle", "rb") as file:
            expected = pickle.load(file)
        left, right = (loader[str(rank)].pop("left") for loader in (state["loader"], expected["loader"]))
        assert left == right and type(left) is set  # two equal sets may have two orders
        assert repr(state["loader"]) == repr(expected["loader"])
        generators, expected = state["rng"][str(rank)], expected["rng"][str(rank)]
        assert generators["python"] == expected["python"]
        assert all(numpy.array_equal(a, b) and type(a) is type(b) for a, b in zip(generators["numpy"], expected["numpy"]))
        assert torch.equal(generators["torch"], expected["torch"])
        assert state["step"] == 2
        job.load_state_dict(state)
        assert job.schedule.last_epoch == (0 if name == "tp_fsdp" else 2)


def fsdp1(rank, world, directory):
    """Its ShardedTensors: two ranks save, three load."""
    join(rank, world, directory, f"fsdp1-{world}")
    torch.manual_seed(world)
    wrap = ModuleWrapPolicy({Block})
    model = FullyShardedDataParallel(Model(), auto_wrap_policy=wrap, device_id=torch.device("cpu"), use_orig_params=world == 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    Training(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5), rank).train(2)
    state, file = dict(zip(("model", "optim"), get_state_dict(model, optimizer))), f"{directory}/fsdp1.pt"
    if world == 2:
        assert isinstance(state["model"]["embed.weight"], ShardedTensor)
        cairn.torch.save(state, f"{directory}/fsdp1", 2, deadline=60)
    else:
        assert cairn.torch.load(state, f"{directory}/fsdp1") == 2
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    whole = dict(zip(("model", "optim"), get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))))
    if rank == 0 and world == 2:
        keep(whole, rank, file)
    elif rank == 0:
        compare(whole, file)


def hybrid_fsdp1(rank, world, directory):
    """A ShardedTensor does not record which other ranks hold the same: refused, with the option to pass."""
    join(rank, world, directory, "hybrid")
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    both = (groups[rank // 2], groups[2 + rank % 2])
    model = FullyShardedDataParallel(
        Block(), process_group=both, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_id=torch.device("cpu"), use_orig_params=True
    )
    state = get_model_state_dict(model)
    ranks.refused(Exception, ["overlaps", "HYBRID_SHARD"], cairn.torch.save, state, f"{directory}/hybrid", 1, deadline=60)
    saved = cairn.torch.save(state, f"{directory}/hybrid", 1, deadline=60, replicas=lambda name: dist.get_process_group_ranks(both[1]))
    before = state["up.weight"].local_shards()[0].tensor.clone()
    state["up.weight"].local_shards()[0].tensor.zero_()
    cairn.torch.load(state, saved.step_dir)
    assert before.any() and torch.equal(state["up.weight"].local_shards()[0].tensor, before)


def with_dcp(rank, world, directory):
    """torch.distributed.checkpoint's own functions, its planners and ours, with and without its collectives."""
    join(rank, world, directory, "dcp")
    job = training(hsdp, rank)
    job.train(2)
    state = job.state_dict()
    keep(state, rank, f"{directory}/dcp.pt")
    writer, planner = cairn.torch.CairnWriter, cairn.torch.CairnPlanner
    dcp.save(state, storage_writer=writer(f"{directory}/dcp", 1), planner=planner(), no_dist=True)
    dcp.save(state, storage_writer=writer(f"{directory}/dcp", 2), planner=planner())
    dcp.save(state, storage_writer=writer(f"{directory}/dcp", 3))
    response = dcp.async_save(
        state, storage_writer=writer(f"{directory}/dcp", 4), planner=planner(), async_stager=cairn.torch.CairnStager(), no_dist=True
    )
    response.staging_completion.result()
    job.train(1)
    response.upload_completion.result()
    for step in (1, 2, 3, 4):
        other = training(fsdp, rank, seed=step)
        other.train(1)
        state = other.state_dict()
        reader = cairn.torch.CairnReader(f"{directory}/dcp/step-{step:08}")
        dcp.load(state, storage_reader=reader, no_dist=step % 2 == 0)
        compare(state, f"{directory}/dcp.pt")
        assert state["loader"][str(rank)]["shard"] == ("file", 7)
    ranks.refused(dcp.CheckpointException, "CairnPlanner", dcp.save, state, storage_writer=writer(f"{directory}/dcp", 9), no_dist=True)


def resume(rank, world, directory):
    """Six steps, with a save after the third while the training continues; then the last three again, from the checkpoint."""
    join(rank, world, directory, "resume")
    job = training(fsdp, rank)
    job.train(3)
    handle = cairn.torch.async_save(job.state_dict(), f"{directory}/resume", job.step, optimizer=job.optimizer)
    job.train(3)
    expected = full(job.state_dict()["model"])
    handle.result()
    again = training(fsdp, rank, seed=5)
    again.train(1)
    state = again.state_dict()
    assert cairn.torch.load(state, f"{directory}/resume") == 3
    again.load_state_dict(state)
    again.train(3)
    ranks.check_equal(full(again.state_dict()["model"]), expected)


def rank_dies(rank, world, directory):
    """Rank 2 is killed between its begin and its save; the others get an error, and the step before is whole."""
    dies(rank, world, directory, "dies", cairn.torch._saving.Save, "stage")


def rank_dies_while_it_copies(rank, world, directory):
    """The same for a rank whose save is handed over, during its training."""
    dies(rank, world, directory, "dies_copying", cairn.torch._device, "copy_on_one_thread")


def dies(rank, world, directory, name, owner, call):
    join(rank, world, directory, name)
    job = training(whole, rank)
    cairn.torch.save(job.state_dict(), f"{directory}/{name}", 1)
    if rank == 2:
        ranks.die_before(owner, call)
    begin = time.monotonic()
    try:
        cairn.torch.async_save(job.state_dict(), f"{directory}/{name}", 2, optimizer=job.optimizer, deadline=60).result()
    except cairn.torch.SaveFailed as error:
        assert "rank 2" in str(error), error
        assert time.monotonic() - begin < 30, "the death was noticed by the deadline"
    else:
        raise AssertionError("a save without rank 2 was committed")
    assert cairn.torch.load({"step": None}, f"{directory}/{name}") == 1


def rank_is_late(rank, world, directory):
    """Rank 1 does not save the second step in time: every other rank learns which rank is late, and its host."""
    join(rank, world, directory, "late")
    for step in (1, 2):
        if (rank, step) == (1, 2):
            continue
        try:
            cairn.torch.save({"w": torch.ones(9000)}, f"{directory}/late", step, deadline=60 if step == 1 else 2)
        except cairn.torch.SaveFailed as error:
            assert step == 2 and str(error).endswith(f"not finished: rank 1 (host {socket.gethostname()})"), error
        else:
            assert step == 1, "saved without rank 1"
    torch.distributed.barrier()


def rank_refuses(rank, world, directory):
    """Rank 1 has a tensor that no checkpoint holds: all ranks' saves fail at once, and name the tensor and the rank."""
    join(rank, world, directory, "refuses")
    state = {"w": torch.ones(9000), f"mine{rank}": torch.ones(9000, dtype=torch.complex64 if rank == 1 else torch.float32)}
    try:
        cairn.torch.save(state, f"{directory}/refuses", 1, deadline=60, replicas=lambda fqn: [rank] if "mine" in fqn else None)
    except cairn.torch.SaveFailed as error:
        assert rank != 1 and "rank 1" in str(error) and "mine1" in str(error), error
    except TypeError as error:
        assert rank == 1 and "mine1: torch.complex64" in str(error), error
    else:
        raise AssertionError("saved")


def helper_dies(rank, world, directory):
    """The helper of rank 1, which leaves no message in the directory: its trainer informs the others."""
    join(rank, world, directory, "helper_dies")
    if rank == 1:
        ranks.before(cairn.torch._saving.Save, "stage", lambda: os.kill(cairn._helper.helper().pid, signal.SIGKILL))
    try:
        cairn.torch.save({"w": torch.ones(9000)}, f"{directory}/helper_dies", 1)
    except cairn.torch.SaveFailed as error:
        assert rank != 1 and f"rank 1 (host {socket.gethostname()}) failed: " in str(error) and "signal 9" in str(error), error
    except cairn.torch.HelperDied:
        assert rank == 1
    else:
        raise AssertionError("saved")


def hole(rank, world, directory):
    """A plain tensor that only rank 1 holds, without `replicas`: refused, if the rule gives it to another rank."""
    join(rank, world, directory, "hole")
    state = {f"stage{rank}.{number}": torch.ones(9000) for number in range(8)}
    ranks.refused(Exception, "stage", cairn.torch.save, state, f"{directory}/hole", 1, deadline=60)
    saved = cairn.torch.save(state, f"{directory}/hole", 1, replicas=[rank])
    loaded = {key: torch.zeros(9000) for key in state}
    assert cairn.torch.load(loaded, saved.step_dir) == 1
    assert all(torch.equal(loaded[key], state[key]) for key in state)


def dtensors(rank, world, directory):
    """Tensors that collectives may still be writing, without elements, and with partial sums."""
    join(rank, world, directory, "dtensors")
    mesh = init_device_mesh("cpu", (world,))
    values = torch.arange(9001.0)
    gathered = distribute_tensor(values, mesh, [Shard(0)]).redistribute(placements=[Replicate()], async_op=True)
    empty = distribute_tensor(torch.zeros(0, 5), mesh, [Shard(1)])
    saved = cairn.torch.save({"gathered": gathered, "empty": empty}, f"{directory}/dtensors", 1)
    loaded = {"gathered": torch.zeros(9001), "empty": torch.ones(0, 5)}
    cairn.torch.load(loaded, saved.step_dir)
    assert torch.equal(loaded["gathered"], values)
    partial = {"gathered": DTensor.from_local(torch.zeros(9001), mesh, [Partial()])}
    ranks.refused(cairn.torch.LoadMismatch, "gathered: a DTensor of partial sums", cairn.torch.load, partial, saved.step_dir)
    meta = {"gathered": torch.empty(9001, device="meta")}
    cairn.torch.load(meta, saved.step_dir)  # as DCP does in a job
    assert torch.equal(meta["gathered"], values)


def all_die(rank, world, directory):
    """Every trainer is killed when it has handed its save over."""
    join(rank, world, directory, "all_die")
    torch.manual_seed(0)
    state = {"model": {f"w{number}": torch.randn(1000, 1000) for number in range(8)}, "step": 5}
    cairn.torch.async_save(state, f"{directory}/all_die", 5)
    os.kill(os.getpid(), signal.SIGKILL)


def readme(rank, world, directory):
    """README.md: its save, then its resume, on the ranks of a job."""
    join(rank, world, directory, "readme")
    os.makedirs(f"{directory}/readme", exist_ok=True)
    os.chdir(f"{directory}/readme")
    job = training(fsdp, rank)
    job.train(1)
    names = {"model": job.model, "optimizer": job.optimizer}
    save, resume = ranks.python_of("README.md")
    exec(save, names)
    names["saved"].result()
    expected = full(names["state"]["model"])
    job.train(1)
    exec(resume, names)
    assert names["step"] == 100
    ranks.check_equal(full(get_state_dict(job.model, job.optimizer)[0]), expected)


def guide(rank, world, directory):
    """docs/guide/save-from-pytorch.md, with torch's threads."""
    ranks.run_guide("save-from-pytorch.md", {}, directory)
