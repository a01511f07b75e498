"""The measured speed of one core of this machine, as a cluster file for `cairn plan`."""

import os
import time

import torch

SIDE = 1024  # of the matrices: 12 MB, beyond the caches of one core
ELEMENTS = 16 << 20  # of the vectors: 64 MB each


def fastest(run, rounds=40):
    """Seconds of the fastest of many rounds, so that other load does not count."""
    run()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def limits():
    """Peak of a large fp32 product, and GB/s of an elementwise sum and of a copy, each on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a, b, product = (torch.ones(SIDE, SIDE) for _ in range(3))
    x, y = torch.ones(ELEMENTS), torch.ones(ELEMENTS)
    result = {"tflops": 2 * SIDE**3 / fastest(lambda: torch.mm(a, b, out=product)) / 1e12,
              "sum_gbps": 3 * x.nbytes / fastest(lambda: torch.add(x, y, out=y)) / 1e9,
              "copy_gbps": x.nbytes / fastest(lambda: y.copy_(x)) / 1e9}
    torch.set_num_threads(threads)
    return result


def write_cluster(path, ranks):
    """One node of all cores, on which at most `ranks` ranks run. A message is copied into shared memory and out again."""
    measured = limits()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / ranks / 1e9
    keys = {"cpu": "true", "cores": len(os.sched_getaffinity(0)), "gpus-per-node": ranks, "memory-gb": f"{memory:.1f}",
            "single-tflops": f"{measured['tflops']:.4f}", "half-tflops": f"{measured['tflops']:.4f}",
            "hbm-gbps": f"{measured['sum_gbps']:.1f}", "link-gbps": f"{measured['copy_gbps'] / 2:.1f}",
            "nic-gbps": f"{measured['copy_gbps'] / 2:.1f}"}
    path.write_text("".join(f"{key} = {value}\n" for key, value in keys.items()))
