"""Checkpoints of Llama, shaped as MLPerf Storage 2.0 shapes them: rates of saves, loads and reshapes, and their costs.

The state of 8B is real: 16-bit weights, fp32 masters and moments, 14 bytes a parameter. Each save ends with fsync, and each
load begins with a cold page cache. --bytes keeps as many layers as fit, and the same share of the vocabulary; if one layer is
too large, the width is halved until it fits. The table says which share ran. All four models exist as metadata only, on
the ranks of MLPerf: their shards are sparse files, and no tensor is transferred.

Each tool is a process of its own over one shared state. All take turns with a raw O_DIRECT write and read of as many bytes,
and each round starts with the next tool. A turn is a save and a load, and counts once the load gave back every bit. Processor
time and memory are those of the tool and its children. Memory is the most that they took, beyond the state and beyond the
tool's memory at its start. A GB is 10^9 bytes.

    storage.py [--bytes 4GB] [--rounds 5] [--dir DIR] [--json FILE] [--plot DIR]
"""

import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore", message="torch.distributed is disabled")

import turns  # noqa: E402
from peers import PEERS, files_of  # noqa: E402
from reshape_speed import RESHARD, dcp_tensors, digests, equal, native, python  # noqa: E402
from save_speed import VOID, available_memory, remove, rotated, size_of  # noqa: E402
from sources import CAIRN, convert  # noqa: E402
from storage_report import RAW, plot, tables  # noqa: E402
from storage_tools import Raw, Tool, Trainer  # noqa: E402
from trained_state import Shared, llama_run  # noqa: E402
from usage import Used  # noqa: E402

TOOLS = ["cairn.torch lazy", "DCP", "DCP async", "torch.load mmap", "safetensors"]
# Layers, hidden, FFN, heads, heads of keys and values, width of a head; then TP, PP, DP and ZeRO stage. 1T has 192 heads
# of 134 here, because MLPerf's hidden size is not a multiple of its heads.
MODELS = {"8B": ((32, 4096, 14336, 32, 8, 128), (1, 1, 8, 3)), "70B": ((80, 8192, 28672, 128, 8, 64), (8, 1, 8, 3)),
          "405B": ((126, 16384, 53248, 128, 8, 128), (8, 32, 2, 1)), "1T": ((128, 25872, 98304, 192, 32, 134), (8, 64, 2, 1))}
VOCABULARY = 128256


def bytes_of(layers, hidden, ffn, heads, kv_heads, vocabulary):
    attention = 2 * hidden * hidden * (1 + kv_heads / heads)
    return 14 * (layers * (attention + 3 * hidden * ffn + 2 * hidden) + 2 * vocabulary * hidden + hidden)


def cut(size):
    """The arguments of llama_run for the share of 8B that fits, and that share in words."""
    layers, hidden, ffn, heads, kv_heads, _ = MODELS["8B"][0]
    shape = lambda kept, width: (kept, hidden // width, ffn // width, heads, kv_heads, VOCABULARY * kept // layers)
    width = next((w for w in (1, 2, 4, 8, 16, 32) if bytes_of(*shape(1, w)) <= size), 64)
    kept = next((n for n in range(layers, 1, -1) if bytes_of(*shape(n, width)) <= size), 1)
    words = f"{kept} of 32 layers and {kept}/32 of the vocabulary" + (f", 1/{width} as wide" if width > 1 else "")
    return shape(kept, width), "all of it" if kept == 32 else words


def turn(tool, shared, path):
    """Seconds and costs of one save and one cold load."""
    with Used(tool.pid) as saving:
        stall, durable = tool.save(path)
    for file in files_of(path) if os.path.exists(path) else []:
        shared.ask("cold", file)
    if tool.name != RAW:
        for tensor in shared.tensors.values():
            tensor.zero_()
    with Used(tool.pid) as loading:
        seconds = tool.load(path)
    if tool.name != RAW:
        shared.check(shared.tensors.items())
    remove(path)
    return {"save": durable, "stall": stall, "save_cpu": saving.cpu, "save_memory": saving.memory - tool.before,
            "load": seconds, "load_cpu": loading.cpu, "load_memory": loading.memory - tool.before}


def rounds(a, shared, tools):
    """{tool: [its turn of each round]}"""
    taken = {tool.name: [] for tool in tools}
    for round_ in range(a.rounds):
        for tool in rotated(tools, round_):
            time.sleep(a.settle)  # until free memory is as found (save_speed.py)
            taken[tool.name].append(turn(tool, shared, os.path.join(a.dir, "state")))
            last = taken[tool.name][-1]
            print(f"round {round_ + 1}: {tool.name} saves in {last['save']:.2f} s, loads in {last['load']:.2f} s", file=sys.stderr, flush=True)
    return taken


def real_rows(taken, size):
    rows = []
    for name, of in taken.items():
        row = {"by": name, "stall": statistics.median(v["stall"] for v in of)}
        for what in ("save", "load"):
            rates = [size / v[what] / 1e9 for v in of]
            raw = [size / v[what] / 1e9 for v in taken[RAW]]
            row[what] = {"seconds": statistics.median(v[what] for v in of), "rate": statistics.median(rates), "from": min(rates), "to": max(rates),
                         "of_raw": statistics.median(rate / limit for rate, limit in zip(rates, raw)),
                         "moved": name == RAW and max(rates) - min(rates) > VOID * statistics.median(rates),
                         "cpu_per_gb": statistics.median(v[what + "_cpu"] for v in of) / size * 1e9,
                         "memory": None if name == RAW else max(v[what + "_memory"] for v in of) / size}
        rows.append(row)
    return rows


def reshape_rows(a, size, run, source, peers):
    """From MLPerf's 8 ranks of 8B to TP 8, by ours and by one process of DCP."""
    wanted, dcp = digests(native(source)), os.path.join(a.dir, "dcp")
    contenders = [turns.Contender(name, source, [CAIRN, "reshape", source, "OUT", "--tp", "8", "--dp", "1", *flags], equal(native, wanted))
                  for name, flags in (("cairn reshape", []), ("cairn reshape --no-read-back", ["--no-read-back"]))]
    if peers:
        convert(run, dcp, "--to", "dcp", "--tp", "1", "--pp", "1", "--dp", "8")
        contenders.append(turns.Contender("dcp.load, dcp.save", dcp, python(RESHARD, dcp), equal(dcp_tensors, wanted)))
    return turns.measure(turns.Job("reshape", turns.Limit(source, size, size), contenders), os.path.join(a.dir, "out"), a.rounds)


def metadata_row(name, d):
    """The work of one process for all ranks of a model; the last is a reshape to half the TP and twice the DP."""
    (layers, hidden, ffn, heads, kv_heads, head_dim), (tp, pp, dp, zero) = MODELS[name]
    run, program = os.path.join(d, "run"), os.path.join(os.path.dirname(os.path.abspath(CAIRN)), "open_bench")
    flags = {"layers": layers, "hidden": hidden, "ffn": ffn, "heads": heads, "kv-heads": kv_heads, "head-dim": head_dim,
             "vocab": VOCABULARY, "tp": tp, "pp": pp, "dp": dp, "zero": zero}
    ask = lambda *words: json.loads(subprocess.run([program, *words], check=True, stdout=subprocess.PIPE).stdout)
    made = ask("make", run, "--llama", *(f"--{key}={value}" for key, value in flags.items()))
    opened = ask("open", os.path.join(run, "step-00000001"))
    row = {"model": name, "ranks": tp * pp * dp, "bytes": made["bytes"], "tensors": made["tensors"], "pieces": opened["pieces"],
           "metadata": made["metadata"], "plan": made["plan"], "seal": made["seal"], "open": opened["open"]}
    half = ["--tp", max(1, tp // 2), "--pp", pp, "--dp", 2 * dp if tp > 1 else dp // 2]
    for key, words in (("verify", ["verify", run, "--structure"]), ("reshape", ["reshape", run, run + "-half", *half, "--virtual"])):
        start = time.perf_counter()
        row[key + "_memory"], _ = turns.run(CAIRN, *words)
        row[key] = time.perf_counter() - start
    return row


def metadata_rows(a):
    rows = []
    for name in MODELS:
        of = []
        for _ in range(a.rounds):
            with tempfile.TemporaryDirectory(dir=a.dir) as d:
                of.append(metadata_row(name, d))
        rows.append({key: value if isinstance(value, str) else statistics.median(row[key] for row in of) for key, value in of[0].items()})
    return rows


def measured(a):
    shape, share = cut(a.bytes)
    need = bytes_of(*shape)
    if available_memory() < 5 * need:  # the state, what ours and cairn.torch keep of it, a copy of DCP async, the page cache
        raise SystemExit(f"this takes {5 * need / 1e9:.1f} GB of memory, {available_memory() / 1e9:.1f} GB are available; give smaller --bytes")
    if shutil.disk_usage(a.dir).free < 5 * need:
        raise SystemExit(f"this takes {5 * need / 1e9:.1f} GB of disk; give another --dir")
    run, source = llama_run(CAIRN, a.dir, *shape), os.path.join(a.dir, "source")
    shared = Shared(CAIRN, run)
    (shard,) = glob.glob(os.path.join(run, "step-*", "shard-00000.h5"))
    tools = [Raw(shared, shard), Trainer(shared), *(Tool(name, shared) for name in a.tools.split(",") if name)]
    report = {"share": share, "bytes": shared.bytes, "rounds": a.rounds, "real": real_rows(rounds(a, shared, tools), shared.bytes)}
    report["verified_bytes"] = shared.checked_bytes
    for program in tools[2:]:
        program.close()
    subprocess.run([CAIRN, "reshape", run, source, "--dp", "8", "--zero", "3"], check=True, capture_output=True)
    report["reshape"] = reshape_rows(a, shared.bytes, run, source, "DCP" in a.tools.split(","))
    shared.close()
    return report


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bytes", type=size_of, default=size_of("4GB"), help="size of the state at most; 113GB is all of 8B")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--dir", default=".", help="where files are written; its disk is what is measured")
    p.add_argument("--settle", type=float, help="seconds until memory counts as found (default 3, for small states 0)")
    p.add_argument("--tools", default=",".join(TOOLS), help="comma-separated, of " + ", ".join(PEERS))
    p.add_argument("--json", metavar="FILE", help="all figures")
    p.add_argument("--plot", metavar="DIR", help="rates.svg, costs.svg and metadata.svg there")
    a = p.parse_args()
    if a.settle is None:
        a.settle = 3 if a.bytes >= 256 << 20 else 0
    with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=a.dir) as a.dir:
        report = measured(a)
        report["metadata"] = metadata_rows(a)
    if a.json:
        with open(a.json, "w") as file:
            json.dump(report, file, indent=1)
    print(tables(report))
    if a.plot:
        plot(report, a.plot)


if __name__ == "__main__":
    main()
