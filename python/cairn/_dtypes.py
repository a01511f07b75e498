"""Names of a checkpoint's types (ckpt/FORMAT.md), with the bytes per element."""

ITEMSIZE = {
    "fp64": 8,
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "fp8_e8m0": 1,
    "fp4_e2m1_x2": 1,
}
