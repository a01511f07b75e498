"""Tools that save checkpoints, other people's and ours: each saves a state durably, reads it back, and loads it.

save() returns (stall, durable) in seconds: when training could continue, and when every file was fsynced. read_back()
yields (key, tensor) of what lies there. load() fills live tensors, which are allocated and touched, as at a resume.
"""

import glob
import os
import sys
import time

import h5py
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "python"))
import cairn.torch  # noqa: E402

GROUP_BYTES = 256 << 20  # of tensors that are read back at a time, so that no second state lies in memory


def files_of(path):
    return [path] if os.path.isfile(path) else [f for f in glob.glob(os.path.join(path, "**"), recursive=True) if os.path.isfile(f)]


def sync(path):
    """fsync of all files and of the directories that name them."""
    directories = {os.path.dirname(f) for f in files_of(path)} | {os.path.dirname(path)}
    for name in [*files_of(path), *directories]:
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def bits(tensor):
    """As a NumPy array of the same bits; NumPy has no bfloat16."""
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def groups(tensors):
    group, size = {}, 0
    for key, tensor in tensors.items():
        if group and size + tensor.nbytes > GROUP_BYTES:
            yield group
            group, size = {}, 0
        group[key] = tensor
        size += tensor.nbytes
    yield group


class Blocking:
    """A tool whose save() returns when it is done: it stalls until the state is durable."""

    def save(self, tensors, path):
        start = time.perf_counter()
        self.write(tensors, path)
        sync(path)
        seconds = time.perf_counter() - start
        return seconds, seconds


class TorchSave(Blocking):
    name = "torch.save"

    def write(self, tensors, path):
        torch.save(tensors, path)

    def read_back(self, tensors, path):
        return torch.load(path, mmap=True, weights_only=True).items()

    def load(self, live, path):
        for key, tensor in torch.load(path, weights_only=True).items():
            live[key].copy_(tensor)


class TorchMapped(TorchSave):
    name = "torch.load mmap"

    def load(self, live, path):
        for key, tensor in self.read_back(live, path):
            live[key].copy_(tensor)


class Safetensors(Blocking):
    name = "safetensors"

    def write(self, tensors, path):
        save_file(tensors, path)

    def read_back(self, tensors, path):
        with safe_open(path, "pt") as file:
            for key in file.keys():
                yield key, file.get_tensor(key)

    def load(self, live, path):
        for key, tensor in self.read_back(live, path):
            live[key].copy_(tensor)


class H5py(Blocking):
    name = "h5py"

    def write(self, tensors, path):
        with h5py.File(path, "w") as file:
            for key, tensor in tensors.items():
                file.create_dataset(key, data=bits(tensor))

    def read_back(self, tensors, path):
        with h5py.File(path) as file:
            for key in tensors:
                yield key, torch.from_numpy(file[key][...])

    def load(self, live, path):
        with h5py.File(path) as file:
            for key, tensor in live.items():
                file[key].read_direct(bits(tensor))


class Dcp(Blocking):
    name = "DCP"

    def write(self, tensors, path):
        dcp.save(tensors, checkpoint_id=path, no_dist=True)

    def read_back(self, tensors, path):
        for group in groups(tensors):
            fresh = {key: torch.empty_like(tensor) for key, tensor in group.items()}
            dcp.load(fresh, checkpoint_id=path, no_dist=True)
            yield from fresh.items()

    def load(self, live, path):
        dcp.load(live, checkpoint_id=path, no_dist=True)


class DcpAsync(Dcp):
    """With new staging memory for each save. Reusing it is not possible here: in torch 2.11 DefaultStager closes itself
    after one use, and BlockingAsyncStager's cache pins its memory, which needs a GPU."""

    name = "DCP async"

    def save(self, tensors, path):
        start = time.perf_counter()
        future = dcp.async_save(tensors, checkpoint_id=path, no_dist=True)
        stall = time.perf_counter() - start
        future.result()
        sync(path)
        return stall, time.perf_counter() - start


class CairnTorch:
    """cairn.torch as in a training: the trainer's process copies, its helper writes. The memory for the copy is reused."""

    name = "cairn.torch"

    def save(self, tensors, path):
        start = time.perf_counter()
        saved = cairn.torch.async_save(tensors, path, step=1)
        saved.wait_staged()
        stall = time.perf_counter() - start
        saved.result()
        return stall, time.perf_counter() - start

    def read_back(self, tensors, path):
        for group in groups(tensors):
            fresh = {key: torch.empty_like(tensor) for key, tensor in group.items()}
            cairn.torch.load(fresh, path)
            yield from fresh.items()

    def load(self, live, path):
        cairn.torch.load(live, path)


class CairnTorchLazy(CairnTorch):
    """The same with the optimizer given: the copy runs alongside the training, which waits only for the plan."""

    name = "cairn.torch lazy"

    def save(self, tensors, path):
        optimizer = torch.optim.SGD(list(tensors.values()))
        start = time.perf_counter()
        saved = cairn.torch.async_save(tensors, path, step=1, optimizer=optimizer)
        stall = time.perf_counter() - start
        saved.result()
        return stall, time.perf_counter() - start


class Ours:
    name = "cairn"

    how = "save"

    def __init__(self, shared):
        self.shared = shared

    def save(self, tensors, path):
        seconds = self.shared.ask(self.how, path)
        return seconds["stall"], seconds["durable"]

    def step(self, path):
        (step,) = glob.glob(os.path.join(path, "step-*"))
        return step

    def read_back(self, tensors, path):
        """Not by our own reader: h5py gives the offset of each dataset's bytes."""
        with h5py.File(os.path.join(self.step(path), "shard-00000.h5")) as shard:
            for key, tensor in tensors.items():
                dataset = shard[f"{key}@{','.join('0' * tensor.ndim)}"]
                data = np.fromfile(shard.filename, np.uint8, tensor.nbytes, offset=dataset.id.get_offset())
                yield key, torch.from_numpy(data)

    def load(self, live, path):
        self.shared.ask("load", self.step(path))


class OursLazy(Ours):
    """The copy runs alongside a stand-in for forward and backward that takes ten memcpys of the state."""

    name = "cairn, lazy"
    how = "save_lazy"


PEERS = {kind.name: kind for kind in (CairnTorch, CairnTorchLazy, TorchSave, TorchMapped, Safetensors, H5py, Dcp, DcpAsync)}
