"""torch_job.py RUN STEPS: a job of torchrun that saves each step with cairn.torch, and resumes if there is a step. A save that fails is
printed, and the job continues."""

import contextlib
import sys
import time

import cairn.torch
import torch
import torch.distributed as dist

run, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
state = {"weight": torch.zeros(64, 64), "step": 0}
with contextlib.suppress(FileNotFoundError):
    cairn.torch.load(state, run)
for step in range(state["step"] + 1, state["step"] + 1 + steps):
    state["weight"] += step
    state["step"] = step
    dist.barrier()
    begin = time.monotonic()
    try:
        cairn.torch.save(state, run, step=step)
        print(f"saved {step} in {time.monotonic() - begin:.2f} s", flush=True)
    except (cairn.torch.SaveFailed, OSError) as error:
        print(f"failed {step} in {time.monotonic() - begin:.2f} s: {type(error).__name__}: {error}", flush=True)
dist.destroy_process_group()
