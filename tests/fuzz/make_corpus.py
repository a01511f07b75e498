"""Makes the corpora of the fuzz targets again: small files of the real programs, and the attacks of attacks.py.

    make_corpus.py [--attacks] [DIR]     DIR: tests/fuzz/corpus by default

Runs in the environment that scripts/setup makes; --attacks alone needs no more than Python. In the corpora attacks are
attack-NAME, and what fuzzing found is finding-NAME and cannot be made again. Our own formats have only attacks:
each target makes sound files with our own writers.
"""

import argparse
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict

import attacks

HERE = os.path.dirname(os.path.abspath(__file__))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def saved(value, **kwargs):
    import torch
    file = io.BytesIO()
    torch.save(value, file, **kwargs)
    return file.getvalue()


def torch_files():
    """Zips, streams, and the pickles in them."""
    import numpy
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    shared = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    values = {
        "state-dict": model.state_dict(),
        "training": {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": 7,
                     "args": argparse.Namespace(num_layers=2, params_dtype=torch.bfloat16), "lr": 1e-3,
                     "rng": torch.get_rng_state()[:16].clone(), "random": ("MT19937", 2 ** 70, -1, None, True)},
        "views": {"a": shared, "b": shared.t(), "c": shared[1:, ::2], "p": torch.nn.Parameter(torch.ones(2)),
                  "meta": torch.empty(4, device="meta"), "scalar": numpy.float64(2.5), "int": numpy.int32(-3),
                  "bytes": b"\x00\xff", "set": {1, 2}, "size": torch.Size([2, 3])},
    }
    zips = {name: saved(value) for name, value in values.items()}
    # The pickles of numpy arrays call what is not known here: kept, as an object that has a name.
    zips["numpy-array"] = saved({"a": numpy.arange(3)})
    streams = {"stream-" + name: saved(value, _use_new_zipfile_serialization=False)
               for name, value in values.items() if name != "views"}
    pickles = {}
    for name, data in zips.items():
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            pickles[name] = file.read("archive/data.pkl")
    plain = {"a": [1, 2.5, None, True, 2 ** 70, "x", b"y", (1, (2, 3)), {4}, frozenset([5]), bytearray(b"z")],
             "b": OrderedDict(c=argparse.Namespace(d=1))}
    for protocol in (2, 3, 4, 5):
        pickles[f"plain-protocol-{protocol}"] = pickle.dumps(plain, protocol=protocol)
    return zips, streams, pickles


def dcp(work):
    """Directories of torch.distributed.checkpoint: of one process, and of two with FSDP."""
    import torch
    import torch.distributed.checkpoint as checkpoint
    model = torch.nn.Linear(3, 2)
    checkpoint.save({"model": model.state_dict(), "train": {"iteration": 7, "name": "x"}},
                    checkpoint_id=f"{work}/dcp", no_dist=True)
    subprocess.run([sys.executable, f"{HERE}/../interop/dcp_writer.py", work], check=True)
    return {name: f"{work}/{name}" for name in ("dcp", "nested2", "flat2")}


def hugging_face(work):
    """A tiny GPT-2 as one safetensors file, in several of them, and as pickles."""
    import torch
    import transformers
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=4, vocab_size=10)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(f"{work}/hf")
    model.save_pretrained(f"{work}/hf-shards", max_shard_size="2KB")
    os.makedirs(f"{work}/hf-bin")
    state = model.transformer.state_dict()
    weight_map = {}
    for i, name in enumerate(state):
        weight_map.setdefault(name, f"pytorch_model-{i % 2 + 1:05}-of-00002.bin")
    for file in sorted(set(weight_map.values())):
        torch.save({n: state[n] for n in state if weight_map[n] == file}, f"{work}/hf-bin/{file}")
    with open(f"{work}/hf-bin/pytorch_model.bin.index.json", "w") as file:
        json.dump({"metadata": {"total_size": 4 * sum(t.numel() for t in state.values())}, "weight_map": weight_map}, file)
    config.save_pretrained(f"{work}/hf-bin")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 10,
             "intermediate_size": 8, "max_position_embeddings": 4, "num_experts_per_tok": 1}
    latent = {"moe_intermediate_size": 8, "n_routed_experts": 2, "n_shared_experts": 1, "first_k_dense_replace": 0, "n_group": 1,
              "topk_group": 1, "kv_lora_rank": 4, "q_lora_rank": 4, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 4}
    mixtral = transformers.MixtralForCausalLM(transformers.MixtralConfig(**small, num_local_experts=2))
    mixtral.save_pretrained(f"{work}/hf-mixtral")
    mixtral.save_pretrained(f"{work}/hf-mixtral-fused", save_original_format=False)
    transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**small | latent)).save_pretrained(f"{work}/hf-deepseek")
    return {name: f"{work}/{name}" for name in ("hf", "hf-shards", "hf-bin", "hf-mixtral", "hf-mixtral-fused", "hf-deepseek")}


def deepspeed_and_megatron(work):
    script = f"{HERE}/../interop"
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}, "bf16": {"enabled": True}}
    spec = {f"zero{stage}": {"world": 2, "pp": 1, "tp": 1, "engine": "plain",
                             "config": config | {"zero_optimization": {"stage": stage}}} for stage in (1, 3)}
    subprocess.run([sys.executable, f"{script}/deepspeed_writer.py", work, json.dumps(spec)], check=True)
    subprocess.run([sys.executable, f"{script}/megatron_writer.py", work,
                    json.dumps({"megatron": {"world": 1, "tp": 1, "pp": 1}})], check=True)
    return {"zero1": f"{work}/zero1", "zero3": f"{work}/zero3", "megatron": f"{work}/megatron/iter_0000003"}


def packed(directory):
    """A directory as one input of foreign_dir.cc. Its checksums are left out, so that its bytes may be changed; scripts
    that DeepSpeed adds are not part of it."""
    out = b""
    for folder, _, names in sorted(os.walk(directory)):
        for name in sorted(n for n in names if not n.endswith(".py")):
            path = os.path.relpath(os.path.join(folder, name), directory).encode()
            data = without_checksums(read(os.path.join(folder, name)))
            out += struct.pack("<H", len(path)) + path + struct.pack("<I", len(data)) + data
    return out


def without_checksums(data):
    """Sets the checksums in a zip's directory to 0, which is what a writer leaves that has none."""
    data, at = bytearray(data), 0
    while (at := data.find(b"PK\1\2", at)) >= 0:
        data[at + 16:at + 20] = b"\0" * 4
        at += 4
    return bytes(data)


def indexed_datasets(work):
    import numpy
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    made = {}
    for name, dtype, multimodal in (("uint16", numpy.uint16, False), ("int32", numpy.int32, False),
                                    ("multimodal", numpy.int32, True)):
        builder = IndexedDatasetBuilder(f"{work}/{name}.bin", dtype=dtype, multimodal=multimodal)
        for length in (5, 1, 7):
            builder.add_item(torch.arange(length))
            builder.end_document()
        builder.finalize(f"{work}/{name}.idx")
        made[name] = read(f"{work}/{name}.idx")
    return made


def real(work):
    import torch
    from safetensors.torch import save
    zips, streams, pickles = torch_files()
    directories = dcp(work) | hugging_face(work) | deepspeed_and_megatron(work)
    types = {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.ones(0, 5),
             "d": torch.tensor(1, dtype=torch.int64)}
    return {
        "zip": zips,
        "pickle": pickles,
        "torch_file": {name: without_checksums(data) for name, data in zips.items()} | streams,
        "dcp_metadata": {name: read(f"{path}/.metadata") for name, path in directories.items()
                         if os.path.exists(f"{path}/.metadata")},
        "safetensors": {"types": save(types, {"format": "pt"})} | {
            name: read(f"{directories[directory]}/model.safetensors") for name, directory in (("gpt2", "hf"), ("mixtral", "hf-mixtral"))},
        "weight_index": {"safetensors": read(f"{directories['hf-shards']}/model.safetensors.index.json"),
                         "pickles": read(f"{directories['hf-bin']}/pytorch_model.bin.index.json")},
        "indexed_dataset": indexed_datasets(work),
        "foreign_dir": {name: packed(path) for name, path in directories.items() if name not in ("nested2", "flat2")},
    }


def hostile(state_dict):
    """`state_dict`: a sound pickle, for zips around it."""
    zips = attacks.zips(state_dict)
    pickles = attacks.pickles()
    pointer = {"git-lfs-pointer": attacks.LFS}
    return {
        "zip": zips,
        "pickle": pickles,
        "torch_file": {name: zips[name] for name in zips if name.startswith(("storage", "tensor", "torchscript", "ustar", "zeros"))} |
                      {name: pickles[name] for name in ("reduce-posix-system", "shape-overflows", "shared-tensors")} | pointer,
        "dcp_metadata": attacks.dcp_metadata(),
        "safetensors": attacks.safetensors(),
        "weight_index": attacks.weight_index(),
        "manifest": attacks.json_files(),
        "archive_record": attacks.archive_record(),
        "indexed_dataset": attacks.indexed_dataset(),
        "foreign_dir": attacks.directories(),
        **{name: pointer for name in ("step_index", "sidecars", "report_log", "report_table")},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dir", nargs="?", default=f"{HERE}/corpus")
    parser.add_argument("--attacks", action="store_true", help="leave the real programs' files as they are")
    args = parser.parse_args()
    files = {}
    if not args.attacks:
        with tempfile.TemporaryDirectory() as work:
            files = {f"{target}/{name}": data for target, some in real(work).items() for name, data in some.items()}
    sound = files.get("pickle/state-dict") or read(f"{args.dir}/pickle/state-dict")
    for target, some in hostile(sound).items():
        files |= {f"{target}/attack-{name}": data for name, data in some.items()}
    for path, data in files.items():
        os.makedirs(os.path.dirname(f"{args.dir}/{path}"), exist_ok=True)
        with open(f"{args.dir}/{path}", "wb") as file:
            file.write(data)


if __name__ == "__main__":
    main()
