"""Known attacks on readers of checkpoints, by target and name. make_corpus.py writes them.

Sources: the published classes of attacks on pickles (reduce, memo, STACK_GLOBAL), on zip files (bombs of packed and of
overlapping records, names that leave the directory), on safetensors (its own attacks/ directory: lengths, offsets,
duplicates, nesting), on JSON and on tar; Git LFS pointers that were never resolved; and bombs of our own, in which parts
that a pickle shares are worth more than its length.
"""

import io
import json
import struct
import tarfile
import zipfile
import zlib

LFS = (b"version https://git-lfs.github.com/spec/v1\n"
       b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n")
U64 = 2 ** 64 - 1


def text(value):
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def put(slot):
    return b"r" + struct.pack("<I", slot)


def get(slot):
    return b"j" + struct.pack("<I", slot)


def get1(slot):
    return b"h" + bytes([slot])


def integer(value):
    return b"\x8a\x08" + struct.pack("<q", value)


def storage(elements=6, key="0"):
    return b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + integer(elements) + b"tQ"


def tensor(shape=(2, 3), stride=(3, 1), offset=0, elements=6):
    def sizes(values):
        return b"(" + b"".join(map(integer, values)) + b"t"
    return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage(elements) + integer(offset) + sizes(shape) +
            sizes(stride) + b"\x89ccollections\nOrderedDict\n)RtR")


def pickles():
    proto = b"\x80\x02"
    laugh = proto + b")q\0" + b"".join(get1(i) + get1(i) + b"\x86q" + bytes([i + 1]) for i in range(200)) + b"."
    itself = proto + b"]q\0" + get1(0) + b"a."
    many = proto + tensor() + put(0) + b"0(" + get1(0) * 8000 + b"l" + put(1) + b"0(" + get1(1) * 8000 + b"l."
    key = proto + text("k" * 20000) + put(0) + b"0(" + get1(0) * 8000 + b"t" + put(1) + b"0}(" + (
        get1(1) + b")") * 4000 + b"u."
    long_names = proto + text("k" * 30000) + put(0) + b"0}" + get1(0) + tensor() + b"s" + put(1) + b"0(" + (
        get1(1) * 10000) + b"l."
    names = b"}(" + b"".join(text(f"{i:04}") + b"N" for i in range(3000)) + b"u"
    return {
        "reduce-posix-system": proto + b"cposix\nsystem\n" + text("true") + b"\x85R.",
        "reduce-builtins-eval": proto + b"cbuiltins\neval\n" + text("1") + b"\x85R.",
        "reduce-nested": proto + b"ctorch._utils\n_rebuild_parameter\ncos\nsystem\n" + text("true") + b"\x85R\x85R.",
        "reduce-from-type": proto + b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\ncos\nsystem\n)NtR.",
        "newobj-ex-popen": proto + b"csubprocess\nPopen\n)}" + text("shell") + b"\x88s\x92.",
        "stack-global-exec": b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x01a\x85R.",
        "stack-global-dotted": b"\x80\x04\x8c\x0ctorch.serial\x8c\x0fos.system.x.y.z\x93.",
        "build-setattr": proto + b"ctorch\nSize\n}" + text("__class__") + b"cos\nsystem\nsb.",
        "persistent-id-module": proto + b"(" + text("module") + b"cx\ny\n" + text("x.py") + text("") + b"tQ.",
        "memo-slot-2-31": proto + b"Nr\xff\xff\xff\x7f.",
        "memo-empty-slot": proto + b"j\xff\xff\xff\xff.",
        "memo-gets": proto + b"]q\0(" + get1(0) * 2000 + b"e.",
        "laughs": laugh,
        "holds-itself": itself,
        "holds-itself-dict": proto + b"}q\0" + text("a") + get1(0) + b"s.",
        "object-in-own-state": proto + b"cx\ny\n)\x81q\0" + get1(0) + b"b.",
        "shared-tensors": many,
        "shared-tuple-keys": key,
        "shared-long-names": long_names,
        "copies-ordered-dict": proto + names + put(0) + b"0(" + (b"ccollections\nOrderedDict\n" + get(0) + b"\x85R") * 300 +
                               b"l.",
        "copies-set": proto + b"(" + b"N" * 9000 + b"l" + put(0) + b"0c__builtin__\nset\n" + put(1) + b"0(" +
                      (get1(1) + get1(0) + b"\x85R") * 8000 + b"l.",
        "objects-of-arguments": proto + b"(" + b"N" * 9000 + b"t" + put(0) + b"0cx\ny\n" + put(1) + b"0(" +
                                (get1(1) + get1(0) + b"R") * 8000 + b"l.",
        "marks": proto + b"(" * 20000 + b".",
        "tuples-deep": proto + b"N" + b"\x85" * 60000 + b".",
        "lists-deep": proto + b"]" * 20000 + b"a" * 19999 + b".",
        "unicode-2-64": b"\x80\x04\x8d" + b"\xff" * 8 + b"a.",
        "bytes-2-63": b"\x80\x04\x8e" + struct.pack("<Q", 2 ** 63) + b"a.",
        "long-2-31": proto + b"\x8b\xff\xff\xff\x7f1.",
        "long-negative": proto + b"\x8b\xff\xff\xff\xff1.",
        "frame-2-64": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
        "shape-overflows": proto + tensor((2 ** 32, 2 ** 32, 2 ** 32), (1, 1, 1)) + b".",
        "shape-2-62": proto + tensor((2 ** 62,) * 8, (0,) * 8) + b".",
        "stride-overflows": proto + tensor((2, 3), (2 ** 62, 2 ** 62)) + b".",
        "offset-2-62": proto + tensor(offset=2 ** 62) + b".",
        "storage-2-62": proto + tensor(elements=2 ** 62) + b".",
        "protocol-255": b"\x80\xff.",
        "git-lfs-pointer": LFS,
    }


def dcp_metadata():
    module = b"ctorch.distributed.checkpoint.metadata\n"

    def made(name, state):
        return module + name + b"\n)\x81}(" + b"".join(text(k) + v for k, v in state) + b"ub"

    def metadata(tensors, planner, stored):
        return (b"\x80\x02" + module + b"Metadata\n)\x81}(" + text("state_dict_metadata") + tensors +
                text("planner_data") + planner + text("storage_data") + stored + b"ub.")

    def entry(name, info):
        index = made(b"MetadataIndex", [("fqn", text(name)), ("offset", b"K\0\x85")])
        return b"}" + index + info + b"s"

    def info(path="__0_0.distcp", offset=0, length=8):
        return made(b"_StorageInfo", [("relative_path", text(path)), ("offset", integer(offset)),
                                      ("length", integer(length))])

    chunk = made(b"ChunkStorageMetadata", [("offsets", b"K\0\x85"), ("sizes", b"K\2\x85")])
    one = made(b"TensorStorageMetadata", [("size", b"K\2\x85"), ("chunks", b"]" + chunk + b"a")])
    # Many tensors that share one list of many chunks.
    lists = made(b"TensorStorageMetadata", [("size", b"K\2\x85"),
                                            ("chunks", chunk + put(9) + b"0(" + get1(9) * 8000 + b"l")])
    shared = b"}(" + b"".join(text(f"t{i}") + (lists + put(1) if i == 0 else get1(1)) for i in range(450)) + b"u"
    places = info() + put(2) + b"0}(" + b"".join(
        made(b"MetadataIndex", [("fqn", text(f"t{i}")), ("offset", b"K\0\x85")]) + get1(2) for i in range(450)) + b"u"
    # Many paths that share one list of many parts.
    parts = b"(" + text("part") + put(3) + get1(3) * 10000 + b"t" + put(4) + b"0}(" + b"".join(
        text(f"{i}") + get1(4) for i in range(4000)) + b"u"
    # One object of many attributes, which is the location of everything.
    wide = made(b"_StorageInfo", [("relative_path", text("f")), ("offset", b"K\0"), ("length", b"K\0")] +
                [(f"{i:04}", b"N") for i in range(3900)]) + put(5) + b"0}(" + b"".join(
        made(b"MetadataIndex", [("fqn", text(f"{i}"))]) + get1(5) for i in range(300)) + b"u"
    good = entry("w", info())
    return {
        "shared-chunks": metadata(shared, b"}", places),
        "shared-path-parts": metadata(b"}", parts, b"}"),
        "shared-attributes": metadata(b"}", b"}", wide),
        "path-leaves-directory": metadata(b"}" + text("w") + one + b"s", b"}", entry("w", info("../../etc/passwd"))),
        "offset-negative": metadata(b"}" + text("w") + one + b"s", b"}", entry("w", info(offset=-1))),
        "place-overflows": metadata(b"}" + text("w") + one + b"s", b"}",
                                    entry("w", info(offset=2 ** 63 - 1, length=2 ** 63 - 1))),
        "one-tensor": metadata(b"}" + text("w") + one + b"s", b"}", good),
        "chunk-in-no-file": metadata(b"}" + text("w") + one + b"s", b"}", b"}"),
        "git-lfs-pointer": LFS,
    }


def safetensors():
    def file(header, data=b"", length=None):
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(raw) if length is None else length) + raw + data

    def one(shape, offsets, dtype="F32"):
        return {"dtype": dtype, "shape": shape, "data_offsets": offsets}

    pair = b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    return {
        "length-2-64": file({}, length=U64), "length-2-63": file({}, length=2 ** 63),
        "length-100-mb": file({}, length=100_000_000), "length-too-long": file({}, length=3),
        "shape-overflows": file({"a": one([2 ** 32] * 3, [0, 0])}),
        "shape-wraps-to-size": file({"a": one([2 ** 33, 2 ** 31], [0, 0])}),
        "offset-2-64": file({"a": one([2], [0, U64])}), "offset-beyond-2-64": file({"a": one([2], [0, 2 ** 64])}),
        "offsets-backwards": file({"a": one([2], [8, 0])}, b"x" * 8),
        "overlap": file({"a": one([2], [0, 8]), "b": one([2], [4, 12])}, b"x" * 12),
        "hole": file({"a": one([2], [0, 8]), "b": one([2], [12, 20])}, b"x" * 20),
        "polyglot-tail": file({"a": one([2], [0, 8])}, b"x" * 8 + b"PK\5\6" + b"\0" * 18),
        "duplicate-tensor": file(b"{" + pair + b"," + pair + b"}", b"x"),
        "duplicate-field": file(b'{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
        "nested": file(b'{"a":' + b"[" * 5000), "nested-objects": file(b'{"a":' * 2000),
        "rank-1000": file({"a": one([1] * 1000, [0, 4])}, b"x" * 4),
        "fraction": file({"a": one([2.5], [0, 8])}, b"x" * 8), "negative": file({"a": one([-1], [0, 8])}, b"x" * 8),
        "zero-size": file({"a": one([0, 2 ** 63], [0, 0])}), "utf-8-broken": file(b'{"\xff":1}'),
        "metadata-number": file({"__metadata__": {"a": 1}}), "many-tensors": file({str(i): one([0], [0, 0])
                                                                                  for i in range(100)}),
        "git-lfs-pointer": LFS, "empty": b"",
    }


def json_files(deep=20000):
    return {"git-lfs-pointer": LFS, "nested": b'{"weight_map":' + b"[" * deep, "empty": b"",
            "nested-closed": b'{"model":' + b"[" * deep + b"]" * deep + b"}",
            "nested-format": b'{"format":' + b"[" * deep + b"]" * deep + b"}",
            "number-1e400": b'{"weight_map":{"a":1e400},"step":1e400,"version":1e400}'}


def weight_index():
    def index(files):
        return json.dumps({"metadata": {"total_size": U64}, "weight_map": files}).encode()
    return json_files(1000) | {
        "leaves-directory": index({"a": "../../etc/passwd"}), "absolute": index({"a": "/etc/passwd"}),
        "itself": index({"a": "."}), "number": index({"a": 1}), "none": index({}),
        "duplicate-key": b'{"weight_map":{"a":"x","a":"y"}}', "trailing": index({"a": "x"}) + b"{}",
    }


def indexed_dataset():
    def idx(sequences, documents, lengths=(), pointers=(), entries=(), code=4, version=1, magic=b"MMIDIDX\0\0"):
        return (magic + struct.pack("<QBQQ", version, code, sequences, documents) +
                b"".join(struct.pack("<i", x) for x in lengths) + b"".join(struct.pack("<q", x) for x in pointers) +
                b"".join(struct.pack("<q", x) for x in entries))
    return {
        "sequences-2-64": idx(U64, 1, entries=[0]), "documents-2-64": idx(0, U64, entries=[0]),
        "sizes-wrap": idx(2 ** 64 // 12 + 1, 2, entries=[0, 0]), "documents-wrap": idx(0, 2 ** 61, entries=[0]),
        "length-negative": idx(1, 2, [-1], [0], [0, 1]), "length-2-31": idx(1, 2, [2 ** 31 - 1], [0], [0, 1]),
        "pointer-2-63": idx(1, 2, [2], [2 ** 63 - 1], [0, 1]), "pointer-negative": idx(1, 2, [2], [-8], [0, 1]),
        "documents-backwards": idx(2, 3, [1, 1], [0, 4], [0, 2, 1]), "documents-none": idx(0, 0),
        "documents-beyond": idx(1, 2, [1], [0], [0, 9]), "floats": idx(1, 2, [1], [0], [0, 1], code=6),
        "version-2": idx(1, 2, [1], [0], [0, 1], version=2), "header-only": idx(0, 1, entries=[0])[:33],
        "multimodal": idx(1, 2, [1], [0], [0, 1]) + b"\0", "legacy-tntidx": b"TNTIDX\0\0" + b"\1" * 40,
        "long-sequences": idx(4000, 2, [2 ** 31 - 1] * 4000, [i * (2 ** 31 - 1) for i in range(4000)], [0, 4000], code=1),
        "git-lfs-pointer": LFS,
    }


def zips(pickle):
    def packed(entries, method=zipfile.ZIP_STORED):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as out:
            for name, data in entries:
                out.writestr(zipfile.ZipInfo(name), data, method)
        return file.getvalue()

    def local(name, data):
        return struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(name),
                           0) + name + data

    def central(name, size, header, crc=0, extra=b"", flags=0, method=0, packed_size=None):
        return struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, flags, method, 0, 0, crc,
                           size if packed_size is None else packed_size, size, len(name), len(extra), 0, 0, 0, 0,
                           header) + name + extra

    def end(count, size, at, comment=b""):
        return struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, size, at, len(comment)) + comment

    whole = local(b"a/data.pkl", pickle)

    def one(directory, body=whole):
        return body + directory + end(1, len(directory), len(body))

    body = local(b"a/data.pkl", b"x" * 3000)
    overlapping = b"".join(central(b"a/data/%d" % i, 3000, 0) for i in range(100))
    wide = struct.pack("<HHQQQ", 1, 24, U64, U64, 0)
    zip64 = (struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, U64, U64, U64, U64) +
             struct.pack("<4sIQI", b"PK\6\7", 0, 0, 1))
    return {
        "bomb-deflated": packed([("a/data.pkl", b"\0" * (10 << 20))], zipfile.ZIP_DEFLATED),
        "bomb-overlapping": body + overlapping + end(100, len(overlapping), len(body)),
        "bomb-many-empty": packed([(f"a/data/{i}", b"") for i in range(100)]),
        "names-leave-directory": packed([("../../etc/passwd", b"x"), ("a/data.pkl", pickle)]),
        "names-absolute": packed([("/etc/passwd", b"x"), ("/data.pkl", pickle)]),
        "names-two-archives": packed([("a/data.pkl", pickle), ("b/data.pkl", pickle)]),
        "record-twice": one(central(b"a/data.pkl", len(pickle), 0) * 2),
        "record-2-64": one(central(b"a/data.pkl", 2 ** 32 - 1, 0, extra=wide)),
        "record-4-gb": one(central(b"a/data.pkl", 2 ** 32 - 2, 0)),
        "record-behind-end": one(central(b"a/data.pkl", 4, 2 ** 31)),
        "record-encrypted": one(central(b"a/data.pkl", len(pickle), 0, flags=1)),
        "record-sizes-differ": one(central(b"a/data.pkl", 2 ** 30, 0, packed_size=len(pickle))),
        "checksum-wrong": one(central(b"a/data.pkl", len(pickle), 0, crc=1)),
        "zip64-end-2-64": zip64 + end(2 ** 16 - 1, 2 ** 32 - 1, 2 ** 32 - 1),
        "zip64-end-missing": body + end(2 ** 16 - 1, 2 ** 32 - 1, 2 ** 32 - 1),
        "directory-counts-too-many": body + end(65534, 46, len(body)),
        "end-in-comment": body + end(0, 0, 0, end(0, 0, 0)),
        "torchscript": packed([("a/constants.pkl", pickle), ("a/data.pkl", pickle)]),
        "storage-too-short": packed([("a/data.pkl", b"\x80\x02" + tensor(elements=2 ** 20) + b"."), ("a/data/0", b"x")]),
        "tensor-behind-storage": packed([("a/data.pkl", b"\x80\x02" + tensor((9,), (1,)) + b"."),
                                         ("a/data/0", b"x" * 24)]),
        "tensor-scattered": packed([("a/data.pkl", b"\x80\x02" + tensor((2 ** 20, 3), (0, 2)) + b"."),
                                    ("a/data/0", b"x" * 24)]),
        "git-lfs-pointer": LFS, "empty": b"", "ustar-before-0.4": b"\0" * 257 + b"ustar" + b"\0" * 250,
        "zeros": b"\0" * 4096,
    }


def archive_record():
    def tar(*members):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as out:
            for name, kind, size, headers in members:
                info = tarfile.TarInfo(name)
                info.type, info.size, info.pax_headers = kind, size, headers
                info.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
                out.addfile(info, io.BytesIO(b"x" * size) if size else None)
        return file.getvalue()

    step, plain = "run/step-00000040/", tarfile.REGTYPE
    good = (step + "manifest.json", plain, 10, {})
    large = bytearray(tar(good))
    large[124:136] = b"77777777777\0"
    return json_files() | {
        "tar-good": tar(good, (step + "shard-00000.h5", plain, 100, {})),
        "tar-leaves-directory": tar(good, ("../../etc/passwd", plain, 1, {})),
        "tar-absolute": tar(good, ("/etc/passwd", plain, 1, {})), "tar-link": tar(good, (step + "a", tarfile.SYMTYPE, 0, {})),
        "tar-hard-link": tar(good, (step + "a", tarfile.LNKTYPE, 0, {})), "tar-device": tar((step + "a", tarfile.CHRTYPE, 0, {})),
        "tar-twice": tar(good, good), "tar-size-8-gb": bytes(large), "tar-pax-size": tar((step + "a", plain, 1, {"size": str(U64)})),
        "tar-pax-path": tar((step + "a", plain, 1, {"path": "../../x"})),
        "tar-sparse": tar((step + "a", plain, 1, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                                                    "GNU.sparse.realsize": str(2 ** 62)})),
        "tar-long-name": tar((step + "a" * 5000, plain, 1, {})), "tar-truncated": tar(good)[:700],
    }


def directories():
    """Inputs of foreign_dir.cc."""
    def packed(files):
        return b"".join(struct.pack("<H", len(name)) + name.encode() + struct.pack("<I", len(data)) + data
                        for name, data in files.items())

    def state(key):
        tensors = b"}" + text("w") + tensor((1, 3), (3, 1)) + b"s"
        return b"\x80\x02}" + text(key) + tensors + b"s."

    def file(data):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr(zipfile.ZipInfo("a/data.pkl"), data)
            archive.writestr(zipfile.ZipInfo("a/data/0"), b"x" * 24)
        return out.getvalue()

    def experts(number, more=b""):
        tensors = b"}" + text(f"a.deepspeed_experts.{number}.w") + tensor((1, 3), (3, 1)) + b"s"
        return file(b"\x80\x02" + (b"}" + text("module") + tensors + b"s" + more if more else tensors) + b".")

    optimizer = text("optimizer") + b"}" + text("state") + b"}s" + text("param_groups") + b"]ss"
    counts = text("num_experts") + b"](\x8a\x09" + U64.to_bytes(9, "little") + b"K\x01es"
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2 ** 40, "n_embd": 0, "n_head": 0,
              "vocab_size": -1}
    index = {"weight_map": {"w": "../x.bin"}}
    def release(**sizes):
        """A mixture whose sizes no tensor has."""
        mixtral = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 8, "num_hidden_layers": 1,
                   "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 10, "intermediate_size": 8,
                   "max_position_embeddings": 4, "num_local_experts": 2, "num_experts_per_tok": 1}
        return packed({"config.json": json.dumps(mixtral | sizes).encode(), "pytorch_model.bin": file(state("w"))})

    # 2^21 experts of 2^21 rows of 2^22 columns have 2^64 elements.
    mixtures = {"hf-experts-none": release(num_local_experts=0), "hf-experts-2-62": release(num_local_experts=2 ** 62),
                "hf-experts-many": release(num_local_experts=10 ** 9), "hf-experts-per-token": release(num_experts_per_tok=-1),
                "hf-experts-overflow": release(num_local_experts=2 ** 21, intermediate_size=2 ** 21, hidden_size=2 ** 22)}
    return mixtures | {
        "hf-sizes": packed({"config.json": json.dumps(config).encode(), "pytorch_model.bin": file(state("w"))}),
        "hf-index-leaves": packed({"config.json": b"{}", "pytorch_model.bin.index.json": json.dumps(index).encode()}),
        "megatron-dist-nested": packed({"metadata.json": b'{"sharded_backend":' + b"[" * 30000 + b"]" * 30000 + b"}"}),
        "deepspeed-huge-world": packed({"latest": b"x", "mp_rank_2147483647_model_states.pt": file(state("module"))}),
        "deepspeed-huge-expert": packed({"latest": b"x", "mp_rank_00_model_states.pt": experts(U64, optimizer)}),
        "deepspeed-huge-mixture": packed({"latest": b"x", "mp_rank_00_model_states.pt": experts(3, optimizer + counts),
                                          "layer_0_expert_0_mp_rank_00_model_states.pt": experts(U64),
                                          "layer_1_expert_0_mp_rank_00_model_states.pt": experts(0)}),
        "all-pointers": packed({name: LFS for name in ("config.json", "model.safetensors", "pytorch_model.bin",
                                                       "mp_rank_00_model_states.pt", ".metadata", "metadata.json")}),
    }
