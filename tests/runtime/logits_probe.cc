// The logits of cairn-train's own model, for tests/interop/test_release.py: takes cairn-train's flags (one
// rank), loads
// --load, reads int64 tokens from standard input and writes fp32 logits [tokens, vocabulary] to standard
// output.
#include <ATen/ATen.h>

#include <cstdio>

#include "runtime/comm/launch.h"
#include "runtime/saving/checkpointer.h"
#include "runtime/train/engine.h"
#include "runtime/train/starting_model.h"

namespace cairn {
namespace {

std::vector<int64_t> ReadTokens() {
  std::vector<int64_t> tokens;
  for (int64_t token; std::fread(&token, sizeof token, 1, stdin) == 1;) tokens.push_back(token);
  return tokens;
}

Status Probe(int argc, char** argv) {
  CAIRN_ASSIGN_OR_RETURN(ParsedCommandLine parsed, ParseCommandLine(argc, argv));
  const auto transport = Launch({});
  CAIRN_RETURN_IF_ERROR(TakeStartingModel(parsed, *transport->NewControlPlane("model")));
  CAIRN_ASSIGN_OR_RETURN(const Topology topology, Validate(parsed.config, 1));
  const ParallelDims dims = MakeParallelDims(topology, *transport);
  Engine engine(parsed.config, dims, at::kCPU);
  CheckpointerOptions options;
  options.config = parsed.config;
  options.topology = topology;
  CAIRN_ASSIGN_OR_RETURN(const auto checkpoints,
                         Checkpointer::Create(options, transport->NewControlPlane("checkpoints")));
  StateBuffers buffers = engine.Buffers();
  CAIRN_RETURN_IF_ERROR(checkpoints->Resume(buffers).status());

  const at::NoGradGuard no_grad;
  std::vector<int64_t> tokens = ReadTokens();
  const at::Tensor input = at::from_blob(tokens.data(), {1, static_cast<int64_t>(tokens.size())}, at::kLong);
  const at::Tensor padded = engine.stage().Logits(engine.stage().forward(input, /*training=*/false));
  const at::Tensor logits = padded.slice(-1, 0, parsed.config.vocab_size).to(at::kFloat).contiguous();
  std::fwrite(logits.const_data_ptr(), sizeof(float), logits.numel(), stdout);
  return OkStatus();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const cairn::Status status = cairn::Probe(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 2;
}
