"""torch_job.py RUN STEPS: a job of torchrun that saves each step with cairn.torch, and resumes where a run is there."""

import os
import sys

import cairn.torch
import torch
import torch.distributed as dist

run, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
state = {"weight": torch.zeros(64, 64), "step": 0}
if os.path.isdir(run):
    cairn.torch.load(state, run)
for step in range(state["step"] + 1, state["step"] + 1 + steps):
    state["weight"] += step
    state["step"] = step
    cairn.torch.save(state, run, step=step)
    print("saved", step, flush=True)
dist.destroy_process_group()
