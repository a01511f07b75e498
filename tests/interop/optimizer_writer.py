"""Trainings of a tiny Llama, or of Megatron's GPT, with many optimizers, saved by the real programs.

    optimizer_writer.py DIR torch|deepspeed|megatron

torch writes DIR/config, DIR/dcp/NAME and, of some, DIR/torch/NAME.pt; deepspeed DIR/deepspeed/NAME with ZeRO 1 and, of those that DeepSpeed's
own script converts, DIR/universal/NAME; megatron DIR/torch_dist/NAME and DIR/mp_rank/NAME. One rank. Lion, Adam8bit and ScheduleFree
keep what the packages lion-pytorch, bitsandbytes and schedulefree keep, whose arithmetic is of no interest here.
"""

import os
import pathlib
import sys

import torch

STEPS = 2


class Kept(torch.optim.Optimizer):
    """An optimizer whose states are those that `keep` makes of a parameter."""

    def __init__(self, params, lr=0.01, **defaults):
        super().__init__(params, {"lr": lr} | defaults)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"])
                    self.state[p].update(self.keep(p))


class Lion(Kept):  # lion-pytorch 0.2.5
    def keep(self, p):
        return {"exp_avg": p.grad.clone()}


class ScheduleFree(Kept):  # schedulefree 1.4.1, AdamWScheduleFree
    def keep(self, p):
        return {"z": p.clone(), "exp_avg_sq": p.grad.square()}


class Dotted(Kept):  # of no package: keys with dots
    def keep(self, p):
        return {"toy.omega": p.grad.clone(), "a.b.c": p.clone(), "step": torch.tensor(float(STEPS))}


class Adam8bit(Kept):  # bitsandbytes 0.50, with min_8bit_size=0
    BLOCKS = "__bnb_optimizer_quant_state__"

    def keep(self, p):
        blocks = -(-p.numel() // 256)
        return {"step": STEPS} | {
            f"{kind}{n}": value for n in (1, 2) for kind, value in (
                ("state", torch.full(p.shape, n, dtype=torch.uint8)), ("qmap", torch.linspace(-1, 1, 256)),
                ("absmax", torch.full([blocks], float(n))))}

    def state_dict(self):
        """Like its own: blocks are one level deeper."""
        whole = super().state_dict()
        states = {}
        for number, state in whole["state"].items():
            blocks = {key: value for key, value in state.items() if key != "step"}
            states[number] = {"step": state["step"], self.BLOCKS: blocks}
        return whole | {"state": states}


def muon(model):
    """Of the matrices in layers; the rest is Adam's."""
    inner = [p for name, p in model.named_parameters() if p.dim() == 2 and "layers" in name]
    others = [p for p in model.parameters() if not any(p is one for one in inner)]
    return [torch.optim.Muon(inner), torch.optim.AdamW(others)]


def one(make, **arguments):
    return lambda model: [make(model.parameters(), **arguments)]


def of_transformers(model):
    from transformers.optimization import Adafactor
    return [Adafactor(model.parameters())]


OPTIMIZERS = {
    "adamw": one(torch.optim.AdamW), "sgd": one(torch.optim.SGD, lr=0.1, momentum=0.9), "adafactor": one(torch.optim.Adafactor),
    "adafactor_of_transformers": of_transformers, "lion": one(Lion, betas=(0.9, 0.99)), "adam8bit": one(Adam8bit, betas=(0.9, 0.99)),
    "schedule_free": one(ScheduleFree, betas=(0.9, 0.99), k=STEPS), "muon": muon, "dotted": one(Dotted)}


def llama(directory=None):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         vocab_size=61, max_position_embeddings=8)
    if directory:
        config.save_pretrained(directory)
    return LlamaForCausalLM(config)


def loss_of(model):
    ids = torch.arange(16).reshape(2, 8)
    return model(input_ids=ids, labels=ids).loss


def write_torch(out):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    (out / "torch").mkdir()
    for name, make in OPTIMIZERS.items():
        model = llama(out / "config")
        optimizers = make(model)
        for _ in range(STEPS):
            loss_of(model).backward()
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad()
        if name in ("adamw", "adam8bit", "muon"):
            states = [optimizer.state_dict() for optimizer in optimizers]
            torch.save({"model": model.state_dict(), "optimizer": states[0] if len(states) == 1 else states}, out / f"torch/{name}.pt")
        weights, states = get_state_dict(model, optimizers)
        dcp.save({"model": weights, "optimizer": states, "iteration": STEPS}, checkpoint_id=out / "dcp" / name, no_dist=True)


def write_deepspeed(out):
    import argparse

    import deepspeed
    from deepspeed.checkpoint import ds_to_universal
    deepspeed.init_distributed("gloo", rank=0, world_size=1)
    config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1},
              "zero_allow_untested_optimizer": True}
    for name in ("adamw", "sgd", "adafactor", "lion", "adam8bit", "schedule_free", "dotted"):
        model = llama(out / "config")
        engine, *_ = deepspeed.initialize(model=model, optimizer=OPTIMIZERS[name](model)[0], config=config)
        for _ in range(STEPS):
            engine.backward(loss_of(engine))
            engine.step()
        place = out / "deepspeed" / name
        engine.save_checkpoint(place)
        try:
            ds_to_universal.main(argparse.Namespace(
                input_folder=str(place / f"global_step{STEPS}"), output_folder=str(out / "universal" / name), num_extract_workers=1,
                num_merge_workers=1, keep_temp_folder=False, strict=True, inject_missing_state=True))
        except KeyError as missing:  # it asks for both of Adam's moments
            assert "exp_avg" in str(missing)
    (out / "universal/latest_universal").unlink()


def write_megatron(out):
    import megatron_trainer as trainer
    from megatron.core import optimizer as core
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params
    spec = {"world": 1, "tp": 1, "pp": 1, "zero": 0, "swiglu": True, "rope": True, "rms": True, "untied": True}
    model = trainer.writer.build(0, spec, 29511)
    trainer.OnCpu().__enter__()
    ddp = DistributedDataParallel(model.config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model)
    config = {kind: core.OptimizerConfig(optimizer=kind, lr=0.5, params_dtype=torch.bfloat16, bf16=True) for kind in ("adam", "sgd")}

    def wrapped(make, parameters):
        groups = [{"params": [p for p in parameters if (p.dim() > 1) == decay], "wd_mult": float(decay), "lr_mult": 1.0,
                   "is_expert_parallel": False, "is_decoupled_lr": False} for decay in (True, False)]
        groups = [group for group in groups if group["params"]]
        return Float16OptimizerWithFloat16Params(make(groups), config["adam"], None, lambda *_: None)

    def chained():
        inner = [p for name, p in model.named_parameters() if p.dim() == 2 and "layers" in name]
        others = [p for p in model.parameters() if not any(p is one for one in inner)]
        return ChainedOptimizer([wrapped(torch.optim.Muon, inner), wrapped(torch.optim.AdamW, others)])

    made = {"adamw": lambda: core.get_megatron_optimizer(config["adam"], [ddp]).chained_optimizers[0],
            "sgd": lambda: core.get_megatron_optimizer(config["sgd"], [ddp]).chained_optimizers[0],
            "lion": lambda: wrapped(Lion, list(model.parameters())), "dotted": lambda: wrapped(Dotted, list(model.parameters())),
            "muon": chained}
    for name, make in made.items():
        chosen = make()
        for part in getattr(chosen, "chained_optimizers", [chosen]):
            for group in part.optimizer.param_groups:
                for p in group["params"]:
                    p.grad = torch.full_like(p, 0.5)
            part.optimizer.step()
            part._copy_main_params_to_model_params()
        trainer.save(0, model, chosen, spec, str(out / "torch_dist" / name))
        (out / "mp_rank").mkdir(exist_ok=True)
        (out / "torch_dist" / f"{name}-legacy").rename(out / "mp_rank" / name)
        (out / "mp_rank" / name / "latest_checkpointed_iteration.txt").write_text("3")


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29513")
    {"torch": write_torch, "deepspeed": write_deepspeed, "megatron": write_megatron}[sys.argv[2]](pathlib.Path(sys.argv[1]))
