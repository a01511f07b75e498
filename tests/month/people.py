"""People: an operator with mv, ln -s, cp -r and rm -rf of one thing, and others who keep their files where they like."""

import os
import shutil

from world import Lineage


def branch(world, lineage, name, place):
    """cp -r: the copy is a new training from the moment it is written to."""
    target = world.scratch / place
    with world.act("operator", f"cp -r {lineage.path.name} of {lineage.name} to {place}"):
        shutil.copytree(lineage.path, target, symlinks=True)
        for path in list(world.theirs):
            if path.startswith(f"{lineage.path}/"):
                world.own(path.replace(str(lineage.path), str(target), 1))
        copy = Lineage(name, target, lineage.seed, lineage.made, lineage.local, lineage.keep_last, lineage.lr, lineage.iteration)
        world.lineages.append(copy)
    return copy


def rename(world, lineage, place):
    target = world.scratch / place
    with world.act("operator", f"mv {lineage.name} to {place}"):
        theirs = [path for path in world.theirs if path.startswith(f"{lineage.path}/")]
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(lineage.path, target)
        for path in theirs:
            del world.theirs[path]
            world.own(path.replace(str(lineage.path), str(target), 1))
        for path, step in list(world.oracle.local_owner.items()):
            if path.startswith(f"{lineage.path}/"):
                world.oracle.local_owner[path.replace(str(lineage.path), str(target), 1)] = step
        lineage.path = target


def restart(world, lineage, name):
    """rm -rf, and another training under the old name."""
    with world.act("operator", f"rm -rf {lineage.name}; another takes its directory"):
        world.disown(lineage.path)
        shutil.rmtree(lineage.path)
        lineage.alive = False
        again = Lineage(name, lineage.path, len(world.lineages) + 1, lineage.made, lineage.local, lineage.keep_last)
        world.lineages.append(again)
    return again


def remove(world, path):
    with world.act("operator", f"rm -rf {path.relative_to(world.root)}"):
        world.disown(path)
        shutil.rmtree(path)


def link_away(world, step):
    """Moves a step to another disk and leaves a link: the target now belongs to them."""
    disk = world.root / "disk"
    target = disk / f"{step.parent.parent.name}-{step.name}.{len(list(disk.iterdir()))}"
    with world.act("operator", f"mv {step.relative_to(world.root)} to disk, ln -s"):
        os.rename(step, target)
        os.symlink(target, step)
        world.own(*(path for path in sorted(target.iterdir())))
    return target


def give_up(world, tar):
    """What could not be repaired is removed by hand, and is lost if nothing else has it."""
    with world.act("operator", f"rm {os.path.basename(tar)}*, which could not be repaired"):
        for path in world.store.glob(os.path.basename(tar) + "*"):
            path.unlink()


def leave_note(world, directory, name="notes.txt"):
    with world.act("operator", f"writes {name} into {directory.relative_to(world.root)}"):
        world.write(directory / name, f"learning rate was too high, see {name}\n")


# Names that a careless clean-up could take for Cairn's own.
STRANGE = ["data.tar.gz.partial", "other.tar.7f3a.partial", "notes.deleting", "mine.tar.deleting", "mine.tar.json.old",
           "README.mine", ".staging-mine/state", "deep/step-00000002/manifest.json"]


def settle_in_store(world):
    """Other people's files in the store."""
    with world.act("others", "keep files in the store and on scratch"):
        for name in STRANGE:
            world.write(world.store / name, f"theirs: {name}\n")
            world.write(world.scratch / "theirs" / name, f"theirs: {name}\n")


def make_tree(world, place, names, when=None):
    """A tree of files (a tokenizer, a sweep's model); `when` sets one mtime for all, as rsync -t and tar do."""
    root = world.scratch / "trees" / place
    with world.act("operator", f"writes the tree {place}"):
        for name, size in names.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(world.random.randbytes(size))
    if when is not None:
        for name in names:
            before = os.lstat(root / name)
            os.utime(root / name, (before.st_atime, when))
            world.digests.moved(before, os.lstat(root / name))
    return root
