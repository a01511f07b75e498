"""The unattended job: `cairn archive run --policy` at night, verify and restore drills by day."""

import shutil

import policy as policies


def learn(world):
    """Finds out which keys this build's policies know: `tag` is newer than the others."""
    probe = world.write(world.root / "etc/probe.toml", 'store = "s"\ntag = "t"\ntrees = ["."]\n', owned=False)
    policies.TAGS = "unknown key" not in world.cairn("archive", "plan", probe).text
    probe.unlink()


def run(world, policy, kill_after=None, cwd=None):
    """One night's job."""
    delete = policy.delete
    with world.act("archive", f"run --policy {policy.name}", by_cairn=True, policy=policy,
                   deletes_source=delete.get("source") == "true", weights_suffice=delete.get("weights_suffice") == "true"):
        done = world.cairn("archive", "run", "--policy", policy.path, cwd=cwd or policy.path.parent, kill_after=kill_after)
    world.oracle.judge_job(policy, done)
    return done


def by_hand(world, *args, deletes_source=True, weights_suffice=False):
    """`cairn archive …` as typed by hand."""
    with world.act("archive", " ".join(map(str, args)).replace(str(world.root) + "/", ""), by_cairn=True,
                   deletes_source=deletes_source, weights_suffice=weights_suffice):
        return world.cairn("archive", *args)


def verify(world, *flags, kill_after=None):
    """Reads the whole store back."""
    if not any(world.store.glob("*.tar")):
        return None
    with world.act("archive", "verify " + " ".join(flags), by_cairn=True):
        done = world.cairn("archive", "verify", world.store, *flags, kill_after=kill_after)
    if not done.killed and "--repair" not in flags:
        world.oracle.judge_verify(done)
    return done


def drill(world, flags=()):
    """Restores something that a policy asked for, and compares it with what the oracle remembers."""
    kept = [kept for kept in world.oracle.kept if kept.form == "full"]
    if not kept:
        return
    one = world.random.choice(kept)
    groups = world.oracle.store_groups()
    tars = world.oracle.stored(one.content, groups)
    if not tars or any(str(world.store / tar) in world.oracle.rotten for tar in tars):
        return
    record = next((r for tar, r in world.oracle.reader.records(world.store)
                   if r.get("manifest_digest") == one.digest and r.get("form") == "full"), None)
    if record is None:
        return
    back = world.root / "back"
    name = next((r.get("tar") for r in [record] if r.get("tar")), None) or member_name(world, one, record)
    with world.act("archive", f"restore {name}", by_cairn=True):
        done = world.cairn("archive", "restore", f"{world.store}:{name}", back, *flags)
    if done.code == 0:
        found = world.digests.tree(back)
        wrong = {file for file, digest in one.content.items() if found.get(file) != digest}
        world.oracle.expect(not wrong, "I1 kept", f"restored {one.title} differs: {sorted(wrong)}")
    else:
        world.oracle.expect(bool(world.troubles), "I1 kept", f"{one.title} cannot be restored: {done.text[-500:]}")
    shutil.rmtree(back, ignore_errors=True)


def member_name(world, kept, record):
    """As `archive ls` calls it: the name of its tar, which stands for one content."""
    import json
    listed = json.loads(world.cairn("archive", "ls", world.store, "--json").text or "[]")
    for member in listed:
        if member.get("step") == kept.number and member.get("run_id") == record.get("run") and member.get("form") == "full":
            if kept.digest[:8] in member["tar"]:
                return member["tar"]
    return f"{record.get('name')}@{kept.number}"
