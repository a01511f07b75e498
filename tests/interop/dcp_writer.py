"""Trainings under FSDP2 on worlds of 2 and 4, saved with torch.distributed.checkpoint; and what is in them, as one file.

    dcp_writer.py DIR

Groups are vectors, then matrices; a layer has had fewer updates. Writes DIR/nested{2,4}, DIR/flat{2,4} (both spellings of
optimizer states) and DIR/full{2,4}.pt; DIR/NAME and DIR/NAME.pt of other optimizers, with a scheduler and losses beside
them.
"""

import sys

import torch
import torch._dynamo  # noqa: F401 - which each forked rank would import for itself
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(world):
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)).bfloat16()
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    vectors, matrices = ([p for p in model.parameters() if (p.dim() == 1) == which] for which in (True, False))
    return model, torch.optim.AdamW([{"params": vectors, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.5}], lr=1e-2)


def run(rank, world, directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/store{world}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model, optimizer = build(world)
    for late in (True, False):
        model(torch.arange(24.0).reshape(4, 6).bfloat16() / 24).float().sum().backward()
        for p in model[2].parameters() if late else ():  # unfrozen late: its steps are fewer
            p.grad = None
        optimizer.step()
        optimizer.zero_grad()
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states, "train": {"iteration": 7, "name": "x"}},
             checkpoint_id=f"{directory}/nested{world}")
    flat_weights, flat = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    dcp.save({"model": flat_weights, "optimizer": flat}, checkpoint_id=f"{directory}/flat{world}")
    weights, states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save({"model": weights, "optimizer": states}, f"{directory}/full{world}.pt")
    others(rank, world, directory)
    dist.barrier()
    dist.destroy_process_group()


def others(rank, world, directory):
    if world != 2:
        return
    for name, make in {"SGD": lambda p: torch.optim.SGD(p, lr=0.25, momentum=0.9), "NAdam": lambda p: torch.optim.NAdam(p, lr=0.25),
                       "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.25),
                       "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.25, amsgrad=True)}.items():
        model, _ = build(world)
        optimizer = make(model.parameters())
        model(torch.arange(24.0).reshape(4, 6).bfloat16() / 24).float().sum().backward()
        optimizer.step()
        weights, states = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=name == "amsgrad"))
        dcp.save({"model": weights, "optimizer": states,
                  "train_state": {"loss": torch.tensor(1.5), "losses": torch.ones(4)},
                  "scheduler": {"last_epoch": 3}}, checkpoint_id=f"{directory}/{name}")
        weights, states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
        if rank == 0:
            torch.save({"model": weights, "optimizer": states}, f"{directory}/{name}.pt")


if __name__ == "__main__":
    for size in (2, 4):
        mp.start_processes(run, (size, sys.argv[1]), nprocs=size, start_method="fork")
