"""Names of a checkpoint's types (ckpt/FORMAT.md), and torch's types."""

from __future__ import annotations

import torch

from cairn._dtypes import ITEMSIZE

TORCH_OF = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
# Since torch 2.7 and 2.8.
for _name, _of_torch in (("fp8_e8m0", "float8_e8m0fnu"), ("fp4_e2m1_x2", "float4_e2m1fn_x2")):
    if hasattr(torch, _of_torch):
        TORCH_OF[_name] = getattr(torch, _of_torch)
NAME_OF = {dtype: name for name, dtype in TORCH_OF.items()}
# The numbers of ckpt/FORMAT.md, which are in the order of their names.
NUMBER_OF = {TORCH_OF[name]: number for number, name in enumerate(ITEMSIZE, 1) if name in TORCH_OF}
