"""Conversions between formats of torch and DeepSpeed: ours and their own tools, against one read of the bytes that are
needed and one write of the result, taken in the same round (turns.py).

    convert_speed.py [--bytes 2GB] [--rounds 5] [--no-peers]
"""

import os
import subprocess
import sys

from peers import files_of
from save_speed import remove
from sources import CAIRN, convert, random_step, to_universal, zero1, zero2, zero_to_safetensors
from turns import Contender, Job, Limit, main

DCP_TO_SAFETENSORS = """
import sys, torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2] + ".pt")
state = torch.load(sys.argv[2] + ".pt", weights_only=False)
save_file(state["model"], sys.argv[2])
"""


def size_of_result(command, out):
    """The bytes of our output: a tied embedding, for example, is on the first and the last stage."""
    subprocess.run([part.replace("OUT", out) for part in command], check=True, stdout=subprocess.DEVNULL)
    size = sum(map(os.path.getsize, files_of(out)))
    remove(out)
    return size


def jobs(d, size, peers):
    step, weights, dcp, zero_2, zero_1 = (os.path.join(d, name) for name in ("run", "weights", "dcp", "zero2", "zero1"))
    random_step(step, size)
    convert(step, weights, "--to", "native", "--dtype", "fp32", "--tp", "1", "--pp", "1", "--dp", "1")
    convert(weights, dcp, "--to", "dcp", "--dp", "4")
    zero2(step, zero_2)
    zero1(step, zero_1)
    bytes_of = {path: sum(map(os.path.getsize, files_of(path))) for path in (dcp, zero_1)}
    count = bytes_of[dcp] // 4

    def job(name, source, read, verb, flags, their_name, theirs):
        ours = [CAIRN, verb, source, "OUT", *flags]
        contenders = [Contender("cairn", source, ours), Contender(their_name, source, theirs)]
        limit = Limit(source, read, size_of_result(ours, os.path.join(d, "out")))
        return Job(name, limit, contenders if peers else contenders[:1])

    yield job("DCP fp32 -> safetensors", dcp, bytes_of[dcp], "convert", ["--to", "safetensors"],
              "dcp_to_torch_save + save_file", [sys.executable, "-c", DCP_TO_SAFETENSORS, dcp, "OUT"])
    yield job("ZeRO-2 -> fp16 safetensors", zero_2, 4 * count, "strip", ["--dtype", "fp16", "--format", "safetensors"],
              "zero_to_fp32 + save_file", zero_to_safetensors(zero_2))
    yield job("ZeRO-1 TP2 PP2 -> TP1 PP4", zero_1, bytes_of[zero_1], "convert",
              ["--to", "megatron-deepspeed", "--zero", "1", "--tp", "1", "--pp", "4", "--dp", "2"],
              "ds_to_universal", to_universal(zero_1))


if __name__ == "__main__":
    main(__doc__, jobs)
