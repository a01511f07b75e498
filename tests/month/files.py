"""SHA-256 of files, each read once: a file that is written, or whose times are set, has another change time."""

import hashlib
import os
import stat


class Digests:
    def __init__(self):
        self._known = {}

    @staticmethod
    def _key(info):
        return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns

    def moved(self, before, after):
        """Only the times of a file were set."""
        digest = self._known.pop(self._key(before), None)
        if digest:
            self._known[self._key(after)] = digest

    def of(self, path):
        """SHA-256 in hex of a regular file; None if there is none."""
        try:
            info = os.stat(path)
            if not stat.S_ISREG(info.st_mode):
                return None
            key = self._key(info)
            if key not in self._known:
                # Reading must not look like a user's access: the purge uses access times.
                with open(os.open(path, os.O_RDONLY | os.O_NOATIME), "rb") as file:
                    self._known[key] = hashlib.file_digest(file, "sha256").hexdigest()
            return self._known[key]
        except OSError:
            return None

    def tree(self, root):
        """{path below root: SHA-256}, of regular files; links are not followed."""
        found = {}
        for directory, _, names in os.walk(root):
            for name in names:
                path = os.path.join(directory, name)
                if not os.path.islink(path):
                    found[os.path.relpath(path, root)] = self.of(path)
        return found


def fingerprint(digests, path):
    """A fingerprint of another user's path: kind, mode, and content, target or the names inside. None if it is gone."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISLNK(info.st_mode):
        return "link", os.readlink(path)
    if stat.S_ISDIR(info.st_mode):
        return "directory", stat.S_IMODE(info.st_mode)
    if stat.S_ISREG(info.st_mode):
        return "file", stat.S_IMODE(info.st_mode), digests.of(path)
    return "other", info.st_mode
