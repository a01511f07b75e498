"""Our casts against torch's, bit by bit: all 2^16 patterns of the 16-bit types, and 2^24 of fp32 in every exponent;
with CAIRN_LONG=1 all 2^32.

CAST_PROBE names the program of tests/ckpt/cast_probe.cc.
"""

import os
import subprocess
import unittest

import numpy as np
import torch

TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BITS = {"fp32": np.uint32, "fp16": np.uint16, "bf16": np.uint16}
SIGNED = {"fp32": torch.int32, "fp16": torch.int16, "bf16": torch.int16}


LONG = os.environ.get("CAIRN_LONG") == "1"
BATCH = 1 << 26


def patterns(dtype):
    """In batches that fit memory."""
    if dtype != "fp32":
        yield np.arange(1 << 16, dtype=np.uint16)
    elif LONG:
        for first in range(0, 1 << 32, BATCH):
            yield np.arange(first, first + BATCH, dtype=np.uint32)
    else:
        yield some_of_every_exponent()


def some_of_every_exponent():
    random = np.random.default_rng(1)
    top = np.arange(512, dtype=np.uint32) << 23
    low = random.integers(0, 1 << 23, size=(512, 1 << 15), dtype=np.uint32)
    bits = np.arange(23, dtype=np.uint32)
    around = ((1 << bits)[:, None] + np.arange(-2, 3)[None, :]).astype(np.uint32) & 0x7FFFFF
    low[:, : around.size] = around.ravel()
    return (top[:, None] | low).ravel()


def ours(bits, source, target):
    probe = [os.environ["CAST_PROBE"], source, target]
    out = subprocess.run(probe, input=bits.tobytes(), stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(out, BITS[target])


def theirs(bits, source, target):
    tensor = torch.from_numpy(bits.view(np.int32 if source == "fp32" else np.int16)).view(TORCH[source])
    return tensor.to(TORCH[target]).view(SIGNED[target]).numpy().view(BITS[target])


def is_nan(bits, dtype):
    signed = bits.view(np.int32 if dtype == "fp32" else np.int16)
    return torch.from_numpy(signed.copy()).view(TORCH[dtype]).isnan().numpy()


class CastTest(unittest.TestCase):
    def compare(self, bits, source, target):
        a, b = ours(bits, source, target), theirs(bits, source, target)
        nan = is_nan(b, target)
        np.testing.assert_array_equal(is_nan(a, target), nan)
        np.testing.assert_array_equal(a[~nan], b[~nan])

    def test_every_pair_is_bit_equal(self):
        for source in TORCH:
            for bits in patterns(source):
                for target in TORCH:
                    if source != target:
                        with self.subTest(source=source, target=target, first=hex(bits[0])):
                            self.compare(bits, source, target)


if __name__ == "__main__":
    unittest.main()
