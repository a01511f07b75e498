"""Steps on the nodes of a training of PyTorch: a save until it returns, and a resume, beside a copy of as much memory, torch.distributed.checkpoint,
torch_checkpointing, and NVIDIA's local checkpoints (nvidia-resiliency-ext, if it is installed).

Each of the ranks is a node of its own; all nodes' directories are in memory. Contenders take turns, and each round starts with the next one: first
all saves, then all resumes. A resume counts once the tensors have the bits that were saved. `xor:2` and NVRx's cliques of 2 both survive the loss of
one of two nodes. The others keep one copy, and none but ours verifies what it reads.
"""

import argparse
import importlib.util
import json
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

import cairn.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from save_speed import rotated, size_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "interop"))
from rank_files_writer import place_torch_checkpointing  # noqa: E402

TENSORS = 120
WARM = 3  # saves, until ours has removed a step, whose memory it fills again


def make_state(size, mesh):
    """Tensors that are cut over the ranks, as FSDP2 cuts them; each rank's parts are random."""
    columns = 1024
    rows = size // (4 * columns * TENSORS * mesh.size())
    generator = torch.Generator().manual_seed(mesh.get_rank())
    parts = [torch.randn(rows, columns, generator=generator) for _ in range(TENSORS)]
    return {f"tensor.{i}": DTensor.from_local(part, mesh, [Shard(0)]) for i, part in enumerate(parts)}


def parts_of(state):
    return {name: tensor.to_local() for name, tensor in state.items()}


class Copy:
    name = "a copy into warm memory"

    def __init__(self, state, _):
        self.copies = {name: torch.empty_like(part) for name, part in parts_of(state).items()}

    def save(self, state, _):
        for name, part in parts_of(state).items():
            self.copies[name].copy_(part)

    def load(self, state):
        for name, part in parts_of(state).items():
            part.copy_(self.copies[name])


class Ours:
    def __init__(self, directory, redundancy=None):
        self.name = f"cairn.torch, {redundancy or 'no parity'}"
        self.run = f"{directory}/run-{redundancy}"
        self.options = {"local": f"{directory}/{redundancy}-{{rank}}"}
        self.saving = {**self.options, "every": 1 << 30, **({"redundancy": redundancy} if redundancy else {})}

    def save(self, state, step):
        cairn.torch.save(state, self.run, step, copies="off", **self.saving)

    def load(self, state):
        cairn.torch.load(state, self.run, **self.options)


class Dcp:
    name = "torch.distributed.checkpoint"

    def __init__(self, directory):
        self.directory = directory

    def save(self, state, step):
        self.path = f"{self.directory}/dcp-{step}"
        dcp.save(state, checkpoint_id=self.path)
        if dist.get_rank() == 0:
            shutil.rmtree(f"{self.directory}/dcp-{step - 1}", ignore_errors=True)

    def load(self, state):
        dcp.load(state, checkpoint_id=self.path)


class TorchCheckpointing:
    name = "torch_checkpointing"

    def __init__(self, directory):
        place_torch_checkpointing(f"{directory}/{dist.get_rank()}")
        import torch_checkpointing
        from torch_checkpointing.default_resharder import DefaultResharder

        item = torch_checkpointing.ItemSpec(resharder=DefaultResharder())
        save = torch_checkpointing.SyncCheckpointSaverConfig()
        self.manager = torch_checkpointing.CheckpointManager.Config(items={"model": item}, save=save).build()
        self.directory = directory

    def save(self, state, step):
        self.path = f"{self.directory}/torch_checkpointing-{step}"
        self.manager.save(self.path, {"model": state})
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(f"{self.directory}/torch_checkpointing-{step - 1}", ignore_errors=True)

    def load(self, state):
        self.manager.load(self.path, into={"model": state})


class Nvrx:
    def __init__(self, directory, copies):
        from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
        from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
        from nvidia_resiliency_ext.checkpointing.local.replication.strategies import CliqueReplicationStrategy

        BasicTensorAwareStateDict.restore_tensor_device = lambda *_, **__: None  # all stays on the CPU
        self.empty = BasicTensorAwareStateDict
        cliques = CliqueReplicationStrategy.from_replication_params(1, 2) if copies == 2 else None
        self.name = f"NVRx, {'cliques of 2' if cliques else 'one copy'}"
        self.manager = LocalCheckpointManager(f"{directory}/nvrx-{copies}-{dist.get_rank()}", repl_strategy=cliques)

    def save(self, state, step):
        given = self.empty({})
        given.state_dict = parts_of(state)  # its constructor takes only tensors on a GPU
        self.manager.save(given, step)

    def load(self, state):
        self.manager.find_latest()
        found, _ = self.manager.load()
        for name, part in parts_of(state).items():
            part.copy_(found.state_dict[name])


def rank_of(rank, a, directory, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=a.ranks)
    state = make_state(size_of(a.bytes), init_device_mesh("cpu", (a.ranks,)))
    contenders = [Copy(state, directory), Ours(directory), Ours(directory, "xor:2"), Dcp(directory), TorchCheckpointing(directory)]
    if importlib.util.find_spec("nvidia_resiliency_ext"):
        contenders += [Nvrx(directory, 1), Nvrx(directory, 2)]
    times = {contender.name: [] for contender in contenders}

    def timed(act):
        dist.barrier()
        begin = time.perf_counter()
        act()
        dist.barrier()
        return time.perf_counter() - begin

    for round_ in range(WARM + a.rounds):
        for contender in rotated(contenders, round_):
            seconds = timed(lambda: contender.save(state, round_ + 1))  # noqa: B023
            if round_ >= WARM:
                times[contender.name].append([seconds])
    saved = {name: part.clone() for name, part in parts_of(state).items()}
    for round_ in range(a.rounds):
        for contender in rotated(contenders, round_):
            for part in parts_of(state).values():
                part.zero_()
            times[contender.name][round_].append(timed(lambda: contender.load(state)))  # noqa: B023
            assert all(torch.equal(part, saved[name]) for name, part in parts_of(state).items()), contender.name
    if rank == 0:
        with open(out, "w") as file:
            json.dump(times, file)
    dist.barrier()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", default="500MB", help="the state of all ranks together (default: 500MB)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default="/dev/shm", help="where the nodes keep their steps (default: /dev/shm)")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cairn-nodes-", dir=a.dir) as directory:
        out = f"{directory}/times.json"
        torch.multiprocessing.spawn(rank_of, (a, directory, out), nprocs=a.ranks)
        with open(out) as file:
            times = json.load(file)
    limit = times[Copy.name]
    print("| saved by | save s | × copy | resume s | × copy |\n| --- | ---: | ---: | ---: | ---: |")
    for name, rounds in times.items():
        cells = []
        for index in (0, 1):
            seconds = [of[index] for of in rounds]
            ratio = statistics.median(of[index] / copy[index] for of, copy in zip(rounds, limit))
            cells += [f"{statistics.median(seconds):.2f} ({min(seconds):.2f} – {max(seconds):.2f})", f"{ratio:.1f}"]
        print("| " + " | ".join([name, *cells]) + " |")


if __name__ == "__main__":
    sys.exit(main())
