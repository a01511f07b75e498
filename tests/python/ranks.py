"""Jobs of several processes for unittests: what each rank does is CASE(rank, world, directory) of a module of cases, which is imported once
for all jobs, and forked."""

import contextlib
import faulthandler
import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_case(module, case, rank, world, directory, seconds, arguments):
    with open(f"{directory}/{case}-{rank}.log", "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    gc.freeze()  # DeepSpeed collects often: no need to look at what was imported
    faulthandler.dump_traceback_later(0.9 * seconds)  # shows where a hanging rank waits
    try:
        getattr(importlib.import_module(module), case)(rank, world, directory, *arguments)
    except SystemExit as error:  # Megatron ends a process with status 0 if it cannot load
        raise RuntimeError(f"{case} ended the process") from error


def join(rank, world, directory, name):
    """Makes this process a rank of a job; `name` is the job's own."""
    import torch  # here: a test may have a torch of its own

    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/store-{name}", rank=rank, world_size=world)


def refused(kind, words, attempt, *given, **named):
    """The call fails with this kind of error, whose message has these words: a text, or several."""
    try:
        attempt(*given, **named)
    except kind as error:
        missing = [word for word in ([words] if isinstance(words, str) else words) if word not in str(error)]
        assert not missing, (missing, error)
    else:
        raise AssertionError(f"done, without a word of {words}")


def before(owner, name, act):
    """From now on `owner.name` calls act() first. AttributeError if the owner has no such name."""
    call = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: (act(), call(*given, **named))[1])


def die_before(owner, name):
    """The process that calls `owner.name` dies, as if its node had lost power."""
    before(owner, name, lambda: os.kill(os.getpid(), signal.SIGKILL))


def check_equal(found, expected):
    """Equal names, types and values of tensors."""
    import torch  # here: a test may have a torch of its own

    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype and torch.equal(tensor, expected[name]), name


def digests(state):
    """SHA-256 of every whole tensor and every other value, by name."""
    import torch
    from torch.distributed.tensor import DTensor

    found = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            whole = (value.full_tensor() if isinstance(value, DTensor) else value).detach().contiguous()
            value = whole.reshape(-1).view(torch.uint8).numpy().tobytes()
        found[name] = hashlib.sha256(value if isinstance(value, bytes) else repr(value).encode()).hexdigest()
    return found


def local_of(directory, name):
    """Each rank is a node of its own."""
    return {"local": f"{directory}/{name}/node-{{rank}}", "every": 3, "redundancy": "xor:2"}


def remember(directory, name, rank, found):
    """Adds what a job has seen, by step, to what those before it had, which must be equal."""
    place = pathlib.Path(directory, f"{name}-seen-{rank}.json")
    seen = json.loads(place.read_text()) if place.exists() else {}
    for step, value in found.items():
        assert seen.setdefault(str(step), value) == value, (name, rank, step)
    place.write_text(json.dumps(seen))


def unused_port():
    """One that the kernel gives to no other socket: below those that it hands out (32768 and more), where a rank that connects before rank 0
    listens may even be connected to itself, and waits for ever."""
    while True:
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("", random.SystemRandom().randrange(10_000, 32_768)))
            return free.getsockname()[1]


def free_port(rank, file):
    """One port for all ranks of a job, which rank 0 finds."""
    file = f"{file}.rendezvous"
    if rank == 0:
        pathlib.Path(f"{file}.new").write_text(str(unused_port()))
        os.rename(f"{file}.new", file)
    while not os.path.exists(file):
        time.sleep(0.02)
    return int(pathlib.Path(file).read_text())


def flip(path, at):
    """One bit of the byte at `at`."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def python_of(page):
    """The blocks of Python in README.md or a page of docs/guide."""
    folder = ROOT if page == "README.md" else ROOT / "docs/guide"
    return re.findall(r"^```python\n(.*?)^```", (folder / page).read_text(), re.M | re.S)


def run_guide(page, names, directory):
    """Runs all Python of a page of docs/guide in this process, in the order of the page, with `names` given. Returns its definitions.

    A page is a program that resumes where it is started again: a test runs it twice, each time in a new process.
    """
    defined = {"__name__": "guide", **names}
    exec(compile("\n".join(python_of(page)).replace("/scratch", directory), page, "exec"), defined)
    return defined


class RanksCase(unittest.TestCase):
    """`cases`: the name of the module, next to this one."""

    cases: str

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp()
        # The server's, or it imports nothing.
        paths = [str(ROOT / "tests/python"), str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        cls.context = multiprocessing.get_context("forkserver")
        cls.context.set_forkserver_preload([cls.cases])

    @classmethod
    def tearDownClass(cls):
        for _ in range(2):  # a helper outlives its rank, and may still add the end to a run's events
            shutil.rmtree(cls.directory, ignore_errors=True)

    def run_ranks(self, case, world, killed=(), seconds=300, arguments=()):
        """killed: the ranks that end by SIGKILL; all others must return. arguments: more of the case."""
        for port in pathlib.Path(self.directory).rglob("*.rendezvous"):
            port.unlink()  # an earlier job's of the same name, which a rank would read before rank 0 replaces it
        given = (world, self.directory, seconds, arguments)
        ranks = [self.context.Process(target=run_case, args=(self.cases, case, rank, *given)) for rank in range(world)]
        for process in ranks:
            process.start()
        until = time.monotonic() + seconds
        for process in ranks:
            process.join(max(0, until - time.monotonic()))
        late = [rank for rank, process in enumerate(ranks) if process.exitcode is None]
        for process in ranks:
            process.kill()
        self.assertEqual(late, [], f"these ranks did not end\n{self.logs(case, range(world))}")  # others may have failed
        expected = [-signal.SIGKILL if rank in killed else 0 for rank in range(world)]
        found = [process.exitcode for process in ranks]
        wrong = [rank for rank in range(world) if found[rank] != expected[rank]]
        self.assertEqual(found, expected, f"{case}\n{self.logs(case, wrong)}")

    def logs(self, case, ranks):
        return "\n".join(pathlib.Path(f"{self.directory}/{case}-{rank}.log").read_text()[-12000:] for rank in ranks)
