"""A mixture of experts in the shape of Mixtral, with its optimizer, between Hugging Face, Megatron's torch_dist and native
steps at other EP × TP × PP, against one read of the bytes that are needed and one write of the result (turns.py).

    mixture_speed.py [--bytes 20GB] [--rounds 5]

Hugging Face's form has only weights; from torch_dist the masters are read too, and compared with them. Every command reads
its result back. The disk needs room for twice the state.
"""

import json
import os
import shutil
import subprocess

from convert_speed import size_of_result
from sources import BYTES_PER_PARAMETER, CAIRN, MAKE_STEP, VOCABULARY, convert
from turns import Contender, Job, Limit, main

EXPERTS = 8
AT_EP4 = ("--ep", "4", "--dp", "4", "--tp", "1", "--pp", "2")
AT_TP2 = ("--ep", "2", "--etp", "2", "--tp", "2", "--dp", "2", "--pp", "1")


def parameters(config):
    hidden, ffn, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    layer = hidden * (2 * hidden + 2 * hidden // 4 + 3 * EXPERTS * ffn + EXPERTS + 2)
    return config["num_hidden_layers"] * layer + 2 * vocabulary * hidden + hidden


def mixtral(size):
    """The config.json of a model whose state has about this many bytes."""
    def config(hidden, layers):
        return {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": hidden,
                "intermediate_size": 7 * hidden // 2, "num_hidden_layers": layers, "num_attention_heads": 16,
                "num_key_value_heads": 4, "vocab_size": VOCABULARY, "num_local_experts": EXPERTS,
                "num_experts_per_tok": 2, "max_position_embeddings": 4096, "rope_theta": 1e6, "sliding_window": None,
                "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}
    hidden = 1024
    while hidden > 64 and parameters(config(hidden, 4)) * BYTES_PER_PARAMETER > size:
        hidden //= 2
    layers = 4
    while parameters(config(hidden, layers + 2)) * BYTES_PER_PARAMETER <= size:
        layers += 2
    return config(hidden, layers)


def jobs(d, size, peers):
    run, dist, weights = (os.path.join(d, name) for name in ("run", "dist", "hf"))
    config, path = mixtral(size), os.path.join(d, "config.json")
    with open(path, "w") as file:
        json.dump(config, file)
    subprocess.run([MAKE_STEP, run, "--config", path, *AT_EP4], check=True)
    all_bytes, weight_bytes = parameters(config) * BYTES_PER_PARAMETER, parameters(config) * 2

    def job(name, source, read, *flags):
        command = [CAIRN, "convert", source, "OUT", *flags]
        size = size_of_result(command, os.path.join(d, "out"))
        return Job(name, Limit(source, read, size), [Contender("cairn", source, command)])

    yield job("native -> torch_dist", run, all_bytes, "--to", "torch-dist", *AT_TP2)
    convert(run, dist, "--to", "torch-dist", *AT_TP2)
    convert(run, weights, "--to", "hf")
    shutil.rmtree(run)
    yield job("torch_dist -> native", dist, all_bytes, "--to", "native", *AT_EP4)
    yield job("torch_dist -> Hugging Face", dist, 3 * weight_bytes, "--to", "hf")
    yield job("Hugging Face -> native", weights, weight_bytes, "--to", "native", *AT_EP4)


if __name__ == "__main__":
    main(__doc__, jobs, size="20GB")
