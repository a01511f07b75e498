"""DeepSpeed trainings that each leave a checkpoint, and next to it the values that their ranks have.

    deepspeed_writer.py DIR JSON

JSON: {NAME: {"world": 4, "pp": 2, "tp": 1, "engine": "pipe" | "own" (a pipeline of other modules) | "plain" | "tied" | "mixture",
"config": {...deepspeed...}}}. Writes DIR/NAME (save_checkpoint) and DIR/NAME-known-RANK.pt; "optimizer", "optimizer_args",
"states" name another optimizer of torch's and its states, "frozen" the start of names that are not trained, "buffers" some of
several types, with "load": DIRECTORY instead of a training from the start only the latter. "more": N steps follow, their
losses in DIR/NAME-losses-RANK.json, what is known then in DIR/NAME-after-RANK.pt. Engine "gpt" is a pipeline that computes
what GPT-2 does, on "batches": FILE, token lists of each step, "done" of them before it was loaded; "schedule": facts of its
learning rate, which the checkpoint must have too. Known is {name: {"offset", "shape" (global), "weight", "fp32",
"exp_avg", "exp_avg_sq"}} in the names of Megatron's modules with global layer numbers. The model has the modules, names and cuts of
Megatron's GPT; what the others compute is of no matter, only that every parameter gets a gradient of its own. Ranks are forked,
so that the imports are paid for once.
"""

import argparse
import json
import math
import os

os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1")

import deepspeed  # noqa: E402
import deepspeed.module_inject.auto_ep_layer  # noqa: E402, F401 - here and below what each forked rank would import for itself
import deepspeed.runtime.zero.muon.original_muon  # noqa: E402, F401 - and with it torch's compiler
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401
import torch.utils.cpp_extension  # noqa: E402, F401
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec  # noqa: E402
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology  # noqa: E402
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state  # noqa: E402
from forked_ranks import run_jobs  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: E402

LAYERS, HIDDEN, HEADS, FFN, VOCAB, PADDED, POSITIONS = 3, 12, 4, 20, 29, 32, 7
RANK = WORLD = TP = tp_rank = 0
tp_group = None
OUT = ""
SPEC = {}


def start_value(name, shape):
    generator = torch.Generator().manual_seed(sum(ord(c) * 31 ** i for i, c in enumerate(name)) % 2 ** 31)
    value = torch.randn(shape, generator=generator) * 0.1
    if name.endswith("word_embeddings.weight"):
        value[VOCAB:] = 0  # padding, which no conversion carries
    return value


class SumOverRanks(torch.autograd.Function):
    """Sums over a tensor parallel group, so that each of its ranks has the activations of the whole model."""

    @staticmethod
    def forward(ctx, part):
        part = part.clone()
        torch.distributed.all_reduce(part, group=tp_group)
        return part

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Leaf(torch.nn.Module):
    """Uses its own parameters only: ZeRO-3 gathers those of the module that runs."""

    def forward(self, x):
        for p in self.parameters(recurse=False):
            part = (p.float() ** 2).sum()
            if TP > 1 and getattr(p, "model_parallel", False):
                part = SumOverRanks.apply(part)
            x = x + part.to(x.dtype) * 1e-2
        return x


class Part(torch.nn.Module):
    """A module with parameters that are this rank's slices of global ones."""

    def __init__(self, prefix, shapes):  # {name: (global shape, dimension that is cut or None)}
        super().__init__()
        self.known = {}
        for name, (shape, dim) in shapes.items():
            value = start_value(prefix + name, shape)
            offset = [0] * len(shape)
            if dim is not None and TP > 1:
                offset[dim] = shape[dim] // TP * tp_rank
                value = value.chunk(TP, dim)[tp_rank].clone()
            module = self
            *path, last = name.split(".")
            for part in path:
                if part not in module._modules:
                    module.add_module(part, Leaf())
                module = module._modules[part]
            parameter = torch.nn.Parameter(value)
            parameter.model_parallel = parameter.tensor_model_parallel = dim is not None  # for gradient norms
            module.register_parameter(last, parameter)
            self.known[name] = (prefix + name, shape, offset)

    def forward(self, x):
        for module in self.modules():
            if isinstance(module, Leaf):
                x = module(x)
        return x


class Embedding(Part):
    def __init__(self):
        super().__init__("", {"word_embeddings.weight": ([PADDED, HIDDEN], 0),
                              "position_embeddings.weight": ([POSITIONS, HIDDEN], None)})


def layer_shapes():
    h, f = HIDDEN, FFN
    shapes = {}
    # In the order in which Megatron registers them, which is that of the optimizer's flat buffers.
    shapes["input_layernorm.weight"] = shapes["input_layernorm.bias"] = ([h], None)
    shapes["self_attention.query_key_value.weight"] = ([3 * h, h], 0)
    shapes["self_attention.query_key_value.bias"] = ([3 * h], 0)
    shapes["self_attention.dense.weight"] = ([h, h], 1)
    shapes["self_attention.dense.bias"] = ([h], None)
    shapes["post_attention_layernorm.weight"] = shapes["post_attention_layernorm.bias"] = ([h], None)
    shapes["mlp.dense_h_to_4h.weight"] = ([f, h], 0)
    shapes["mlp.dense_h_to_4h.bias"] = ([f], 0)
    shapes["mlp.dense_4h_to_h.weight"] = ([h, f], 1)
    shapes["mlp.dense_4h_to_h.bias"] = ([h], None)
    return shapes


class Layer(Part):
    def __init__(self, i):
        super().__init__(f"layers.{i}.", layer_shapes())


class FinalNorm(Part):
    def __init__(self):
        super().__init__("final_layernorm.", {"weight": ([HIDDEN], None), "bias": ([HIDDEN], None)})

    def forward(self, x):
        return Leaf.forward(self, x)


def head(embedding, x):
    return Leaf.forward(embedding.word_embeddings, x)


def loss_fn(x, y):
    return x.float().mean()


class GptEmbedding(Embedding):
    def forward(self, ids):
        return self.word_embeddings.weight[ids] + self.position_embeddings.weight[:ids.shape[1]]


def of_layer(x, module, norm=False):
    if norm:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], module.weight, module.bias, 1e-5)
    return torch.nn.functional.linear(x, module.weight, module.bias)


class GptLayer(Layer):
    """As Megatron's computes it: queries, keys and values of a head lie together, GELU fused with its bias is the tanh form."""

    def forward(self, x):
        samples, positions, _ = x.shape
        fused = of_layer(of_layer(x, self.input_layernorm, True), self.self_attention.query_key_value)
        qkv = fused.reshape(samples, positions, HEADS, 3, HIDDEN // HEADS).permute(3, 0, 2, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + of_layer(mixed.transpose(1, 2).reshape(x.shape), self.self_attention.dense)
        up = of_layer(of_layer(x, self.post_attention_layernorm, True), self.mlp.dense_h_to_4h)
        return x + of_layer(torch.nn.functional.gelu(up, approximate="tanh"), self.mlp.dense_4h_to_h)


class GptNorm(Part):
    def __init__(self):
        super().__init__("final_layernorm.", {"weight": ([HIDDEN], None), "bias": ([HIDDEN], None)})

    def forward(self, x):
        return of_layer(x, self, True)


def gpt_head(embedding, x):
    return torch.nn.functional.linear(x, embedding.word_embeddings.weight[:VOCAB])


def gpt_loss(logits, ids):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


def as_half(x):
    return x.bfloat16() if SPEC["config"].get("bf16", {}).get("enabled") else x.half()


def groups(parameters):
    parameters = list(parameters)
    if SPEC.get("one_group"):
        return parameters
    found = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
             {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    return found[::-1] if SPEC.get("vectors_first") else found


def pipe_model():
    global tp_rank, tp_group
    pp = SPEC["pp"]
    topology = PipeModelDataParallelTopology(num_pp=pp, num_mp=TP, num_dp=WORLD // pp // TP)
    tp_rank = topology.get_coord(RANK).model
    gpt = SPEC["engine"] == "gpt"
    embedding, layer, norm = (GptEmbedding, GptLayer, GptNorm) if gpt else (Embedding, Layer, FinalNorm)
    layers = [(lambda ids: ids) if gpt else as_half,  # no parameters, and no file
              TiedLayerSpec("embed", embedding, tied_weight_attr="word_embeddings.weight"),
              *(LayerSpec(layer, i) for i in range(LAYERS)),
              LayerSpec(norm),
              # With its own function, like Megatron's head, it writes no file.
              TiedLayerSpec("embed", embedding, forward_fn=gpt_head if gpt else head, tied_weight_attr="word_embeddings.weight")]
    model = PipelineModule(layers=layers, topology=topology, loss_fn=gpt_loss if gpt else loss_fn, partition_method="uniform")
    tp_group = model._grid.get_slice_parallel_group()
    return model


class Mixer(Part):
    """Of an unknown family; the pipeline gives it its names."""

    def __init__(self, index):
        super().__init__(f"{index}.", {"rows.weight": ([8, 4], 0), "columns.weight": ([4, 8], 1), "columns.bias": ([4], None),
                                       "pair.weight": ([12, 4], 0)})
        if TP > 1:  # two matrices one after another, each cut
            whole = start_value(f"{index}.pair.weight", [12, 4])
            self.pair.weight.data = torch.cat([half.chunk(TP)[tp_rank] for half in whole.chunk(2)])
        self.register_buffer("mask", torch.tensor([True, False, True]))


class Table(Part):
    def __init__(self):
        super().__init__("tied_modules.shared.", {"table.weight": ([PADDED, 4], 0)})


class Norm(torch.nn.BatchNorm1d):
    """With buffers of several types; torch's own forward does not mix bf16 and fp32 on the CPU."""

    def forward(self, x):
        self.num_batches_tracked += 1
        self.running_mean.mul_(0.9).add_(x.float().mean(0).to(self.running_mean.dtype), alpha=0.1)
        y = torch.nn.functional.batch_norm(x.float(), None, None, training=True)
        return (y * self.weight.float() + self.bias.float()).to(x.dtype)


OWN_INFO = {"universal_checkpoint_version": 0.2, "vocabulary_parameter_patterns": [r"tied_modules\.shared\.table\.weight"],
            "tp_replicated_parameter_patterns": [r"\d+\.columns\.bias$", r"[34]\.(?:weight|bias)"],
            "parameter_with_2_sub_params_cat_dim_0": [r".*?\.pair\.weight"],
            "parameter_with_row_parallelism_patterns": [r"\d+\.columns\.weight"]}


def own_model():
    global tp_rank, tp_group
    topology = PipeModelDataParallelTopology(num_pp=SPEC["pp"], num_mp=TP, num_dp=WORLD // SPEC["pp"] // TP)
    tp_rank = topology.get_coord(RANK).model
    layers = [as_half, TiedLayerSpec("shared", Table, tied_weight_attr="table.weight"), LayerSpec(Mixer, 2),
              LayerSpec(torch.nn.Linear, 4, 4), LayerSpec(Norm, 4), LayerSpec(Mixer, 5),
              TiedLayerSpec("shared", Table, tied_weight_attr="table.weight")]
    model = PipelineModule(layers=layers, topology=topology, loss_fn=loss_fn, partition_method="uniform")
    tp_group = model._grid.get_slice_parallel_group()
    return model


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = Embedding()
        self.layers = torch.nn.ModuleList(Layer(i) for i in range(LAYERS))
        self.norm = FinalNorm()
        if SPEC.get("buffers"):
            for name, value in {"mask": torch.tensor([True, False]), "mean": torch.ones(3), "count": torch.tensor(7)}.items():
                self.norm.register_buffer(name, value)

    def forward(self, x):
        x = self.embed(as_half(x))
        for module in self.layers:
            x = module(x)
        return loss_fn(self.norm(x), None)


class Wrapped(torch.nn.Module):
    """A model of transformers under one more name: one whose embedding has a second name, or a mixture, whose first layer is dense."""

    def __init__(self, mixture):
        super().__init__()
        if mixture:
            config = Qwen3MoeConfig(hidden_size=16, intermediate_size=40, moe_intermediate_size=8, num_hidden_layers=LAYERS, head_dim=8,
                                    num_attention_heads=HEADS, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2,
                                    mlp_only_layers=[0], vocab_size=VOCAB, max_position_embeddings=POSITIONS, initializer_range=0.2)
            if RANK == 0:
                config.save_pretrained(OUT + "-config")
            self.model = Qwen3MoeForCausalLM(config)
            return
        config = GPT2Config(n_embd=16, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCAB, n_positions=POSITIONS,
                            attn_pdrop=0, resid_pdrop=0, embd_pdrop=0, initializer_range=0.2)
        self.model = GPT2LMHeadModel(config)

    def forward(self, x):
        ids = torch.arange(POSITIONS).repeat(len(x), 1) * 5 % VOCAB
        return self.model(input_ids=ids, labels=ids).loss


def known_parameters(model):
    if isinstance(model, Wrapped):
        for name, p in model.named_parameters():
            shape = list(getattr(p, "ds_shape", p.shape))
            yield name, shape, [0] * len(shape), p
        return
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.BatchNorm1d)):
            for kind, p in module.named_parameters():
                yield f"{name}.{kind}", list(p.shape), [0] * p.dim(), p
        if isinstance(module, Part):
            parameters = dict(module.named_parameters())
            for name, (full, shape, offset) in module.known.items():
                if full == "position_embeddings.weight" and getattr(model, "stage_id", 0) > 0:
                    continue  # the head's copy, which is not tied and never used
                yield full, shape, offset, parameters[name]


def batches(rank, size):
    """The micro-batches of a data parallel rank for each step, as (inputs, labels)."""
    world = WORLD // SPEC.get("pp", 1) // TP
    with open(SPEC["batches"]) as file:
        for samples in json.load(file):
            tokens = torch.tensor(samples).chunk(world)[rank]
            yield [(part[:, :-1], part[:, 1:]) for part in tokens.split(size)]


class Annealing:
    """The schedule of the learning rate that Megatron-DeepSpeed gives to its engine: the engine counts the samples of each step
    on, and keeps it in checkpoints. The first update of a warm-up has rate 0."""

    def __init__(self, optimizer, facts):
        self.optimizer, self.facts, self.num_steps = optimizer, facts, 0
        self.step(0)

    def rate(self):
        facts, warmup = self.facts, self.facts["lr_warmup_steps"]
        if self.num_steps <= warmup:
            return facts["max_lr"] * self.num_steps / warmup
        if self.num_steps > facts["lr_decay_steps"]:
            return facts["min_lr"]
        share = (self.num_steps - warmup) / (facts["lr_decay_steps"] - warmup)
        return facts["min_lr"] + 0.5 * (math.cos(math.pi * share) + 1.0) * (facts["max_lr"] - facts["min_lr"])

    def step(self, increment):
        self.num_steps += increment
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()

    def state_dict(self):
        return self.facts | {"num_steps": self.num_steps}

    def load_state_dict(self, state):
        assert {name: state[name] for name in self.facts} == self.facts, (state, self.facts)
        self.num_steps = 0
        self.step(state["num_steps"])


def main():
    deepspeed.init_distributed("gloo", rank=RANK, world_size=WORLD)
    torch.manual_seed(1)
    pipe = SPEC["engine"] in ("pipe", "own", "gpt")
    made = {"own": own_model, "plain": Plain, "tied": lambda: Wrapped(False), "mixture": lambda: Wrapped(True)}
    model = made.get(SPEC["engine"], pipe_model)()
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(SPEC.get("frozen", "none")))
    make = getattr(torch.optim, SPEC.get("optimizer", "AdamW"))
    optimizer = make(groups(p for p in model.parameters() if p.requires_grad), lr=SPEC.get("lr", 1e-2), **SPEC.get("optimizer_args", {}))
    schedule = Annealing(optimizer, SPEC["schedule"]) if "schedule" in SPEC else None
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=SPEC["config"], lr_scheduler=schedule)
    batch = SPEC["config"]["train_micro_batch_size_per_gpu"]

    fed = batches(engine.grid.get_data_parallel_rank(), batch) if "batches" in SPEC else None

    def step():
        if fed is not None:
            return engine.train_batch(iter(next(fed)))
        if pipe:
            return engine.train_batch(iter([(torch.zeros(batch, 4), torch.zeros(batch))] * 4))
        loss = engine(torch.zeros(batch, 4))
        engine.backward(loss)
        engine.step()
        return loss

    if "load" in SPEC:
        loaded, _ = engine.load_checkpoint(SPEC["load"])
        assert loaded is not None
        for _ in range(SPEC.get("done", 0)):
            next(fed)
    else:
        for _ in range(SPEC.get("steps", 2)):
            step()
        save(engine)
    write_known(engine, model, f"{OUT}-known-{RANK}.pt")
    if SPEC.get("more"):
        losses = [float(step()) for _ in range(SPEC["more"])]
        with open(f"{OUT}-losses-{RANK}.json", "w") as file:
            json.dump(losses, file)
        write_known(engine, model, f"{OUT}-after-{RANK}.pt")
    torch.distributed.barrier()


def save(engine):
    args = argparse.Namespace(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, ffn_hidden_size=FFN,
        padded_vocab_size=PADDED, make_vocab_size_divisible_by=8, max_position_embeddings=POSITIONS,
        layernorm_epsilon=1e-5, tensor_model_parallel_size=TP, pipeline_model_parallel_size=SPEC.get("pp", 1),
        consumed_train_samples=SPEC.get("consumed", 48), params_dtype=torch.bfloat16)
    client = {"args": args, "checkpoint_version": 3.0, "iteration": SPEC.get("steps", 2), "tokens": 4096,
              "checkpoint_info": {"padded_vocab_size": PADDED, "original_vocab_size": VOCAB},
              "universal_checkpoint_info": {  # as Megatron-DeepSpeed's GPT describes itself
                  "universal_checkpoint_version": 0.2, "original_vocab_size": VOCAB, "padded_vocab_size": PADDED,
                  "vocabulary_parameter_patterns": [r"tied_modules\.embed\.word_embeddings\.weight"],
                  "tp_replicated_parameter_patterns": [
                      r"tied_modules\.embed\.position_embeddings\.weight", r"\d+\.input_layernorm\.(weight|bias)",
                      r"\d+\.post_attention_layernorm\.(weight|bias)", r"\d+\.self_attention\.dense\.bias",
                      r"\d+\.mlp\.dense_4h_to_h\.bias", r"\d+\.weight", r"\d+\.bias"],
                  "parameter_with_row_parallelism_patterns": [
                      r"\d+\.mlp\.dense_4h_to_h\.weight", r"\d+\.self_attention\.dense\.weight"]}}
    if SPEC["engine"] == "own":
        del client["args"], client["checkpoint_info"]
        client["universal_checkpoint_info"] = OWN_INFO
    engine.save_checkpoint(OUT, client_state=client)


def states_of(engine, p):
    names = SPEC.get("states", ["exp_avg", "exp_avg_sq"])
    if not p.requires_grad:
        return dict.fromkeys(["fp32", *names])
    if engine.zero_optimization_stage() > 0:
        return {"fp32": safe_get_full_fp32_param(p)} | {name: safe_get_full_optimizer_state(p, name) for name in names}
    for weights, masters in zip(engine.optimizer.fp16_groups, engine.optimizer.fp32_groups):
        for weight, master in zip(weights, masters):
            if weight is p:
                state = engine.optimizer.optimizer.state[master]
                return {"fp32": master.detach()} | {name: state[name] for name in names}


def write_known(engine, model, path):
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        # What safe_get_full_optimizer_state() looks into; ZeRO-1 and 2 fill it before the second group has moments.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    known = {}
    for name, shape, offset, p in known_parameters(model):
        with deepspeed.zero.GatheredParameters([p], enabled=hasattr(p, "ds_id")):
            weight = p.detach().clone()
        known[name] = {"offset": offset, "shape": shape, "weight": weight, **states_of(engine, p)}
    torch.save(known, path)


def run(rank, spec, out, port):
    global RANK, WORLD, TP, OUT, SPEC
    RANK, WORLD, TP, OUT, SPEC = rank, spec["world"], spec.get("tp", 1), out, spec
    os.environ.update(RANK=str(RANK), LOCAL_RANK=str(RANK), WORLD_SIZE=str(WORLD), MASTER_PORT=str(port))
    main()


run_jobs(run)
