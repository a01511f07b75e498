"""Reshaping a step of TP 2 and PP 2 to TP 1 and PP 4, and stripping it to fp16: ours and what others do instead, against
one read of the bytes that are needed and one write of the result, taken in the same round (turns.py).

    reshape_speed.py [--bytes 2GB] [--rounds 5] [--no-peers]

All start from the same parameters, each in its own format: ours from the native step; DeepSpeed's ds_to_universal from
ZeRO-1 of TP 2, PP 2 and DP 2; its zero_to_fp32, which takes neither TP nor PP, from ZeRO-2 of DP 4; torch's DCP from a
checkpoint of TP 2 and PP 2, by one process without a process group that loads every tensor whole (dcp.load) and saves
it (dcp.save, one file); and a plain loop from one file of torch.save for each rank, by torch.load, torch.cat and
torch.save of one file a stage, or of one fp16 file. The limit of the strip reads the masters only.

A time counts once the digests of all tensors of the result are those of the source, read with h5py, torch or
safetensors. DeepSpeed's results have names of their own, so of these the set of digests is compared, queries, keys and
values apart; what ds_to_universal leaves has no bf16 weights beside the masters.
"""

import glob
import json
import os
import shutil
import sys

import h5py
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from peers import Dcp, files_of
from safetensors import safe_open
from sources import CAIRN, convert, random_step, to_universal, zero1, zero2, zero_to_safetensors
from trained_state import digest
from turns import Contender, Job, Limit, main

STATES = ("master", "exp_avg", "exp_avg_sq")
DTYPES = {"weight": torch.bfloat16, **dict.fromkeys(STATES, torch.float32)}
RESHARD = """
import sys, torch
import torch.distributed.checkpoint as dcp
about = dcp.FileSystemReader(sys.argv[1]).read_metadata().state_dict_metadata
state = {name: torch.empty(a.size, dtype=a.properties.dtype) for name, a in about.items() if hasattr(a, "size")}
dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)
dcp.save(state, checkpoint_id=sys.argv[2], no_dist=True)
"""
LOAD_RANKS = """
import glob, os, sys, torch
pieces = {}
for rank in sorted(glob.glob(sys.argv[1] + "/*.pt")):
    for key, tensor in torch.load(rank, weights_only=True).items():
        name, offset = key.split("@")
        pieces.setdefault(name, []).append(([int(start) for start in offset.split(",")], tensor))

def whole(parts):
    parts.sort(key=lambda part: part[0])
    first, last = parts[0][0], parts[-1][0]
    return torch.cat([tensor for _, tensor in parts], next((d for d in range(len(first)) if first[d] != last[d]), 0))
"""
RECUT = LOAD_RANKS + """
layer = {name: int(name.split(".")[1]) for name in pieces if "/layers." in name}
per_stage = (max(layer.values()) + 1) // 4
stage = {name: layer[name] // per_stage if name in layer else 3 * ("/final_norm." in name) for name in pieces}
os.mkdir(sys.argv[2])
for s in range(4):
    torch.save({name: whole(pieces.pop(name)) for name in stage if stage[name] == s}, f"{sys.argv[2]}/stage-{s}.pt")
"""
CAST = LOAD_RANKS + """
torch.save({name: whole(parts).half() for name, parts in pieces.items() if name.startswith("master/")}, sys.argv[2])
"""


def python(program, source):
    return [sys.executable, "-c", program, source, "OUT"]


def step_of(run):
    (step,) = glob.glob(os.path.join(run, "step-*"))
    return step


def native(run):
    """h5py reads bf16 as fp32."""
    with h5py.File(os.path.join(step_of(run), "index.h5")) as index:
        for role, dtype in DTYPES.items():
            for name, dataset in index[role].items():
                yield f"{role}/{name}", torch.from_numpy(dataset[...]).to(dtype)


def torch_files(path):
    for file in files_of(path):
        yield from torch.load(file, mmap=True, weights_only=True).items()


def dcp_tensors(path):
    """The counters of the optimizer's steps are left out."""
    about = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {name: torch.empty(a.size, dtype=a.properties.dtype) for name, a in about.items()
               if hasattr(a, "size") and not name.endswith(".step")}
    for key, tensor in Dcp().read_back(tensors, path):
        if key.startswith("model."):
            yield "weight/" + key.removeprefix("model."), tensor
        else:
            name, role = key.removeprefix("optimizer.state.").rsplit(".", 1)
            yield role.removesuffix("_param") + "/" + name, tensor


def unfused(name, tensor, heads):
    if "query_key_value" not in name:
        return [tensor]
    return [part.flatten(0, 1) for part in tensor.unflatten(0, (heads, 3, -1)).unbind(1)]


def universal(path, heads):
    for file in glob.glob(os.path.join(path, "zero", "*", "*.pt")):
        name, role = os.path.split(file.removesuffix(".pt"))
        if role != "step":
            param = torch.load(file, weights_only=True)["param"]
            yield from (("master" if role == "fp32" else role, part) for part in unfused(name, param, heads))


def safetensors(path):
    with safe_open(path, "pt") as file:
        for name in file.keys():
            yield "master/" + name, file.get_tensor(name)


def released(path):
    return safetensors(os.path.join(path, "model.safetensors"))


def deepspeed_safetensors(path, heads):
    for name, tensor in safetensors(path):
        yield from (("master", part) for part in unfused(name, tensor, heads))


def digests(tensors):
    return sorted((key, digest(tensor)) for key, tensor in tensors)


def unnamed(wanted, roles):
    return sorted((key.split("/")[0], value) for key, value in wanted if key.split("/")[0] in roles)


def equal(read, wanted, *args):
    return lambda out: digests(read(out, *args)) == wanted


def save_ranks(run, target):
    """Each shard as a file of torch.save: {"role/name@offset": tensor}."""
    os.mkdir(target)
    for path in glob.glob(os.path.join(step_of(run), "shard-*.h5")):
        tensors = {}
        with h5py.File(path) as shard:
            for role, dtype in DTYPES.items():
                for name, dataset in shard[role].items():
                    data = np.fromfile(path, np.uint8, dataset.size * dtype.itemsize, offset=dataset.id.get_offset())
                    tensors[f"{role}/{name}"] = torch.from_numpy(data).view(dtype).view(dataset.shape)
        torch.save(tensors, os.path.join(target, os.path.basename(path) + ".pt"))


def reshape_job(d, run, ranks, heads, peers):
    wanted = digests(native(run))
    flags = ["reshape", run, "OUT", "--tp", "1", "--pp", "4", "--dp", "1"]
    contenders = [Contender("cairn reshape", run, [CAIRN, *flags], equal(native, wanted)),
                  Contender("cairn reshape --no-read-back", run, [CAIRN, *flags, "--no-read-back"], equal(native, wanted))]
    if peers:
        zero, torch_dcp = os.path.join(d, "zero1"), os.path.join(d, "dcp")
        zero1(run, zero)
        convert(run, torch_dcp, "--to", "dcp", "--tp", "2", "--pp", "2", "--dp", "1")
        contenders += [
            Contender("ds_to_universal", zero, to_universal(zero), equal(universal, unnamed(wanted, STATES), heads)),
            Contender("dcp.load + dcp.save", torch_dcp, python(RESHARD, torch_dcp), equal(dcp_tensors, wanted)),
            Contender("torch.load, cat, torch.save", ranks, python(RECUT, ranks), equal(torch_files, wanted))]
    size = sum(map(os.path.getsize, files_of(run)))
    return Job("reshape TP2 PP2 -> TP1 PP4", Limit(run, size, size), contenders)


def strip_job(d, run, ranks, heads, peers):
    wanted = digests((key, tensor.half()) for key, tensor in native(run) if key.startswith("master/"))
    contenders = [Contender("cairn strip", run, [CAIRN, "strip", run, "OUT", "--dtype", "fp16", "--format", "safetensors"],
                            equal(released, wanted))]
    if peers:
        zero = os.path.join(d, "zero2")
        zero2(run, zero)
        contenders += [
            Contender("zero_to_fp32, half, save_file", zero, zero_to_safetensors(zero),
                      equal(deepspeed_safetensors, unnamed(wanted, STATES), heads)),
            Contender("torch.load, cat, half, torch.save", ranks, python(CAST, ranks), equal(torch_files, wanted))]
    with h5py.File(os.path.join(step_of(run), "index.h5")) as index:
        parameters = sum(dataset.size for dataset in index["master"].values())
    return Job("strip to fp16", Limit(run, 4 * parameters, 2 * parameters), contenders)


def jobs(d, size, peers):
    run, ranks = os.path.join(d, "run"), os.path.join(d, "ranks")
    random_step(run, size)
    with open(os.path.join(step_of(run), "manifest.json")) as manifest:
        heads = json.load(manifest)["model"]["num_attention_heads"]
    if peers:
        save_ranks(run, ranks)
    yield reshape_job(d, run, ranks, heads, peers)
    for name in ("zero1", "dcp"):  # make room for what the next job starts from
        shutil.rmtree(os.path.join(d, name), ignore_errors=True)
    yield strip_job(d, run, ranks, heads, peers)


if __name__ == "__main__":
    main(__doc__, jobs)
