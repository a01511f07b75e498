"""Sources for the benchmarks of conversions: a random GPT, the same in other formats, and DeepSpeed's own tools."""

import os
import subprocess
import sys

CAIRN = os.environ["CAIRN"]
MAKE_STEP = os.environ.get("CAIRN_MAKE_STEP") or os.path.join(os.path.dirname(CAIRN), "make_step")
BYTES_PER_PARAMETER = 14  # bf16 weights, fp32 masters and moments
VOCABULARY = 32000
ZERO_TO_SAFETENSORS = """
import sys, torch
from safetensors.torch import save_file
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
state = get_fp32_state_dict_from_zero_checkpoint(sys.argv[1])
save_file({name: value.half().contiguous() for name, value in state.items()}, sys.argv[2])
"""


def random_step(path, size):
    """A step of TP 2 and PP 2. Masters of trained weights round to them, as in a real checkpoint."""
    parameters, hidden = size // BYTES_PER_PARAMETER, 1024
    while hidden > 32 and VOCABULARY * hidden + 4 * 12 * hidden * hidden > parameters:
        hidden //= 2
    layers = max(0, (parameters - VOCABULARY * hidden) // (12 * hidden * hidden)) // 4 * 4 or 4
    subprocess.run([MAKE_STEP, path, "--layers", str(layers), "--hidden", str(hidden), "--ffn", str(4 * hidden),
                    "--vocab", str(VOCABULARY), "--tp", "2", "--pp", "2"], check=True, stdout=subprocess.DEVNULL)


def convert(source, target, *flags):
    subprocess.run([CAIRN, "convert", source, target, *flags], check=True, capture_output=True)


def zero1(source, target):
    convert(source, target, "--to", "megatron-deepspeed", "--zero", "1", "--tp", "2", "--pp", "2", "--dp", "2")


def zero2(source, target):
    """Without TP and PP, as zero_to_fp32 takes it."""
    convert(source, target, "--to", "megatron-deepspeed", "--zero", "2", "--tp", "1", "--pp", "1", "--dp", "4")


def to_universal(checkpoint):
    """The command of DeepSpeed's ds_to_universal."""
    (step,) = (name for name in os.listdir(checkpoint) if name.startswith("global_step"))
    return [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", os.path.join(checkpoint, step),
            "--output_folder", "OUT"]


def zero_to_safetensors(checkpoint):
    """The command that makes fp16 safetensors with DeepSpeed's zero_to_fp32."""
    return [sys.executable, "-c", ZERO_TO_SAFETENSORS, checkpoint, "OUT"]
