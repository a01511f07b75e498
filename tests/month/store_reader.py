"""The contents of a store, read with Python's tarfile and the archive's own unpack.py, not with the programs under test."""

import hashlib
import importlib.util
import json
import os
import pathlib
import struct
import tarfile
import tempfile

UNPACK = pathlib.Path(__file__).resolve().parents[2] / "tools/archive/store/unpack.py"
PACKED = ".planes.zst"


def _unpacker():
    spec = importlib.util.spec_from_file_location("unpack", UNPACK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _digest(stream):
    return hashlib.file_digest(stream, "sha256").hexdigest()


def _entries(path):
    """{name: SHA-256} of the files of one plain tar, unpacked; files that cannot be read are left out."""
    found, packed = {}, False
    try:
        with tarfile.open(path) as tar:
            for entry in tar:
                packed = packed or entry.name.endswith(PACKED)
                if entry.isreg():
                    found[entry.name] = _digest(tar.extractfile(entry))
    except (tarfile.TarError, OSError, EOFError, ValueError):
        pass
    return (found | _unpacked(path)) if packed else found


def _unpacked(path):
    found = {}
    unpack = _unpacker()  # not below: a program that is not there must not look like a rotten tar
    with tempfile.TemporaryDirectory() as place:
        try:
            with tarfile.open(path) as tar:
                tar.extractall(place)
            directories = [(d, n[:-len(PACKED)]) for d, _, names in os.walk(place) for n in sorted(names)
                           if n.endswith(PACKED)]
            again = [(d, n) for d, n in directories if unpack.unpack(d, n, masters=False)]
            for d, n in again:
                unpack.unpack(d, n, masters=True)
            for d, n in directories:
                with open(os.path.join(d, n), "rb") as file:
                    found[os.path.relpath(os.path.join(d, n), place)] = _digest(file)
        except (OSError, EOFError, ValueError, IndexError, AssertionError, struct.error, tarfile.TarError):  # rotten
            return {}
    return found


class StoreReader:
    def __init__(self, digests):
        self._digests = digests
        self._entries = {}  # by the tar's own SHA-256

    def entries(self, path):
        digest = self._digests.of(path)
        if digest is None:
            return {}
        if digest not in self._entries:
            self._entries[digest] = _entries(path)
        return self._entries[digest]

    def groups(self, store, instead=lambda path: path):
        """[(tar's name, {entry: SHA-256})], the pieces of a tar together. `instead(path)`: where the bytes of a file
        that lies on tape are."""
        groups = {}
        for name in sorted(os.listdir(store)) if os.path.isdir(store) else []:
            base, _, last = name.rpartition(".")
            tar = name if name.endswith(".tar") else base if last.isdigit() and base.endswith(".tar") else None
            if tar:
                groups.setdefault(tar, {}).update(self.entries(instead(os.path.join(store, name))))
        return list(groups.items())

    @staticmethod
    def records(store):
        """[(tar's name, record)] of all readable sidecars, members of bundles each."""
        found = []
        for name in sorted(os.listdir(store)) if os.path.isdir(store) else []:
            if not name.endswith(".tar.json"):
                continue
            try:
                with open(os.path.join(store, name)) as file:
                    record = json.load(file)
            except (OSError, ValueError):
                continue
            for member in record.get("members", [record]) if isinstance(record, dict) else []:
                found.append((name[:-len(".json")], member))
        return found


def holds(entries, content):
    """Whether one member among the entries of a tar has all files of `content` ({name: SHA-256}), and under their names."""
    if not content:
        return False
    anchor, digest = max(content.items(), key=lambda item: len(item[0]))
    for entry, found in entries.items():
        if found == digest and ("/" + entry).endswith("/" + anchor):
            prefix = entry[:len(entry) - len(anchor)]
            if all(entries.get(prefix + name) == sha for name, sha in content.items()):
                return True
    return False
