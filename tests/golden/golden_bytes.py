"""Every byte that the commands write, as SHA-256 of each file: they must not change while the code is rearranged.

    golden_bytes.py CAIRN MAKE_STEP DIR   writes into DIR, and prints {file: SHA-256} as JSON

bytes.json beside this has what was printed when the formats were last changed on purpose; tests/cli/test_golden.py compares.
After such a change write it again with this program, and say in the commit which files changed and why.
"""

import hashlib
import json
import pathlib
import subprocess
import sys

GPT = ["--layers", "3", "--vocab", "61"]
# {name: flags of make_step}
NATIVE = {
    "bf16": [*GPT, "--tp", "2", "--pp", "2", "--dp", "2"],
    "fp32": [*GPT, "--dtype", "fp32", "--dp", "3"],
    "fp16": [*GPT, "--dtype", "fp16", "--tp", "4"],
    "packed": [*GPT, "--packed", "--tp", "2"],
    "experts": [*GPT, "--experts", "8", "--tp", "2", "--pp", "3", "--dp", "2", "--ep", "4", "--etp", "1"],
    "split": [*GPT, "--packed", "--split-master", "--pp", "3"],
}
# {name: (source, flags of convert)}; a source is one of NATIVE or of the rows before.
CONVERTED = {
    "native-other": ("bf16", ["--to", "native", "--tp", "1", "--pp", "3", "--dp", "1"]),
    "native-packed": ("packed", ["--to", "native", "--tp", "1", "--pp", "1", "--dp", "2"]),
    "native-joined": ("split", ["--to", "native", "--tp", "2", "--pp", "1", "--dp", "1"]),
    "native-experts": ("experts", ["--to", "native", "--pp", "1", "--ep", "2", "--etp", "2"]),
    "dcp-experts": ("experts", ["--to", "dcp"]),
    "safetensors-experts": ("experts", ["--to", "safetensors"]),
    "native-fp16": ("bf16", ["--to", "native", "--dtype", "fp16"]),
    "dcp": ("bf16", ["--to", "dcp", "--dp", "2"]),
    "dcp-fp32": ("fp32", ["--to", "dcp"]),
    "zero0": ("bf16", ["--to", "megatron-deepspeed", "--tp", "2", "--pp", "1", "--dp", "1", "--zero", "0"]),
    "zero1": ("bf16", ["--to", "megatron-deepspeed", "--tp", "2", "--pp", "3", "--dp", "2", "--zero", "1"]),
    "zero2": ("fp16", ["--to", "megatron-deepspeed", "--tp", "1", "--dp", "4", "--zero", "2"]),
    "zero3": ("bf16", ["--to", "megatron-deepspeed", "--tp", "1", "--pp", "1", "--dp", "3", "--zero", "3"]),
    "universal": ("bf16", ["--to", "universal"]),
    "megatron": ("bf16", ["--to", "megatron", "--tp", "2", "--pp", "3", "--dp", "1"]),
    "megatron-zero1": ("bf16", ["--to", "megatron", "--tp", "1", "--pp", "1", "--dp", "2", "--zero", "1"]),
    "torch-dist": ("bf16", ["--to", "torch-dist", "--tp", "2", "--pp", "1", "--dp", "1", "--zero", "0"]),
    "torch-dist-zero1": ("bf16", ["--to", "torch-dist", "--tp", "1", "--pp", "3", "--dp", "2", "--zero", "1"]),
    "hf": ("bf16", ["--to", "hf"]),
    "safetensors": ("split", ["--to", "safetensors", "--dtype", "fp16"]),
    "from-zero1": ("zero1", ["--to", "native", "--tp", "2", "--pp", "1", "--dp", "1"]),
    "from-zero3": ("zero3", ["--to", "native"]),
    "from-torch-dist": ("torch-dist-zero1", ["--to", "native"]),
    "from-dcp": ("dcp", ["--to", "native"]),
    "from-hf": ("hf", ["--to", "native"]),
}


def write_all(cairn, make_step, directory):
    def run(*args):
        done = subprocess.run([*map(str, args)], cwd=directory, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{args}: status {done.returncode}\n{done.stderr}")

    for name, flags in NATIVE.items():
        run(make_step, name, *flags)
    for name, (source, flags) in CONVERTED.items():
        run(cairn, "convert", source, name, *flags)
    run(cairn, "strip", "bf16", "stripped")
    run(cairn, "reshape", "bf16", "reshaped", "--tp", "4", "--pp", "1", "--dp", "2", "--zero", "1")


def sums(directory):
    root = pathlib.Path(directory)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


if __name__ == "__main__":
    write_all(*(str(pathlib.Path(program).resolve()) for program in sys.argv[1:3]), sys.argv[3])
    print(json.dumps(sums(sys.argv[3]), indent=0))
