"""What the ranks of test_deepspeed.py's jobs run: CASE(rank, world, directory), with the real DeepSpeed on gloo and the CPU."""

import os
import pathlib
import shutil
import signal
import sys

os.environ.update(DS_ACCELERATOR="cpu", CROSS_SIZE="1", LOCAL_SIZE="1", CROSS_RANK="0", OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "python"), str(pathlib.Path(__file__).resolve().parent)]

import cairn.deepspeed  # noqa: E402
import deepspeed  # noqa: E402
import deepspeed.module_inject  # noqa: E402, F401 - here and below what each forked rank would import for itself
import deepspeed.runtime.zero.muon.original_muon  # noqa: E402, F401 - and with it torch's compiler
import ranks  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401
import torch.distributed as dist  # noqa: E402
import torch.utils.cpp_extension  # noqa: E402, F401
from deepspeed.moe.layer import MoE  # noqa: E402
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer  # noqa: E402
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint  # noqa: E402

SETTINGS = [(stage, kind) for stage in (1, 2, 3) for kind in ("fp32", "bf16") if (stage, kind) != (3, "fp32")]


def join(rank, world, directory, name):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", init_method=f"file://{directory}/store-{name}", rank=rank, world_size=world)
    deepspeed.init_distributed("gloo")


class Model(torch.nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embed = torch.nn.Embedding(37, 24)
        self.inner = torch.nn.Sequential(torch.nn.Linear(24, width), torch.nn.GELU(), torch.nn.Linear(width, 24))
        self.norm = torch.nn.LayerNorm(24)
        self.head = torch.nn.Linear(24, 37, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        logits = self.head(self.norm(x + self.inner(x)))
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def engine_of(stage, kind, seed, through_cairn=True, model=Model, options=None, **config):
    torch.manual_seed(seed)
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "bf16": {"enabled": kind == "bf16"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-2}},
        **config,
    }
    made = model()
    groups = {"params": list(made.parameters()), "name": "all"}
    parameters = split_params_into_different_moe_groups_for_optimizer(groups) if model is Mixture else None
    engine, *_ = deepspeed.initialize(model=made, model_parameters=parameters, config=config)
    if through_cairn:
        cairn.enable("deepspeed", engine, **(options or {}))
    return engine


def train(engine, steps):
    """The losses of this rank, as exact text."""
    losses = []
    for _ in range(steps):
        generator = torch.Generator().manual_seed(100 * engine.global_steps + dist.get_rank())
        loss = engine(torch.randint(0, 37, (3, 9), generator=generator))
        engine.backward(loss)
        engine.step()
        losses.append(float(loss).hex())
    return losses


def weights(engine):
    """Everything that this rank has of the model and, in fp32, of the optimizer."""
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=engine.zero_optimization_stage() == 3):
        found = {name: tensor.detach().clone() for name, tensor in engine.module.state_dict().items()}
    states = getattr(engine.optimizer, "optimizer", engine.optimizer).state  # itself, without ZeRO
    for number, (_, state) in enumerate(sorted(states.items(), key=lambda item: item[0].shape)):
        found.update({f"{number}.{key}": value.clone() for key, value in state.items() if torch.is_tensor(value)})
    return found


def unbroken(rank, world, directory):
    """Six steps of each kind of training, with a save after the third."""
    join(rank, world, directory, "unbroken")
    for stage, kind in SETTINGS:
        run = f"{directory}/zero{stage}-{kind}"
        engine = engine_of(stage, kind, seed=1)
        train(engine, 3)
        assert engine.save_checkpoint(run, client_state={"seen": 27})
        torch.save({"losses": train(engine, 3), "weights": weights(engine)}, f"{run}-after-{rank}.pt")


def resumed(rank, world, directory):
    """The last three of them, from the checkpoints."""
    join(rank, world, directory, "resumed")
    for stage, kind in SETTINGS:
        run = f"{directory}/zero{stage}-{kind}"
        engine = engine_of(stage, kind, seed=2)
        path, client = engine.load_checkpoint(run)
        assert path is not None and client["seen"] == 27 and engine.global_steps == 3
        expected = torch.load(f"{run}-after-{rank}.pt")
        assert train(engine, 3) == expected["losses"], (stage, kind)
        ranks.check_equal(weights(engine), expected["weights"])


def by_deepspeed(rank, world, directory):
    """DeepSpeed's own loader and its own tool read what Cairn wrote and sealed."""
    join(rank, world, directory, "by_deepspeed")
    for stage, kind in SETTINGS:
        run = f"{directory}/zero{stage}-{kind}"
        engine = engine_of(stage, kind, seed=3, through_cairn=False)
        assert engine.load_checkpoint(run)[0] is not None
        masters = get_fp32_state_dict_from_zero_checkpoint(run)
        expected = torch.load(f"{run}-after-{rank}.pt")
        assert train(engine, 3) == expected["losses"], (stage, kind)
        assert masters.keys() == engine.module.state_dict().keys()


def names(directory):
    """The files there, without the scripts that DeepSpeed copies."""
    return [name for name in sorted(os.listdir(directory)) if not name.endswith(".py")]


def dies(rank, world, directory):
    """Rank 1 is killed while it saves: first another tag, then the same tag again, of which half the files are written."""
    tag = pathlib.Path(f"{directory}/dies-tag").read_text()
    join(rank, world, directory, f"dies-{tag}")
    run = f"{directory}/dies"
    engine = engine_of(1, "bf16", seed=1)
    train(engine, 1)
    engine.save_checkpoint(run)
    engine.save_checkpoint(run, "best2", save_latest=False)
    train(engine, 1)
    write = torch.save

    def half_written(state, file, **options):
        if rank == 1:
            file.write(b"PK\3\4")
            os.kill(os.getpid(), signal.SIGKILL)
        write(state, file, **options)

    torch.save = half_written
    try:
        engine.save_checkpoint(run, tag)
    except RuntimeError:  # gloo's, of a lost connection
        return
    raise AssertionError("a tag without rank 1's files was committed")


def after_deaths(rank, world, directory):
    """The earlier tags are whole, and the training continues from them; the next save removes the leftovers."""
    join(rank, world, directory, "after_deaths")
    run = f"{directory}/dies"
    assert names(run) == [".cairn-partial", "best2", "global_step1", "latest"], names(run)
    engine = engine_of(1, "bf16", seed=2)
    for tag in (None, "best2"):
        path, _ = engine.load_checkpoint(run, tag)
        assert engine.global_steps == 1 and (tag or "global_step1") in path
    train(engine, 1)
    engine.save_checkpoint(run)
    assert names(run) == ["best2", "global_step1", "global_step2", "latest"], names(run)


def cannot_write(rank, world, directory):
    """A rank that cannot write is named on all ranks, existing tags stay, and the next save succeeds."""
    join(rank, world, directory, "cannot_write")
    run = f"{directory}/cannot_write"
    engine = engine_of(2, "fp32", seed=1)
    train(engine, 1)
    engine.save_checkpoint(run, "same1")
    before = {name: os.stat(f"{run}/same1/{name}") for name in names(f"{run}/same1")}
    place_of = engine.checkpoint_engine._place_of
    if rank == 1:
        engine.checkpoint_engine._place_of = lambda path: "/proc/none/file"
    try:
        engine.save_checkpoint(run, "same1")
    except cairn.deepspeed.SaveFailed as error:
        assert "rank 1" in str(error) and "rank 0" not in str(error) and "optim_states.pt" in str(error), error
    else:
        raise AssertionError("saved")
    assert {name: os.stat(f"{run}/same1/{name}") for name in names(f"{run}/same1")}.keys() == before.keys()
    assert names(run) == ["latest", "same1"], names(run)
    engine.checkpoint_engine._place_of = place_of
    train(engine, 1)
    engine.save_checkpoint(run, "same1")
    assert engine.load_checkpoint(run)[1] is not None and engine.global_steps == 2
    engine.save_16bit_model(run)
    assert len(torch.load(f"{run}/pytorch_model.bin")) == len(engine.module.state_dict())


def damage(path):
    ranks.flip(path, os.path.getsize(path) // 2)


def not_whole(rank, world, directory):
    """Damage, a torn later tag of plain DeepSpeed, an empty `latest`: the newest whole tag is loaded; a named one is refused."""
    join(rank, world, directory, "not_whole")
    run = f"{directory}/not_whole"
    engine = engine_of(1, "fp32", seed=1)
    for _ in range(3):
        train(engine, 1)
        engine.save_checkpoint(run)
    if rank == 0:
        damage(f"{run}/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt")
    dist.barrier()
    assert "global_step2" in engine.load_checkpoint(run)[0]
    assert engine.global_steps == 2
    ranks.refused(cairn.deepspeed.NotWhole, "zero_pp_rank_1", engine.load_checkpoint, run, "global_step3")
    plain = engine_of(1, "fp32", seed=1, through_cairn=False)
    plain.load_checkpoint(run, "global_step2")
    train(plain, 2)
    plain.save_checkpoint(run, "global_step4")
    if rank == 0:
        os.remove(f"{run}/global_step4/mp_rank_00_model_states.pt")
        pathlib.Path(run, "latest").write_text("")
        newest = cairn.run(["seal", "--newest", "--hash", run], capture=True)
        assert newest.stdout.strip() == f"{run}/global_step2" and "global_step4" in newest.stderr, newest
    dist.barrier()
    assert "global_step2" in engine.load_checkpoint(run)[0]
    if rank == 0:
        for step in (1, 2):
            damage(f"{run}/global_step{step}/mp_rank_00_model_states.pt")
    dist.barrier()
    ranks.refused(cairn.deepspeed.NotWhole, "no tag is whole", engine.load_checkpoint, run)


def write_tag(path, text):
    path.mkdir(parents=True)
    (path / "file").write_text(text)


def text_of(path):
    """The file of a tag that is unchanged since it was sealed; else None."""
    whole = cairn.run(["seal", "--newest", "--hash", path], check=False, capture=True).returncode == 0
    return (path / "file").read_text() if whole else None


class Death(BaseException):
    """Kills a process before one of its calls."""


def saved_again(directory):
    """A run in a new directory: two sealed tags, and the files of global_step20 once more, not yet sealed."""
    template, run = pathlib.Path(directory, "template"), pathlib.Path(directory, "cut_short")
    if not template.exists():
        for tag in ("global_step10", "global_step20"):
            write_tag(template / tag, "old")
            cairn.run(["seal", "--settle", "0", template / tag], capture=True)
        write_tag(template / cairn.deepspeed.PARTIAL / "global_step20", "new")
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(template, run)
    return run


def next_start(run, expected):
    """Finds both tags whole, whether it loads or saves first; the save is that of another tag."""
    assert cairn.deepspeed.resumable(str(run), "global_step20") == "global_step20"
    cairn.deepspeed._clean(str(run))
    assert text_of(run / "global_step10") == "old"
    assert text_of(run / "global_step20") in expected
    assert sorted(os.listdir(run)) == ["global_step10", "global_step20"], os.listdir(run)


def killed_seals(rank, world, directory):
    """`cairn seal --publish` is killed before each of its system calls that change or sync names, with an exchange
    of names and, as on NFS, without."""
    program, wrapper = os.environ["CAIRN"], pathlib.Path(directory, "killed-cairn")
    killed = 0
    without = "-e inject=renameat2:error=EINVAL"
    for calls, inject in (("renameat2,fsync", ""), ("mkdir,rename,fsync", without)):
        for call in calls.split(","):
            for place in range(1, 100):
                run = saved_again(directory)
                kill = f"-e inject={call}:signal=KILL:when={place}"
                wrapper.write_text(f'#!/bin/sh\nexec strace -f -qq -o /dev/null {inject} {kill} {program} "$@"\n')
                wrapper.chmod(0o755)
                os.environ["CAIRN"] = str(wrapper)
                try:
                    cairn.deepspeed._publish(str(run), "global_step20", [None])
                    break
                except cairn.deepspeed.SaveFailed:
                    killed += 1
                finally:
                    os.environ["CAIRN"] = program
                if not inject:
                    assert text_of(run / "global_step20") in ("old", "new"), (call, place)
                next_start(run, ("old", "new"))
    assert killed > 10, killed


def killed_starts(rank, world, directory):
    """The start that brings a tag back and removes leftovers is killed before each of its calls; another follows."""
    own = {name: getattr(os, name) for name in ("rename", "unlink", "rmdir", "fsync")}
    for replaced in (False, True):
        for budget in range(100):
            run = saved_again(directory)
            partial = run / cairn.deepspeed.PARTIAL
            new, aside = partial / "global_step20", partial / ".replaced" / "global_step20"
            cairn.run(["seal", "--settle", "0", new], capture=True)
            aside.parent.mkdir()
            (run / "global_step20").rename(aside)
            if replaced:
                new.rename(run / "global_step20")
            left = [budget]

            def limited(call, left=left):
                def do(*args, **kwargs):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Death
                    return call(*args, **kwargs)

                return do

            for name, call in own.items():
                setattr(os, name, limited(call))
            try:
                cairn.deepspeed._clean(str(run))
            except Death:
                pass
            finally:
                for name, call in own.items():
                    setattr(os, name, call)
            next_start(run, ("new",) if replaced else ("old",))
            if left[0] >= 0:
                break
        assert 5 < budget < 99, budget


def refused(rank, world, directory):
    """Unknown options, and features that bypass the checkpoint engine."""
    join(rank, world, directory, "refused")
    engine = engine_of(1, "fp32", seed=1)
    assert engine.load_checkpoint(f"{directory}/nothing")[0] is None
    for word, attempt in {
        "already": lambda: cairn.enable("deepspeed", engine),
        "every=0: at least 2": lambda: engine_of(1, "fp32", seed=1, options={"local": directory}),
        "give local=DIR": lambda: engine_of(1, "fp32", seed=1, options={"every": 2}),
        "one of bytes, sizes": lambda: cairn.enable("deepspeed", engine, check="some"),
        "without a dot": lambda: engine.save_checkpoint(f"{directory}/refused", ".hidden"),
        "name of a directory": lambda: engine.save_checkpoint(f"{directory}/refused", "a/b"),
        "FastCheckpointEngine": lambda: engine_of(1, "fp32", seed=1, checkpoint={"writer": {"type": "python", "data_parallel": "replica"}}),
        "use_node_local_storage": lambda: engine_of(1, "fp32", seed=1, checkpoint={"use_node_local_storage": True}),
    }.items():
        ranks.refused(ValueError, word, attempt)


def frozen():
    """With tensors that are large enough for shards of the ranks."""
    model = Model(width=2000)
    model.embed.requires_grad_(False)
    return model


def train_on_nodes(engine, run, place, until, tag=None, seen=None):
    """Trains with a save after each step, and remembers what it has seen. tag: to begin from; seen: the steps that must be loaded."""
    if seen is not None:
        path, client = engine.load_checkpoint(run, tag)
        assert (client and client["seen"]) == seen and engine.global_steps == seen, (path, engine.global_steps, seen)
    while engine.global_steps < until:
        losses = train(engine, 1)
        ranks.remember(*place, {engine.global_steps: [losses, engine.get_lr(), ranks.digests(weights(engine))]})
        if run:
            engine.save_checkpoint(run, client_state={"seen": engine.global_steps})


class Mixture(Model):
    """Its first experts are the same on all ranks, of which one saves them; of the others each rank has its own."""

    def __init__(self):
        super().__init__()
        shared, own = (MoE(24, torch.nn.Linear(24, 24), num_experts=4, ep_size=size, use_rts=False) for size in (1, 2))
        self.inner = torch.nn.ModuleList([shared, own])

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.inner:
            x = x + layer(x)[0]
        return torch.nn.functional.cross_entropy(self.head(x)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


NODES = [(0, "fp32", frozen), (1, "bf16", frozen), (2, "fp32", frozen), (3, "bf16", frozen), (0, "bf16", Mixture), (2, "bf16", Mixture)]


def on_nodes(rank, world, directory, job, until, killed, more):
    """Trainings of each kind of NODES. killed: all ranks die after the last save. more: local, run; see train_on_nodes."""
    local, run = more.pop("local", True), more.pop("run", True)
    join(rank, world, directory, f"on_nodes-{job}")
    for stage, kind, model in NODES:
        options = ranks.local_of(directory, "nodes") if local else {}
        engine = engine_of(stage, kind, seed=2 if "seen" in more else 1, model=model, options=options)
        name = f"nodes/zero{stage}-{model.__name__}"
        train_on_nodes(engine, run and f"{directory}/{name}", (directory, name, rank), until, **more)
    if killed:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


def not_for_nodes(rank, world, directory):
    """Tags that a rank cannot keep on its node, those that `latest` does not name, and the last one are in the directory."""
    join(rank, world, directory, "not_for_nodes")
    run, saved = f"{directory}/not_for_nodes", [".cairn-nodes"]
    engine = engine_of(1, "bf16", seed=1, options=ranks.local_of(directory, "some"))
    take_apart = cairn.deepspeed._taken_apart
    for tag, options in {"kept1": {}, "failed": {}, "best": {"save_latest": False}, "kept2": {}, "last": {"local": False}}.items():
        train(engine, 1)
        if (tag, rank) == ("failed", 1):
            cairn.deepspeed._taken_apart = lambda state: pathlib.Path("/none").read_text()
        engine.save_checkpoint(run, tag, client_state={"tag": tag}, **options)
        cairn.deepspeed._taken_apart = take_apart
        saved += [tag] if "kept" not in tag else []
        assert names(run) == sorted(saved + ["latest"] * ("failed" in saved)), (tag, names(run))
        latest = pathlib.Path(run, "latest")
        assert not latest.exists() or latest.read_text() == [name for name in saved if name != "best"][-1], (tag, latest.read_text())
        if "kept" in tag or tag == "last":
            found = engine_of(1, "bf16", seed=2, options=ranks.local_of(directory, "some"))
            assert found.load_checkpoint(run)[1]["tag"] == tag
    engine = engine_of(3, "bf16", seed=1, options=ranks.local_of(directory, "some"))
    train(engine, 1)
    engine.save_checkpoint(f"{run}3")
    ranks.refused(cairn.NotSupported, "name a tag of the directory", engine.load_checkpoint, f"{run}3", load_optimizer_states=False)
    assert engine.load_checkpoint(f"{run}3")[0] is not None and names(f"{run}3") == [".cairn-nodes"]
    other = engine_of(3, "fp16", seed=1, options=ranks.local_of(directory, "some"), fp16={"enabled": True})
    assert other.load_checkpoint(f"{run}3")[0] is None  # its optimizer's files have other names


def guide(rank, world, directory, steps):
    """docs/guide/save-from-deepspeed.md: its Python, which has saved `steps` steps then."""
    join(rank, world, directory, f"guide-{steps}")
    defined = ranks.run_guide("save-from-deepspeed.md", {"Model": Model}, directory)
    assert (defined["begin"], defined["engine"].global_steps) == (steps - 2, steps)
