"""torch_job.py RUN STEPS [SECONDS [LOCAL REDUNDANCY]]: a job of torchrun that saves each step with cairn.torch, and resumes if there is a
step, whose bits it checks. A save that fails is printed, and the job continues. SECONDS (600): the deadline of saves and of torch's
collectives. LOCAL: each step is saved there, and every fifth in the run."""

import contextlib
import datetime
import sys
import time

import cairn.torch
import torch
import torch.distributed as dist

run, steps, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3] if len(sys.argv) > 3 else 600)
local = {"local": sys.argv[4], "redundancy": sys.argv[5]} if len(sys.argv) > 4 else {}
every = {"every": 5} if local else {}
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
torch.manual_seed(0)
state = {"weight": torch.zeros(64, 64), "step": 0}
with contextlib.suppress(FileNotFoundError):
    resumed = cairn.torch.load(state, run, deadline=seconds, **local)
    assert resumed == state["step"] and torch.equal(state["weight"], torch.full((64, 64), float(sum(range(resumed + 1))))), resumed
    print(f"resumed from {resumed}", flush=True)
for step in range(state["step"] + 1, state["step"] + 1 + steps):
    state["weight"] += step
    state["step"] = step
    dist.barrier()
    begin = time.monotonic()
    error = cairn.torch.save(state, run, step=step, deadline=seconds, keep_last=50, on_error="warn", **local, **every).error
    took = f"{step} in {time.monotonic() - begin:.2f} s"
    print(f"failed {took}: {type(error).__name__}: {error}" if error else f"saved {took}", flush=True)
dist.destroy_process_group()
