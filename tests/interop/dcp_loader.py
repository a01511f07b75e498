"""Loads a checkpoint of dcp_writer.py's training, written by cairn, into FSDP2 on worlds of 2 and 3, and holds it against
the whole state that dcp_writer.py left.

    dcp_loader.py DIR CHECKPOINT

Makes DIR/loaded{2,3} where all is equal, the next step included.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from dcp_writer import build
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict


def step(model, optimizer):
    model(torch.arange(24.0).reshape(4, 6).bfloat16() / 24).float().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def run(rank, world, directory, checkpoint):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/load{world}", rank=rank, world_size=world)
    torch.manual_seed(9)
    model, optimizer = build(world)
    step(model, optimizer)  # so that there are states to load into
    weights, states = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": states, "train": {"iteration": 0}}
    dcp.load(state, checkpoint_id=checkpoint)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert state["train"]["iteration"] == 7
    full = torch.load(f"{directory}/full4.pt", weights_only=False)
    weights, states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        assert equal(weights, full["model"])
        assert equal(states["state"], full["optimizer"]["state"])
        assert equal(states["param_groups"], full["optimizer"]["param_groups"])
    dist.barrier()
    step(model, optimizer)
    if rank == 0:
        os.mkdir(f"{directory}/loaded{world}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for size in (2, 3):
        mp.start_processes(run, (size, *sys.argv[1:]), nprocs=size, start_method="fork")
