#!/usr/bin/env python3
"""Stands in for `cairn serve` if a test needs behaviour that the real one does not show on request: a slow save, an error, a death.

FAKE_HOLD: a file; a save says "written" when it is gone. FAKE_FAIL: "kind message" of every save. FAKE_DIE: end with this status at a save.
"""

import array
import json
import mmap
import os
import pathlib
import socket
import struct
import sys
import threading
import time


def receive(source):
    header, ancillary, _, _ = source.recvmsg(12, 64)
    if len(header) < 12:
        sys.exit(0)
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data)
    lengths, body = struct.unpack("<IQ", header), b""
    while len(body) < sum(lengths):
        body += source.recv(sum(lengths) - len(body))
    return {**json.loads(body[: lengths[0]]), "message_tail": body[lengths[0] :].hex()}, list(fds)


class Fake:
    def __init__(self):
        self.socket = socket.socket(fileno=0)
        self.plans, self.begun, self.windows, self.opened, self.copied_bytes = {}, {}, {}, {}, {}

    def send(self, message, fds=(), tail=b""):
        body = json.dumps(message).encode()
        socket.send_fds(self.socket, [struct.pack("<IQ", len(body), len(tail)) + body + tail], fds)

    def run(self):
        while True:
            request, fds = receive(self.socket)
            fields = getattr(self, request["do"])(request, fds)
            if fields is not None:
                self.send({"id": request["id"], "ok": fields})

    def plan(self, request, fds):
        offsets, end = [], 0
        for tensor in request["tensors"]:
            offsets.append([])
            for piece in tensor["pieces"]:
                offsets[-1].append(end)
                end += -(-nbytes(tensor["dtype"], piece["extent"]) // 4096) * 4096
        fd = os.memfd_create("plan")
        os.ftruncate(fd, end)
        self.plans[request["plan"]] = (request["tensors"], offsets, fd)
        self.send({"id": request["id"], "ok": {"bytes": end, "offsets": offsets}}, [fd])

    def forget(self, request, fds):
        os.close(self.plans.pop(request["plan"])[2])
        return {}

    def begin(self, request, fds):
        self.begun[request["nonce"]] = request
        os.makedirs(request["run"], exist_ok=True)
        return {}

    def copied(self, request, fds):
        self.copied_bytes[request["nonce"]] = request["bytes"]
        return {}

    def abort(self, request, fds):
        begun = self.begun[request["nonce"]]
        (pathlib.Path(begun["run"]) / "aborted").write_text(request["error"])
        return {}

    def write(self, request, fds):
        if "FAKE_DIE" in os.environ:
            os._exit(int(os.environ["FAKE_DIE"]))
        if "FAKE_FAIL" in os.environ:
            kind, _, message = os.environ["FAKE_FAIL"].partition(" ")
            return self.send({"id": request["id"], "error": message, "kind": kind})
        threading.Thread(target=self.finish, args=(request,)).start()

    def finish(self, request):
        tensors, offsets, fd = self.plans[request["plan"]]
        begun = self.begun[request["nonce"]]
        size = os.fstat(fd).st_size
        while os.path.exists(os.environ.get("FAKE_HOLD", "")) or self.copied_bytes.get(request["nonce"], 0) < size:
            time.sleep(0.01)
        data = mmap.mmap(fd, size)[:] if size else b""
        step = pathlib.Path(begun["run"]) / f"step-{begun['step']}"
        step.mkdir(exist_ok=True)
        (step / "data").write_bytes(data)
        (step / "index.json").write_text(json.dumps({"begun": begun, "tensors": tensors, "offsets": offsets, "save": request}))
        self.send({"id": request["id"], "event": "written"})
        self.send({"id": request["id"], "ok": {"step_dir": str(step), "written_s": 0.1, "durable_s": 0.2, "left": []}})

    def open(self, request, fds):
        path = pathlib.Path(request["path"])
        if not (path / "index.json").exists():
            return self.send({"id": request["id"], "error": f"{path}: not a checkpoint", "kind": "not_found"})
        index = json.loads((path / "index.json").read_text())
        tail, values = bytes.fromhex(index["save"]["message_tail"]), {}
        for group in index["save"]["objects"].values():
            for fqn, entry in group["values"].items():
                place = entry["pickle"] if "pickle" in entry else entry["tensor"]["data"] if "tensor" in entry else [0, 0]
                place[0] += group["tail"][0]
                values[fqn] = entry
        small = {fqn: entry["tensor"] for fqn, entry in values.items() if "tensor" in entry}
        listed = [{key: tensor[key] for key in ("fqn", "dtype", "shape")} for tensor in index["tensors"]]
        listed += [{"fqn": fqn, "dtype": entry["dtype"], "shape": entry["shape"]} for fqn, entry in small.items()]
        paths = {tensor["fqn"]: tensor["path"] for tensor in index["tensors"] if "path" in tensor}
        paths.update({fqn: values[fqn]["path"] for fqn in small if "path" in values[fqn]})
        self.opened[request["id"]] = (path, index, [tail[at : at + n] for at, n in (entry["data"] for entry in small.values())])
        objects = {fqn: entry for fqn, entry in values.items() if fqn not in small}
        fields = {"handle": request["id"], "dir": str(path), "step": index["begun"]["step"], "format": "cairn"}
        fields.update(tensors=listed, objects=objects, paths=paths, state={}, model={})
        self.send({"id": request["id"], "ok": fields}, tail=tail)

    def window(self, request, fds):
        self.windows[request["window"]] = mmap.mmap(fds[0], 0)
        os.close(fds[0])
        return {}

    def read(self, request, fds):
        path, index, small = self.opened[request["handle"]]
        data, window = (path / "data").read_bytes(), self.windows[request["window"]]
        for box in request["boxes"]:
            if box["tensor"] >= len(index["tensors"]):
                read = small[box["tensor"] - len(index["tensors"])]
            else:
                read = cut(data, index["tensors"][box["tensor"]], index["offsets"][box["tensor"]], box)
            window[box["at"] : box["at"] + len(read)] = read
        return {}

    def check(self, request, fds):
        return {}

    def close(self, request, fds):
        if "window" in request:
            self.windows.pop(request["window"]).close()
        else:
            del self.opened[request["handle"]]
        return {}


def nbytes(dtype, extent):
    size = {"bool": 1, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "uint8": 1}.get(dtype) or int("".join(filter(str.isdigit, dtype))) // 8
    for dimension in extent:
        size *= dimension
    return size


def cut(data, tensor, offsets, box):
    """Rows of a tensor that one rank wrote whole: boxes that differ from it in the first dimension only."""
    assert box["extent"][1:] == tensor["shape"][1:] or box["extent"][0] == 1, box
    row = nbytes(tensor["dtype"], tensor["shape"][1:])
    inner = nbytes(tensor["dtype"], tensor["shape"][2:]) if len(tensor["shape"]) > 1 else 0
    begin = offsets[0] + row * (box["offset"] or [0])[0] + inner * (box["offset"] + [0, 0])[1]
    return data[begin : begin + nbytes(tensor["dtype"], box["extent"])]


try:
    Fake().run()
except BrokenPipeError:
    pass  # Python ended without waiting for the reply
