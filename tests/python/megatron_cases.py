"""What the ranks of test_megatron.py's jobs run: CASE(rank, world, directory), with the real Megatron-Core on gloo and the CPU. The model, its
optimizer and the schedule are those of tests/interop."""

import os
import pathlib
import random
import sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # which would compile fused functions of Megatron's for a minute
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python"), str(ROOT / "tests/interop")]

import cairn.megatron  # noqa: E402
import megatron_trainer as trainer  # noqa: E402
import megatron_writer as writer  # noqa: E402
import numpy  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from cairn.torch import CorruptError, LoadMismatch, NotSupported, PickleRefused, SaveFailed  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor  # noqa: E402
from megatron.core.dist_checkpointing.core import CheckpointingException  # noqa: E402
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue  # noqa: E402
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelLoadStrategyWrapper, FullyParallelSaveStrategyWrapper  # noqa: E402
from megatron.core.distributed import finalize_model_grads  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402

SCHEDULE = {
    "max_lr": 1e-2,
    "min_lr": 1e-3,
    "lr_warmup_steps": 8,
    "lr_decay_steps": 200,
    "lr_decay_style": "cosine",
    "start_wd": 0.1,
    "end_wd": 0.1,
    "wd_incr_steps": 200,
    "wd_incr_style": "constant",
}
COMMON = {"zero": 1, "lr": 1e-2, "clip": 1.0, "batches": True}
SETTINGS = {  # of four ranks
    "tp2": {**COMMON, "tp": 2, "pp": 1},
    "pp2": {**COMMON, "tp": 1, "pp": 2},
    "fp32": {**COMMON, "tp": 2, "pp": 2, "zero": 0, "dtype": "float32"},
}
SAMPLES, MICRO, POSITIONS = 8, 2, 8
OLD = cairn.megatron._VERSION < (0, 17)  # it finds the strategy by itself


class Training:
    """A tiny GPT that Megatron's own schedule of the pipeline trains. One at a time in a process."""

    def __init__(self, rank, world, name, directory, job, **changes):
        torch.set_num_threads(1)
        if dist.is_initialized():
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
        self.spec = {**SETTINGS[name], "world": world, **changes}
        self.ddp, self.optimizer = trainer.start(rank, self.spec, ranks.free_port(rank, f"{directory}/port-{job}-{name}"))
        self.model = self.ddp.module
        self.schedule = OptimizerParamScheduler(self.optimizer, init_lr=0.0, use_checkpoint_opt_param_scheduler=False, **SCHEDULE)
        self.rank, self.iteration = rank, 0

    def train(self, iterations):
        """The mean losses, as exact text; on the last stage."""
        return [self._step() for _ in range(iterations)]

    def _step(self):
        generator = torch.Generator().manual_seed(self.iteration)
        tokens = torch.randint(0, 61, (SAMPLES, POSITIONS + 1), generator=generator)
        mine = tokens.chunk(parallel_state.get_data_parallel_world_size())[parallel_state.get_data_parallel_rank()].split(MICRO)
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(mine),
            model=self.ddp,
            num_microbatches=len(mine),
            seq_length=POSITIONS,
            micro_batch_size=MICRO,
            forward_only=False,
        )
        finalize_model_grads([self.ddp])
        updated, _, _ = self.optimizer.step()
        assert updated
        self.schedule.step(increment=SAMPLES)
        self.iteration += 1
        return [loss.item().hex() for loss in losses]

    def state(self, is_loading=False):
        state = trainer.sharded(self.model, self.optimizer, self.metadata, is_loading)
        pp, tp = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()
        shape = parallel_state.get_pipeline_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_world_size()
        generators = [{"random": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state()}]
        if not (is_loading and self.spec.get("resharded")):  # Megatron-LM, too, starts them again where the topology is another
            state["rng_state"] = ShardedObject("rng_state", generators, shape, (pp, tp), replica_id=parallel_state.get_data_parallel_rank())
        if not is_loading:
            state.update(args=writer.arguments(self.spec), iteration=self.iteration, opt_param_scheduler=self.schedule.state_dict())
        return state

    @property
    def metadata(self):
        return trainer.metadata_of(self.spec)

    def save(self, run, strategy, **options):
        directory = f"{run}/iter_{self.iteration:07}"
        if self.rank == 0:
            os.makedirs(directory, exist_ok=True)
        dist.barrier()
        if not OLD and options:
            options["async_strategy"] = "mcore"
        return dist_checkpointing.save(self.state(), directory, strategy, content_metadata=self.metadata, **options)

    def load(self, directory, strategy=None, strict="raise_all"):
        state = dist_checkpointing.load(self.state(True), directory, strategy, strict=strict)
        self.model.load_state_dict(state["model"], strict=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["opt_param_scheduler"])
        self.iteration = state["iteration"]
        return state

    def tensors(self):
        """Everything that this rank has, including whole states of a distributed optimizer."""
        found = {name: tensor.clone() for name, tensor in self.model.state_dict().items() if torch.is_tensor(tensor)}
        for name, states in trainer.states_of(self.model, self.optimizer).items():
            found.update({f"{name}.{role}": tensor.detach().clone() for role, tensor in states.items()})
        return found


def forward(data, model):
    tokens = next(data)
    positions = torch.arange(POSITIONS)
    mask = (positions[:, None] < positions)[None, None]
    output = model(tokens[:, :-1], positions[None].expand(MICRO, -1), mask, labels=tokens[:, 1:])
    return output, lambda losses: (losses.mean(), losses.mean().detach())


def unbroken(rank, world, directory):
    """Six iterations of each setting. The third is saved with Cairn while the training continues, and also by Megatron itself."""
    for name in SETTINGS:
        training = Training(rank, world, name, directory, "unbroken")
        random.seed(f"{parallel_state.get_tensor_model_parallel_rank()} {parallel_state.get_pipeline_model_parallel_rank()}")
        training.train(3)
        save_as_megatron(training, f"{directory}/{name}-theirs")
        queue = AsyncCallsQueue()
        queue.schedule_async_request(training.save(f"{directory}/{name}", cairn.megatron.CairnSaveStrategy(), async_sharded_save=True))
        losses = training.train(1)
        queue.maybe_finalize_async_calls(blocking=True)
        losses += training.train(2)
        torch.save({"losses": losses, "tensors": training.tensors(), "random": random.getstate()}, f"{directory}/{name}-after-{rank}.pt")


class Mixture:
    """A mixture of experts of tests/interop, on `world` ranks."""

    def __init__(self, rank, world, directory, job, ep, tp=1):
        sys.path.insert(0, str(ROOT / "tests/interop"))  # a forked process lacks what was added
        import megatron_mixtures as mixtures  # changes norms of Megatron's, so not for the other cases

        torch.set_num_threads(1)
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        self.of, self.rank = mixtures, rank
        self.spec = {"world": world, "tp": tp, "pp": 1, "ep": ep, "etp": 1, "done": 3, "zero": 1}
        self.args = mixtures.arguments_of(self.spec)
        model = mixtures.build(rank, self.spec, self.args, ranks.free_port(rank, f"{directory}/port-{job}"))
        trainer.OnCpu().__enter__()
        batches = torch.randint(64, (6, 8, 9), generator=torch.Generator().manual_seed(3))
        self.training = mixtures.Training(*mixtures.optimizer_of(model, self.spec), batches)

    def sharded(self, is_loading):
        return self.of.sharded(self.training.ddp.module, self.training.chain, self.of.metadata_of(self.spec), is_loading)

    def save(self, run, strategy):
        directory = f"{run}/iter_0000003"
        if self.rank == 0:
            os.makedirs(directory)
        dist.barrier()
        common = {"args": self.args, "iteration": 3, "opt_param_scheduler": self.training.schedule.state_dict()}
        dist_checkpointing.save(self.sharded(False) | common, directory, strategy, content_metadata=self.of.metadata_of(self.spec))

    def load(self, run):
        strategy = None if OLD else cairn.megatron.CairnLoadStrategy()
        state = dist_checkpointing.load(self.sharded(True), f"{run}/iter_0000003", strategy, strict="raise_all")
        self.training.ddp.module.load_state_dict(state["model"], strict=True)
        self.training.chain.load_state_dict(state["optimizer"])
        self.training.schedule.load_state_dict(state["opt_param_scheduler"])
        self.training.done = 3

    def tensors(self):
        states = self.of.states_of(self.training.ddp, self.training.chain)
        return {f"{name}.{role}": torch.as_tensor(tensor).detach().clone() for role, of in states.items() for name, tensor in of.items()}


def mixture(rank, world, directory):
    """Six iterations with experts along two ranks; the third is saved with Cairn, and also by Megatron itself."""
    job = Mixture(rank, world, directory, "mixture", ep=2)
    for _ in range(3):
        job.training.iteration()
    writer.fork_results_queue()
    job.save(f"{directory}/mixture-theirs", ("torch_dist", 1))
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    job.save(f"{directory}/mixture", FullyParallelSaveStrategyWrapper(cairn.megatron.CairnSaveStrategy(), group))
    losses = [job.training.iteration() for _ in range(3)]
    torch.save({"losses": losses, "tensors": job.tensors()}, f"{directory}/mixture-{rank}.pt")


def mixture_again(rank, world, directory):
    job = Mixture(rank, world, directory, "again", ep=2)
    job.load(f"{directory}/mixture")
    expected = torch.load(f"{directory}/mixture-{rank}.pt")
    assert [job.training.iteration() for _ in range(3)] == expected["losses"]
    ranks.check_equal(job.tensors(), expected["tensors"])


def mixture_elsewhere(rank, world, directory, ep, tp):
    """The same bits that Megatron loads from its own files."""
    job = Mixture(rank, world, directory, f"elsewhere-{world}-{ep}-{tp}", ep, tp)
    job.load(f"{directory}/mixture-theirs")
    expected = job.tensors()
    for _ in range(3):
        job.training.iteration()
    job.load(f"{directory}/mixture")
    ranks.check_equal(job.tensors(), expected)


def save_as_megatron(training, run):
    writer.fork_results_queue()
    training.save(run, ("torch_dist", 1))


def resumed(rank, world, directory):
    for name in SETTINGS:
        training = Training(rank, world, name, directory, "resumed")
        state = training.load(f"{directory}/{name}/iter_0000003", None if OLD else cairn.megatron.CairnLoadStrategy())
        expected = torch.load(f"{directory}/{name}-after-{rank}.pt", weights_only=False)
        generators = state["rng_state"][0]
        assert generators["random"] == expected["random"] and generators["numpy"][0] == "MT19937", generators.keys()
        assert training.train(3) == expected["losses"], name
        ranks.check_equal(training.tensors(), expected["tensors"])


def resharded(rank, world, directory):
    """Under another topology, Cairn loads the same bits that Megatron loads from its own files, also if those were sealed."""
    for name, tp, pp in (("tp2", 1, 1), ("tp2", 1, 2), ("pp2", 2, 1)):
        found = []
        for run in (name, f"{name}-theirs"):
            training = Training(rank, world, name, directory, f"{run}-{tp}{pp}", tp=tp, pp=pp, resharded=True)
            strategy = None if run.endswith("theirs") else cairn.megatron.CairnLoadStrategy()
            training.load(f"{directory}/{run}/iter_0000003", strategy, strict="assume_ok_unexpected")
            found.append(training.tensors())
        ranks.check_equal(*found)
        training.save(f"{directory}/{name}-{tp}{pp}", cairn.megatron.CairnSaveStrategy())


def dies(rank, world, directory):
    """Rank 1 is killed before it has handed over its state; the other's queue reports it, and the iteration is not recognised."""
    training = Training(rank, world, "pp2", directory, "dies")
    training.train(1)
    training.save(f"{directory}/dies", cairn.megatron.CairnSaveStrategy())
    training.train(1)
    queue = AsyncCallsQueue()
    if rank == 1:
        ranks.die_before(cairn.torch._saving.Save, "stage")
    queue.schedule_async_request(training.save(f"{directory}/dies", cairn.megatron.CairnSaveStrategy(deadline=60), async_sharded_save=True))
    request = queue.async_calls[0].async_request
    ranks.refused(SaveFailed, "rank 1", request.finalize_fns[0])
    os._exit(0)  # gloo's end would wait for rank 1


def after_death(rank, world, directory):
    training = Training(rank, world, "pp2", directory, "after_death")
    assert not dist_checkpointing.check_is_distributed_checkpoint(f"{directory}/dies/iter_0000002")
    training.load(f"{directory}/dies/iter_0000001", cairn.megatron.CairnLoadStrategy())
    assert training.iteration == 1
    training.train(1)
    training.save(f"{directory}/dies", cairn.megatron.CairnSaveStrategy())  # over the leftovers of the torn one
    training.load(f"{directory}/dies/iter_0000002", cairn.megatron.CairnLoadStrategy())
    assert training.iteration == 2


class Own:
    """A class that a checkpoint must not instantiate."""


def fits(rank, world, directory):
    training = Training(rank, world, "tp2", directory, "fits", pp=1)
    path, load = f"{directory}/fits_0000007", cairn.megatron.CairnLoadStrategy()
    if rank == 0:
        os.makedirs(path)
    dist.barrier()

    def state(columns=4, rows=10, kind=Own, **more):
        """A tensor cut along its columns; a vocabulary with padding, of which rank 0 has five rows; an object of each rank."""
        table = torch.arange(rows * 3.0).view(rows, 3) + 1
        return {
            "cut": ShardedTensor.from_rank_offsets("cut", torch.full((3000, columns), rank + 1.0), (1, rank, world)),
            "layers": {7: ShardedTensor.from_rank_offsets("layers", torch.full((5,), rank + 0.5), (0, rank, world), prepend_axis_num=1)},
            "table": ShardedTensor.from_rank_offsets("table", table, replica_id=rank, allow_shape_mismatch=True),
            "object": ShardedObject("object", kind(), (world,), (rank,)),
            **more,
        }

    save = FullyParallelSaveStrategyWrapper(cairn.megatron.CairnSaveStrategy())
    dist_checkpointing.save(state() | {"common": 5}, path, save)
    ranks.refused(PickleRefused, "allow_pickle=True", dist_checkpointing.load, state(), path, load)
    trusting = cairn.megatron.CairnLoadStrategy(allow_pickle=True)
    for strategy in (trusting, FullyParallelLoadStrategyWrapper(trusting)):
        wanted = state(rows=12)
        for item in (wanted["cut"], wanted["layers"][7], wanted["table"]):
            item.data.fill_(-1)
        found = dist_checkpointing.load(wanted, path, strategy)
        assert found["common"] == 5 and isinstance(found["object"], Own) and set(found["layers"]) == {7}
        assert (found["cut"] == rank + 1).all() and (found["layers"][7] == rank + 0.5).all()
        assert torch.equal(found["table"][:10].flatten(), torch.arange(30.0) + 1) and (found["table"][10:] == 0).all()
    ranks.refused(LoadMismatch, "cut: saved as [3000, 8]; here [3000, 10]", dist_checkpointing.load, state(columns=5), path, trusting)
    other = ShardedTensor.from_rank_offsets("other", torch.zeros(2), (0, rank, world))
    ranks.refused(LoadMismatch, "other: not in the checkpoint", dist_checkpointing.load, state(other=other), path, trusting)
    ranks.refused(NotSupported, "not changed", load.remove_sharded_tensors, path, "cut")
    ranks.refused(TypeError, "cut: torch.complex64", dist_checkpointing.save, complex_of(rank, world), path, cairn.megatron.CairnSaveStrategy())
    dist.barrier()
    if rank == 0:
        torch.save({"common": 6}, f"{path}/common.pt")
    dist.barrier()
    ranks.refused(CorruptError, "common.pt: not the file that was saved", dist_checkpointing.load, state(), path, trusting)
    if rank == 0:
        os.remove(f"{path}/metadata.json")
    dist.barrier()
    ranks.refused(CheckpointingException, "is not a distributed checkpoint", dist_checkpointing.load, state(), path, trusting)
    assert training.iteration == 0


def complex_of(rank, world):
    return {"cut": ShardedTensor.from_rank_offsets("cut", torch.zeros(3, dtype=torch.complex64), (0, rank, world))}


def guide(rank, world, directory, iterations):
    """docs/guide/save-from-megatron.md: its Python, on one rank; it has saved `iterations` iterations then."""
    training = Training(rank, world, "tp2", directory, f"guide-{iterations}", tp=1)
    names = {"model": training.model, "optimizer": training.optimizer, "train": training.train}
    if OLD:  # the page says so
        save = dist_checkpointing.save
        dist_checkpointing.save = lambda *args, async_strategy=None, **options: save(*args, **options)
    defined = ranks.run_guide("save-from-megatron.md", names, directory)
    assert defined["iteration"] == iterations
    assert os.path.isfile(f"{directory}/gpt/iter_{iterations:07}/metadata.json")
