"""Jobs of a script whose ranks are forked, so that its imports are paid for once."""

import contextlib
import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import traceback

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from ranks import unused_port  # noqa: E402


def run_jobs(job, before=lambda: None):
    """The script's arguments are DIR JSON, which is {NAME: spec}: job(rank, spec, DIR/NAME, port) on each of the spec's "world" ranks,
    whose output is in DIR/NAME-RANK.log. A spec's "before" is a command that makes what its job loads. `before` is called by each rank."""
    gc.freeze()  # a forked rank need not look at what was imported
    failed = []
    for name, spec in json.loads(sys.argv[2]).items():
        if "before" in spec:
            subprocess.run(spec["before"], check=True, stdout=subprocess.DEVNULL)
        port = unused_port()
        out = os.path.join(sys.argv[1], name)
        ranks = [fork(lambda rank=rank: (before(), job(rank, spec, out, port)), f"{out}-{rank}.log") for rank in range(spec["world"])]
        if not all([succeeded(rank) for rank in ranks]):
            failed.append(name)
            with open(f"{out}-0.log") as log:
                sys.stderr.write(log.read()[-3000:])
    sys.exit(f"failed: {failed}" if failed else 0)


def fork(work, log):
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def succeeded(rank):
    """Waits for it, and ends the processes that it leaves: Megatron's queue would outlive it."""
    _, status = os.waitpid(rank, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank, signal.SIGKILL)
    return status == 0
