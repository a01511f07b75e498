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
        self.plans, self.begun, self.copied_bytes = {}, {}, {}

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

    def end(self, request, fds):
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
        self.send({"id": request["id"], "ok": {"step_dir": str(step), "written_s": 0.1, "durable_s": 0.2, "left": [], "alarm": ""}})


def nbytes(dtype, extent):
    size = {"bool": 1, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "uint8": 1}.get(dtype) or int("".join(filter(str.isdigit, dtype))) // 8
    for dimension in extent:
        size *= dimension
    return size


try:
    Fake().run()
except BrokenPipeError:
    pass  # Python ended without waiting for the reply
