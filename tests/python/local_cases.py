"""What the ranks of test_torch_local.py's jobs run: CASE(rank, world, directory, ...). Every job is gloo on the CPU.

Each rank's directory is that of a node of its own: DIRECTORY/NAME/node-RANK.
"""

import json
import os
import pathlib
import signal
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE)]

import cairn.torch  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from ranks import join  # noqa: E402
from torch.distributed.checkpoint._nested_dict import flatten_state_dict  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

WIDTH = 40


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 7)  # rows that no number of ranks divides
        self.down = torch.nn.Linear(7, WIDTH)
        self.thin = torch.nn.Linear(WIDTH, 2)  # some ranks hold nothing of it
        self.thin.bias.requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.thin(x + self.scale * self.down(torch.relu(self.up(x))))


class Training:
    """A model and AdamW, in one of these ways: "ddp", "fsdp", "hsdp" (2 replicas), "one" (a rank without a job)."""

    def __init__(self, how, world):
        torch.manual_seed(0)
        self.model = Model()
        if how in ("fsdp", "hsdp"):
            mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")) if how == "hsdp" else None
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=0.1)
        self.extra = {"step": 0, "history": []}

    def iterate(self):
        self.extra["step"] += 1
        torch.manual_seed(self.extra["step"])
        loss = self.model(torch.randn(5, WIDTH)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.extra["history"].append(float(loss.detach()))

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "extra": self.extra}

    def load(self, path, **local):
        self.iterate()  # the optimizer has states to fill
        state = self.state()
        step = cairn.torch.load(state, path, **local)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.extra = state["extra"]
        return step

    def digests(self):
        return ranks.digests(flatten_state_dict(self.state())[0])


def local_of(directory, name, redundancy):
    return {"local": f"{directory}/{name}/node-{{rank}}", "redundancy": redundancy}


def train(rank, world, directory, job, name, how, redundancy, resumes, until, killed_at=None):
    """Resumes at step `resumes` (None: there is none), with exactly the bits of that step. Trains, and saves each step up to `until`.

    Every third save goes to the run. killed_at: all ranks die while that step is saved.
    """
    join(rank, world, directory, f"train-{job}")
    training, run, local = Training(how, world), f"{directory}/{name}/run", local_of(directory, name, redundancy)
    known = pathlib.Path(f"{directory}/{name}/digests.json")
    if resumes is None:
        ranks.refused(FileNotFoundError, "no committed step", training.load, run, **local)
        training = Training(how, world)
    else:
        found = training.load(run, **local)
        assert found == resumes, (found, resumes)
        digests = training.digests()
        assert digests == json.loads(known.read_text())[str(resumes)], resumes
    while training.extra["step"] < until:
        training.iterate()
        step = training.extra["step"]
        digests = training.digests()
        if rank == 0:
            old = json.loads(known.read_text()) if known.exists() else {}
            known.write_text(json.dumps({**old, str(step): digests}))
        saving = cairn.torch.async_save(training.state(), run, step, every=3, **local)
        if step == killed_at:
            saving.staged.result()
            os.kill(os.getpid(), signal.SIGKILL)
        saving.result()


def automatic(rank, world, directory, name):
    """Eight saves with every="auto"; leaves the directory of each step."""
    join(rank, world, directory, name)
    training, run = Training("ddp", world), f"{directory}/{name}/run"
    places = []
    for step in range(1, 9):
        training.iterate()
        places.append(cairn.torch.save(training.state(), run, step, every="auto", **local_of(directory, name, "xor:2")).step_dir)
    pathlib.Path(f"{directory}/{name}/places-{rank}.json").write_text(json.dumps([place.startswith(run) for place in places]))


def with_dcp(rank, world, directory, ending):
    """dcp.save with CairnWriter: four steps on the nodes, of which the third is in the run. `ending`: a new job loads the fourth, bit for bit."""
    join(rank, world, directory, f"with_dcp-{ending}")
    training, run, local = Training("fsdp", world), f"{directory}/with_dcp/run", local_of(directory, "with_dcp", "xor:2")
    known = pathlib.Path(f"{directory}/with_dcp-{rank}.json")
    if ending:
        assert training.load(run, **local) == 4
        assert training.digests() == json.loads(known.read_text())
        return
    for step in range(1, 5):
        training.iterate()
        writer = cairn.torch.CairnWriter(run, step, every=3, **local)
        dcp.save(training.state(), storage_writer=writer, planner=cairn.torch.CairnPlanner(), no_dist=True)
    assert sorted(name for name in os.listdir(run) if name.startswith("step-")) == ["step-00000003"]
    known.write_text(json.dumps(training.digests()))


def go_back(rank, world, directory):
    """The run has step 3, the nodes have 4 and 5; this training continues from 3, and saves another step 4."""
    join(rank, world, directory, "go_back")
    training, run = Training("ddp", world), f"{directory}/back/run"
    assert training.load(f"{run}/step-00000003") == 3
    torch.manual_seed(99)
    with torch.no_grad():
        training.model.scale.add_(1)
    training.extra["step"] = 4
    if rank == 0:
        known = pathlib.Path(f"{directory}/back/digests.json")
        known.write_text(json.dumps({**json.loads(known.read_text()), "4": training.digests()}))
    cairn.torch.save(training.state(), run, 4, every=9, **local_of(directory, "back", "xor:2"))


def without_local(rank, world, directory, name):
    """The run has step 3, the nodes have 4 and 5; this training knows nothing of them, and saves another step 4."""
    join(rank, world, directory, name)
    training, run = Training("ddp", world), f"{directory}/{name}/run"
    assert training.load(run) == 3
    with torch.no_grad():
        training.model.scale.add_(1)
    training.extra["step"] = 4
    digests = training.digests()
    if rank == 0:
        known = pathlib.Path(f"{directory}/{name}/digests.json")
        known.write_text(json.dumps({**json.loads(known.read_text()), "4": digests}))
    cairn.torch.save(training.state(), run, 4)


def give_up(rank, world, directory):
    """The run has step 3, the nodes have 4 and 5. This training resumes from 5, whose loss is nan, then from 3, and saves another step 4."""
    join(rank, world, directory, "give_up")
    training, run, local = Training("ddp", world), f"{directory}/bad/run", local_of(directory, "bad", "xor:2")
    known = pathlib.Path(f"{directory}/bad/digests.json")
    assert training.load(run, **local) == 5
    cairn.torch.give_up_local(run, "the loss is nan")
    assert training.load(run, **local) == 3
    digests = json.loads(known.read_text())
    assert training.digests() == digests["3"]
    training.iterate()
    with torch.no_grad():
        training.model.scale.add_(1)
    own = training.digests()
    if rank == 0:
        known.write_text(json.dumps({**digests, "4": own}))
    cairn.torch.save(training.state(), run, 4, every=9, **local)


def memory(rank, world, directory, resumes):
    """Copies of the state become the steps' files, and those of removed steps are filled again."""
    join(rank, world, directory, f"memory-{resumes}")
    training, run, local = Training("fsdp", world), f"{directory}/memory/run", local_of(directory, "memory", "xor:2")
    if resumes is not None:
        assert training.load(run, **local) == resumes
    files = {"h5": set(), "parity": set()}
    for step in range((resumes or 0) + 1, (resumes or 0) + 9):
        training.iterate()
        cairn.torch.save(training.state(), run, step, every=99, **local)
        for kind, inodes in files.items():
            (file,) = pathlib.Path(f"{directory}/memory/node-{rank}").glob(f"*/step-{step:08d}/shard-0000{rank}.{kind}")
            assert file.stat().st_nlink == 2, file.stat()
            inodes.add(file.stat().st_ino)
    # Two are kept, and one is written; after a resume, a third is kept while it is copied to the run.
    assert all(len(inodes) in (3, 4) for inodes in files.values()), files
    digests = training.digests()
    assert training.load(run, **local) == step and training.digests() == digests


def tight(rank, world, directory):
    """Both ranks share a tmpfs with room for one step: the save after it is refused, and takes no room that its parity needs."""
    join(rank, world, directory, "tight")
    weights = distribute_tensor(torch.ones(24, 30000), init_device_mesh("cpu", (world,)), [Shard(0)])
    named = {"every": 9, "local": f"{directory}/tight/small", "redundancy": "xor:2"}
    first = cairn.torch.async_save({"w": weights}, f"{directory}/tight/run", 1, **named)
    dist.barrier()
    ranks.refused(OSError, ["needs about", "are free"], cairn.torch.save, {"w": weights}, f"{directory}/tight/run", 2, **named)
    assert first.result().step_dir.endswith("step-00000001")


def refused(rank, world, directory):
    """What the ranks cannot have is refused on each of them, by name."""
    join(rank, world, directory, "refused")
    training, run = Training("ddp", world), f"{directory}/refused/run"
    save = lambda **named: cairn.torch.save(training.state(), run, 1, **named)
    local = {"local": f"{directory}/refused/node-{{rank}}"}
    for words, named in {
        "cannot be in the run directory": {"local": run},
        f"{run}/local: steps on the nodes cannot be": {"local": f"{run}/local"},
        "rs:5,9": {**local, "redundancy": "rs:5,9"},
        "more than 2 ranks": {**local, "redundancy": "rs:4,2"},
        "give local=DIR": {"every": 3},
        "at least 1": {**local, "every": 0},
        "give local=DIR, too": {"every": "auto"},
        "not compressed": {**local, "compress": True},
    }.items():
        ranks.refused(ValueError, words, save, **named)
    assert not os.path.exists(f"{run}/step-00000001") and not os.path.exists(f"{run}/local")


def unusable(rank, world, directory):
    """The node's directory is a file on rank 1: all saves go to the run."""
    join(rank, world, directory, "unusable")
    training, run = Training("fsdp", world), f"{directory}/unusable/run"
    os.makedirs(f"{directory}/unusable", exist_ok=True)
    if rank == 1:
        pathlib.Path(f"{directory}/unusable/node-1").write_text("")
    dist.barrier()
    for step in (1, 2):
        training.iterate()
        saved = cairn.torch.save(training.state(), run, step, every=3, **local_of(directory, "unusable", "xor:2"))
        assert saved.step_dir == f"{run}/step-0000000{step}", saved
    assert Training("fsdp", world).load(run, **local_of(directory, "unusable", "xor:2")) == 2


def rank_dies(rank, world, directory):
    """Rank 1 dies before it saves: the save fails on the others, which name it. Those before are kept."""
    dies(rank, world, directory, "rank_dies", every=9, deadline=20)


def told_late(rank, world, directory):
    """Only one rank, the first or the last, has learned of a failed save when the next one begins: it is saved at once."""
    join(rank, world, directory, "told_late")
    training, run, local = Training("ddp", world), f"{directory}/told_late/run", local_of(directory, "told_late", "xor:2")
    for step, told in ((1, None), (2, 1), (3, 0), (4, None)):
        training.iterate()
        if rank == told:
            cairn.torch._local.forget(cairn._helper.helper())
        assert cairn.torch.save(training.state(), run, step, every=9, deadline=1000, **local).step_dir.endswith(f"step-0000000{step}")


def node_dies(rank, world, directory):
    """Rank 1 and its helper die: a save that would go to the run, too, fails on the others without waiting for it there."""
    dies(rank, world, directory, "node_dies", every=1, deadline=1000)


def dies(rank, world, directory, name, every, deadline):
    join(rank, world, directory, name)
    training, run, local = Training("ddp", world), f"{directory}/{name}/run", local_of(directory, name, "xor:3")
    training.iterate()
    cairn.torch.save(training.state(), run, 1, every=every, **local)
    if rank == 1 and name == "node_dies":
        os.kill(cairn._helper.helper().pid, signal.SIGKILL)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.refused(cairn.torch.SaveFailed, "rank 1", cairn.torch.save, training.state(), run, 2, every=every, deadline=deadline, **local)
