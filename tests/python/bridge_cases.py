"""What the ranks of test_bridge.py's jobs run: CASE(rank, world, directory). `job.train` is Megatron Bridge's own `pretrain` where
CAIRN_BRIDGE_SOURCE says where that is, and a training over a stand-in of its seam otherwise."""

import glob
import os
import pathlib
import re
import signal
import time
import types

import torch

if REAL := bool(os.environ.get("CAIRN_BRIDGE_SOURCE")):
    import bridge_real as job
else:
    import bridge_stand_in as job

import cairn.bridge  # noqa: E402
import cairn.megatron  # noqa: E402
import ranks  # noqa: E402
from cairn.torch import NotSupported, SaveFailed  # noqa: E402
from megatron.core import dist_checkpointing  # noqa: E402
from megatron.core.dist_checkpointing.strategies import torch as torch_strategies  # noqa: E402

TRACKER = "latest_checkpointed_iteration.txt"
NAME = "cairn.bridge.CairnCheckpointManager"


def keep(name, rank, directory, result):
    torch.save(result, f"{directory}/{name}-after-{rank}.pt")


def check_same(rank, directory, result):
    """As the unbroken training: each loss, and all tensors at the end."""
    expected = torch.load(f"{directory}/whole-after-{rank}.pt", weights_only=False)
    assert result["losses"] == {step: expected["losses"][step] for step in result["losses"]}, (result["losses"], expected["losses"])
    assert set(result["losses"]) == {4, 5, 6}, set(result["losses"])
    ranks.check_equal(result["tensors"], expected["tensors"])


def whole(rank, world, directory):
    cairn.enable("bridge")
    keep("whole", rank, directory, job.train(rank, world, f"{directory}/whole"))


def first_half(rank, world, directory):
    cairn.enable("bridge")
    job.train(rank, world, f"{directory}/halves", 3)


def second_half(rank, world, directory):
    cairn.enable("bridge")
    check_same(rank, directory, job.train(rank, world, f"{directory}/halves", fully_parallel_load=True))
    # As Bridge loads adapters: with the strategy that Megatron-Core has under its own name, and with none.
    for asked in ({"sharded_strategy": torch_strategies.TorchDistLoadShardedStrategy()}, {}):
        found = dist_checkpointing.load_tensors_metadata(f"{directory}/halves/iter_0000003", **asked)
        assert any("embedding" in key for key in found), found.keys()


def first_half_beside(rank, world, directory):
    cairn.enable("bridge")
    job.train(rank, world, f"{directory}/beside", 3, async_save=True, fully_parallel_save=False)


def second_half_beside(rank, world, directory):
    cairn.enable("bridge")
    check_same(rank, directory, job.train(rank, world, f"{directory}/beside", async_save=True))


def before(rank, world, directory):
    """Saved by Bridge's own manager."""
    job.train(rank, world, f"{directory}/before", 3, cairn=False)


def after(rank, world, directory):
    cairn.enable("bridge")
    check_same(rank, directory, job.train(rank, world, f"{directory}/before"))


def back(rank, world, directory):
    """Bridge's own manager, in a process that called `enable`, continues from what Cairn saved."""
    cairn.enable("bridge")
    check_same(rank, directory, job.train(rank, world, f"{directory}/back", cairn=False))


def dies(rank, world, directory):
    """Rank 1 is killed in the save of the sixth iteration, before it has handed over its state."""
    cairn.enable("bridge", deadline=20)
    if rank == 1:
        ranks.die_before(cairn.torch._saving.Save, "stage")
    try:
        job.train(rank, world, f"{directory}/torn", async_save=True)
    except SaveFailed as error:
        assert "rank 1" in str(error), error
    except RuntimeError as error:  # a collective of Megatron's noticed it first
        assert "Connection" in str(error) or "peer" in str(error), error
    else:
        raise AssertionError("an iteration without rank 1's part was committed")
    os._exit(0)  # gloo's end would wait for rank 1


def after_death(rank, world, directory):
    """It continues from the previous iteration, and saves over the leftovers of the torn one."""
    assert pathlib.Path(directory, "torn", TRACKER).read_text() == "3"
    assert not os.path.exists(f"{directory}/torn/iter_0000006/metadata.json")
    cairn.enable("bridge")
    check_same(rank, directory, job.train(rank, world, f"{directory}/torn"))
    assert pathlib.Path(directory, "torn", TRACKER).read_text() == "6"


def level(rank, world, directory, **options):
    cairn.enable("bridge", local=f"{directory}/node-{rank}", redundancy=f"xor:{world}" if world > 1 else "", **options)
    return {"non_persistent_save_interval": 1}


def on_nodes(rank, world, directory):
    """The third iteration is saved in the directory, all others on the nodes. Killed after the fifth."""
    result = job.train(rank, world, f"{directory}/nodes", 5, **level(rank, world, directory))
    keep("five", rank, directory, result)
    os.kill(os.getpid(), signal.SIGKILL)


def while_saving(rank, world, directory):
    """Killed after the fifth iteration, when the save of the third into the directory has not ended."""
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

    AsyncCallsQueue.maybe_finalize_async_calls = lambda *_, **__: []
    job.train(rank, world, f"{directory}/nodes", 5, async_save=True, **level(rank, world, directory))
    while not glob.glob(f"{directory}/node-{rank}/*/step-00000005"):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def without_nodes(rank, world, directory):
    """Another job saves the third iteration."""
    cairn.enable("bridge")
    job.train(rank, world, f"{directory}/nodes", 3, job="without")


def from_nodes(rank, world, directory, name, first, until=5, beside=False, ckpt_step=None):
    """As the unbroken training."""
    run = f"{directory}/nodes"
    options = {"async_save": True, **({"async_strategy": "mcore"} if REAL else {})} if beside else {}
    options["ckpt_step"] = ckpt_step
    result = job.train(rank, world, run, until, first=first, job=name, **level(rank, world, directory), **options)
    whole = torch.load(f"{directory}/whole-after-{rank}.pt", weights_only=False)
    assert result["losses"] == {step: whole["losses"][step] for step in range(first + 1, until + 1)}, (result["losses"], whole["losses"])
    expected = whole if until == 6 else torch.load(f"{directory}/five-after-{rank}.pt", weights_only=False)
    found = [result["tensors"], expected["tensors"]]
    if REAL and world == 1:  # its optimizer has other parts
        found = [{name: tensor for name, tensor in one.items() if "master" not in name and "exp_avg" not in name} for one in found]
    ranks.check_equal(*found)


def says(rank, world, directory):
    from megatron.bridge.training import checkpointing

    ranks.refused(TypeError, "compres", lambda: cairn.enable("bridge", compres=True))
    config = job.CheckpointConfig(save=directory, load=directory, custom_manager_class=NAME)
    if not REAL or hasattr(checkpointing, "_validate_target_prefix"):  # from 0.5.1 on
        ranks.refused(Exception, "allowlist", lambda: checkpointing.create_checkpoint_manager(config))
    page = (ranks.ROOT / "docs/guide/save-from-megatron.md").read_text()
    (block,) = re.findall(r'^```\n(import cairn\n\ncairn.enable\("bridge"\).*?)^```', page, re.M | re.S)
    made = []
    own = job.CheckpointConfig(save=directory, load=directory)
    pretrain = lambda config, _: made.append(checkpointing.create_checkpoint_manager(config.checkpoint))  # noqa: E731
    exec(block, {"config": types.SimpleNamespace(checkpoint=own), "forward_step": None, "pretrain": pretrain})
    (manager,) = made
    assert type(manager) is cairn.bridge.CairnCheckpointManager
    assert manager.checkpointing_context.keys() <= {"load_strategy"}, manager.checkpointing_context
    config.ckpt_format = "fsdp_dtensor"
    ranks.refused(NotSupported, "fsdp_dtensor", lambda: checkpointing.create_checkpoint_manager(config))
    ranks.refused(ValueError, "non-persistent-save-interval", lambda: cairn.enable("bridge", local=directory, every=2))
    ranks.refused(ValueError, "give local=DIR", lambda: cairn.enable("bridge", redundancy="xor:8"))
    cairn.enable("bridge", local=f"{directory}/node")
    given = {"save": directory, "load": directory, "custom_manager_class": NAME}
    seldom = job.CheckpointConfig(**given)
    ranks.refused(ValueError, "non-persistent-save-interval, which is not set", lambda: checkpointing.create_checkpoint_manager(seldom))
    elsewhere = job.CheckpointConfig(**given, non_persistent_ckpt_type="local")
    ranks.refused(NotSupported, "leave the type and the directory out", lambda: checkpointing.create_checkpoint_manager(elsewhere))
