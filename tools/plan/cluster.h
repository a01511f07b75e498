// The machine to plan for: GPUs, their speeds, and the links between them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"
#include "tools/plan/run_setup.h"

namespace cairn {

struct Cluster {
  std::string name;
  int gpus_per_node = 8;
  double memory_gb = 0;      // of one GPU, as in its name
  double half_tflops = 0;    // dense peak in fp16 (and bf16 if supported)
  double single_tflops = 0;  // dense peak in fp32
  bool has_bf16 = true;
  int sms = 0;            // streaming multiprocessors
  double hbm_gbps = 0;    // GB/s of the GPU's memory
  double link_gbps = 0;   // GB/s a direction between a GPU and the others of its node
  double nic_gbps = 0;    // GB/s a direction of one node, all its network cards
  double pcie_gbps = 25;  // GB/s a direction between a GPU and its host, for offloading

  bool cpu = false;  // ranks are processes on CPUs: memory holds only tensors
  // Cores of a node, which its ranks share: a rank computes on one, and if there are more ranks than cores
  // they take turns. 0: every rank has its device to itself. With `cpu` the speeds above are those of one
  // core.
  int cores = 0;

  bool has_fp8 = false;  // the layers' products may run in FP8
  // The name of the compiled-in runs that were measured on it; empty if there are none.
  std::string measured;

  double PeakFlops(Precision precision) const {
    return (precision == Precision::kFp32 ? single_tflops : half_tflops) * 1e12;
  }
};

// Kinds of GPUs in usual nodes (v100-16, ..., h200), then places whose runs are compiled in (jean-zay, ...).
std::span<const Cluster> BuiltInClusters();

// One of the above by its name (h100-80 is h100); null if none has it.
const Cluster* BuiltInCluster(std::string_view name);

// Such a name, or the path of a TOML file with the keys gpus-per-node, memory-gb,
// half-tflops, single-tflops, bf16, cpu, cores, sms, hbm-gbps, link-gbps, nic-gbps, pcie-gbps, all optional
// if there is `base` (a built-in name). Errors: InvalidArgument naming the file and line, or the known names.
Result<Cluster> FindCluster(const std::string& name_or_path);

}  // namespace cairn
