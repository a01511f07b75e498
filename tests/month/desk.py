"""At an operator's desk: finds of shared/found that destroy nothing by themselves, but tell a person something false or hand on
what is not theirs. Scenarios as in scenarios.py."""

import os

from scenarios import made, scenario


@scenario
def s8_infinity_is_beyond_every_tolerance(world):
    import torch
    one, other = world.root / "one.pt", world.root / "other.pt"
    torch.save({"x": torch.tensor([1.0, 2.0])}, one)
    torch.save({"x": torch.tensor([float("inf"), 2.0])}, other)
    with world.act("operator", "diff --rtol", by_cairn=True):
        done = world.cairn("diff", one, other, "--rtol", "1e-6")
    world.oracle.expect(done.code == 1, "I5 alarm", f"1.0 and infinity are called equal: {done.text[-400:]}")


@scenario
def s9_what_torch_sees(world):
    """A negative bit, and a sparse tensor next to a plain one."""
    import torch
    value = torch.randn(4, dtype=torch.cfloat).conj().imag
    torch.save({"n": value}, world.root / "negative.pt")
    torch.save({"n": value.resolve_neg().clone()}, world.root / "plain.pt")
    torch.save({"w": torch.ones(2)}, world.root / "alone.pt")
    torch.save({"w": torch.ones(2), "q": torch.eye(3).to_sparse()}, world.root / "sparse.pt")
    with world.act("operator", "diff of torch files", by_cairn=True):
        same = world.cairn("diff", world.root / "negative.pt", world.root / "plain.pt")
        other = world.cairn("diff", world.root / "alone.pt", world.root / "sparse.pt")
    world.oracle.expect(same.code != 1, "I5 alarm", f"a tensor with its negative bit reads as another one: {same.text[-400:]}")
    world.oracle.expect(other.code != 0, "I5 alarm", "a sparse tensor is dropped in silence")


@scenario
def s11_a_file_name_runs_nothing(world):
    script, log = world.root / "n\ntouch PWN\n#.slurm", world.root / "j-1234.out"
    script.write_text("#!/bin/bash\n#SBATCH --job-name=j\n#SBATCH --output=%x-%j.out\n")
    log.write_text(" iteration 10/ 20 | elapsed time per iteration (ms): 1.0 | lm loss: 1.0 |\n")
    with world.act("operator", "report match | bash", by_cairn=True):
        done = world.cairn("report", "match", script, log)
        commands = "\n".join(line for line in done.text.splitlines() if not line.startswith("cairn:"))
        world.run("bash", "-c", commands)
    world.oracle.expect(not (world.root / "PWN").exists(), "I3 theirs", "a file's name was run as a command")


@scenario
def s12_a_link_out_of_a_model(world):
    """Files outside of a model, to which its links lead, are not released with it."""
    lineage = made(world, "base", "base", 1)
    model, release = world.root / "model", world.root / "release"
    secret = world.write(world.root / "etc/key", "secret\n")
    os.chmod(secret, 0o600)
    world.own(secret)
    with world.act("operator", "convert --to hf, twice", by_cairn=True):
        first = world.cairn("convert", lineage.path, model, "--to", "hf")
        world.oracle.expect(first.code == 0, "I5 alarm", f"convert fails: {first.text[-400:]}")
        os.symlink(secret, model / "vocab.json")
        world.cairn("convert", model, release, "--to", "hf")
    leaked = [path for path in release.rglob("*") if path.is_file() and b"secret" in path.read_bytes()[:100]]
    world.oracle.expect(not leaked, "I3 theirs", f"a private file was released as {leaked}")
