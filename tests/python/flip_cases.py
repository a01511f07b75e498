"""What the ranks of test_torch_flips.py's jobs run: trainings of replicas, with one flipped bit in one of them."""

import json
import pathlib
import random
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE)]

import cairn.torch  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

WIDTH = 40
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Model(torch.nn.Module):
    def __init__(self, plain):
        super().__init__()
        self.embed = torch.nn.Embedding(130, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.down = torch.nn.Linear(3 * WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.frozen = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16).requires_grad_(False)
        self.statistics = torch.nn.BatchNorm1d(WIDTH) if plain else torch.nn.Identity()
        self.scale = torch.nn.Parameter(torch.tensor(1.0) if plain else torch.ones(1))
        self.head = torch.nn.Linear(WIDTH, 130, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("none", torch.empty(0, WIDTH))
        self.register_buffer("table", torch.arange(3 * WIDTH).view(3, WIDTH))

    def forward(self, tokens):
        x = self.embed(tokens)
        x = self.norm(x + self.down(torch.relu(self.up(x)))) * self.scale
        x = self.statistics((x + self.frozen(x.bfloat16()).float()).flatten(0, 1))
        return self.head(x)


class Training:
    """kind: ddp, hsdp or tp. Each rank has batches of its own, but those of one TP group."""

    def __init__(self, kind, rank, world):
        torch.manual_seed(7)
        model = Model(plain=kind == "ddp")
        self.batches = torch.Generator().manual_seed(rank if kind != "tp" else rank // 2)
        if kind == "ddp":
            self.forward = DistributedDataParallel(model, broadcast_buffers=False)
        else:
            mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard") if kind == "hsdp" else ("dp", "tp"))
            if kind == "hsdp":
                fully_shard(model.frozen, mesh=mesh)
                fully_shard(model, mesh=mesh)
            else:
                parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
                if world > 2:
                    fully_shard(model.frozen, mesh=mesh["dp"])
                    fully_shard(model, mesh=mesh["dp"])
            self.forward = model
        self.model = model
        self.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)

    def train(self):
        tokens = torch.randint(0, 130, (4, 8), generator=self.batches)
        torch.rand(1 + dist.get_rank())  # ranks draw different numbers
        torch.nn.functional.cross_entropy(self.forward(tokens), tokens.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "rng": torch.get_rng_state(), "noise": torch.randn(5)}

    def replicas(self, state, kind):
        """(name, this rank's memory) of the tensors that another rank holds, too."""
        tensors = dict(state["model"])
        for name, states in state["optim"]["state"].items():
            tensors |= {f"{name}.{kind}": value for kind, value in states.items()}
        for name, tensor in tensors.items():
            sharded = isinstance(tensor, DTensor) and any(isinstance(placement, Shard) for placement in tensor.placements)
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            own = "running" in name or "tracked" in name or (kind == "tp" and sharded and dist.get_world_size() == 2)
            if local.numel() and not own and not (kind == "tp" and name.startswith(("up.", "down.weight"))):
                yield name, local.detach()


def flip(tensor, random_bits):
    """Another bit of one element. The same call flips it back, with the same random_bits."""
    values = tensor.view(INTEGERS[tensor.itemsize])
    at = tuple(random_bits.randrange(size) for size in tensor.shape)
    bit = random_bits.randrange(8 * tensor.itemsize)
    mask = torch.tensor(1 << bit if bit < 8 * tensor.itemsize - 1 or tensor.itemsize == 1 else -(1 << bit), dtype=values.dtype)
    values[at] = values[at] ^ mask


def flips(rank, world, directory, kind, count):
    """Before every second save one rank has another bit in one of its copies; counts those that are noticed."""
    ranks.join(rank, world, directory, f"{kind}-{world}")
    training = Training(kind, rank, world)
    run, chosen = f"{directory}/run-{kind}-{world}", random.Random(3)
    noticed = 0
    for step in range(1, 2 * count + 1):
        if step % 2:
            training.train()
        state = training.state()
        replicas = dict(training.replicas(state, kind))
        victim, seed = chosen.randrange(world), chosen.random()
        if step % 2:  # healthy
            cairn.torch.async_save(state, run, step, optimizer=training.optimizer, keep_last=2).result()
            continue
        said = [random.Random(seed).choice(list(replicas))]
        dist.broadcast_object_list(said, victim)
        name = said[0]
        if rank == victim:
            flip(replicas[name], random.Random(seed))
        try:
            cairn.torch.async_save(state, run, step, optimizer=training.optimizer, keep_last=2).result()
        except cairn.torch.CopiesDiffer as error:
            assert f"{name} of rank".replace("head", "embed") in str(error), (name, error)  # these two are tied
            noticed += 1
        if rank == victim:
            flip(replicas[name], random.Random(seed))
    assert noticed == count, (noticed, count)


def healthy(rank, world, directory, kind, saves):
    """Saves while the training continues raise no alarm, with batch norms and random states that differ between ranks."""
    ranks.join(rank, world, directory, f"healthy-{kind}-{world}")
    training = Training(kind, rank, world)
    alarms, handles = [], []
    for step in range(1, saves + 1):
        training.train()
        saving = cairn.torch.async_save(
            training.state(), f"{directory}/healthy-{kind}", step, optimizer=training.optimizer, keep_last=2, on_alarm=alarms.append
        )
        handles.append(saving)
        if len(handles) > 1:
            handles.pop(0).result()
    handles.pop().result()
    assert not alarms, alarms
    events = pathlib.Path(directory, f"healthy-{kind}", "events")
    assert not events.exists() or "alarm" not in events.read_text()


def answers(rank, world, directory):
    """What a training can do about copies that differ."""
    ranks.join(rank, world, directory, "answers")
    same, vector, alarms = torch.arange(6.0).view(2, 3), torch.arange(3.0), []
    state = {"model": {"w": same, "b.weight": vector, "own": torch.tensor([float(rank)]), "own.bias": torch.tensor([float(rank)])}}

    def save(step, name="answers", **options):
        return cairn.torch.save(state, f"{directory}/{name}", step, on_alarm=alarms.append, deadline=60, **options)

    def heard(count):
        """on_alarm has a thread of its own."""
        until = time.monotonic() + 30
        while len(alarms) < count and time.monotonic() < until:
            time.sleep(0.01)
        assert len(alarms) == count, alarms

    def history(saved):
        return json.loads(pathlib.Path(saved.step_dir, "manifest.json").read_text())["history"]

    assert "ranks 0 and 1 differ in model.own.bias; one rank's were kept" in history(save(1))  # from the beginning
    assert not alarms
    if rank == 1:
        vector.view(torch.int32)[2] ^= 1
    says = "ALARM: copies differ: model.b.weight of ranks 0 (host "
    ranks.refused(cairn.torch.CopiesDiffer, says, save, 2)
    failed = save(3, on_error="warn")
    assert failed.step_dir == "" and isinstance(failed.error, cairn.torch.CopiesDiffer), failed
    heard(2)
    assert str(alarms[0]).startswith(says), alarms
    saved = save(4, copies="warn")
    heard(3 if rank == 0 else 2)
    assert says in history(saved)[-1], history(saved)
    assert "ALARM" not in str(history(save(5, copies="off")))
    if rank == 0:
        events = [json.loads(line) for line in pathlib.Path(directory, "answers", "events").read_text().splitlines()]
        alarms_of_run = [event for event in events if event["event"] == "alarm"]
        assert [event["step"] for event in alarms_of_run] == [2, 3, 4], events
        assert all(says in event["why"] for event in alarms_of_run), events
    torch.distributed.barrier()
    vector[2] = 2.0
    nodes = {"local": f"{directory}/nodes-{{rank}}", "every": 2, "name": "answers-local"}
    save(1, **nodes)
    if rank == 0:
        same.view(torch.int32)[1, 1] ^= 1 << 30
    for step in (2, 3):  # one to the run, and one to the nodes
        ranks.refused(cairn.torch.CopiesDiffer, "model.w of ranks 0 (host ", save, step, **nodes)
    kept = {path.parent.name for path in pathlib.Path(directory).glob("nodes-*/*/step-*/manifest.json") if path.parent.suffix == ""}
    assert kept == {"step-00000001"}, kept
