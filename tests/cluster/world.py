"""A machine within this one for tests that start nodes: its own network, processes, mounts, host name, /tmp, /run, /srv and /dev/shm.

`main()` in place of `unittest.main()` runs the calling script there. All that the tests make is gone with the world's first process,
which dies with this one, however that ends. Worlds do not see each other, so each has the same addresses and paths.
"""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INSIDE = "CAIRN_TEST_WORLD"
UNSHARE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child",
           "--mount-proc"]
# dash is the first process: it waits for orphans, which Python would not.
INIT = ["sh", "-c", '"$@"; exit $?', "sh"]
HOME = pathlib.Path("/srv")  # what a cluster makes, in memory

_libc = ctypes.CDLL(None, use_errno=True)
MS_BIND, MS_REC, MNT_DETACH = 4096, 16384, 2


def mount(source, target, kind=None, flags=0):
    if _libc.mount(os.fsencode(source), os.fsencode(target), kind and kind.encode(), flags, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mount {source} on {target}: {os.strerror(error)}")


def unmount(target):
    """Unmounts it with everything mounted below it, even if it is in use."""
    if _libc.umount2(os.fsencode(target), MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), f"unmount {target}: {os.strerror(ctypes.get_errno())}")


def refusal():
    """Why there can be no world here, or None."""
    try:
        done = subprocess.run([*UNSHARE, *INIT, "ip", "link", "add", "br0", "type", "bridge"], capture_output=True, text=True)
    except FileNotFoundError as error:
        return f"{error.filename} is missing (Debian: util-linux)"
    return None if done.returncode == 0 else "this machine refuses namespaces: " + done.stderr.strip()


def needed_paths():
    """Directories below /tmp or /srv that the tests read: this clone, the build and the Python environment."""
    names = ("CAIRN", "CAIRN_TRAIN", "CAIRN_MAKE_STEP", "FAULTY_MOUNT")
    paths = [ROOT, *(pathlib.Path(os.environ[name]).parent for name in names if os.environ.get(name))]
    paths += [pathlib.Path(os.environ[name]) for name in ("CAIRN_VENV", "PYTHONPYCACHEPREFIX") if os.environ.get(name)]
    return [path for path in map(pathlib.Path.resolve, paths) if path.is_dir()]


def kept_below(directory):
    """The topmost needed paths below it."""
    below = sorted(path for path in set(needed_paths()) if path != directory and path.is_relative_to(directory))
    return [path for path in below if not any(path != other and path.is_relative_to(other) for other in below)]


def cover(directory):
    """Mounts an empty directory over this one, in which only the needed paths are visible."""
    held = [(os.open(path, os.O_PATH), path) for path in kept_below(pathlib.Path(directory))]
    mount("tmpfs", directory, "tmpfs")
    for descriptor, path in held:
        path.mkdir(parents=True)
        mount(f"/proc/self/fd/{descriptor}", path, flags=MS_BIND | MS_REC)
        os.close(descriptor)


def main():
    if os.environ.get(INSIDE):
        for directory in ("/tmp", "/run", "/dev/shm"):
            cover(directory)
        os.chmod("/tmp", 0o1777)
        unittest.main()
    if refusal() is None:
        world = subprocess.Popen([*UNSHARE, *INIT, sys.executable, *sys.argv], env=dict(os.environ, **{INSIDE: "1"}))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the world gets the signal, too
        sys.exit(world.wait())
    unittest.main()  # each test reports why it is skipped
