// Prints the logits of a checkpoint for given tokens, for comparison with another implementation.
//
//   logits_probe --load CKPT [the model's flags of cairn-train] < tokens > logits
//
// tokens: int64, one sample; logits: fp32 [tokens, vocabulary]; both raw and little-endian. One rank.
#include <torch/torch.h>
#include <unistd.h>

#include "runtime/checkpointer.h"
#include "runtime/data/model_spec.h"
#include "runtime/engine.h"
#include "runtime/launch.h"

namespace cairn {
namespace {

at::Tensor ReadTokens() {
  std::string bytes;
  char block[4096];
  for (ssize_t got; (got = read(STDIN_FILENO, block, sizeof(block))) > 0;) bytes.append(block, got);
  const int64_t count = static_cast<int64_t>(bytes.size() / sizeof(int64_t));
  return at::from_blob(bytes.data(), {1, count}, at::kLong).clone();
}

Status Run(int argc, char** argv) {
  CAIRN_ASSIGN_OR_RETURN(ParsedCommandLine parsed, ParseCommandLine(argc, argv));
  TrainConfig& config = parsed.config;
  config.mock_data = true;  // none is read
  config.train_iters = 1;
  CAIRN_ASSIGN_OR_RETURN(const Topology topology, Validate(config, 1));
  const auto transport = Launch({});
  const ParallelDims dims = MakeParallelDims(topology, *transport);
  Engine engine(config, dims, at::kCPU);
  CheckpointerOptions options;
  options.load = config.load;
  options.topology = topology;
  options.model = ModelFacts(config);
  CAIRN_ASSIGN_OR_RETURN(const auto checkpointer,
                         Checkpointer::Create(options, transport->NewControlPlane("probe")));
  StateBuffers buffers = engine.Buffers();
  CAIRN_ASSIGN_OR_RETURN(const auto resumed, checkpointer->Resume(buffers));
  if (!resumed) return NotFound("--load {}: nothing to load", config.load);
  const at::NoGradGuard no_grad;
  const GptStage& model = engine.stage();
  const at::Tensor logits = model.Logits(model.forward(ReadTokens(), false)).narrow(1, 0, config.vocab_size);
  const at::Tensor out = logits.to(at::kFloat).contiguous();
  if (std::fwrite(out.const_data_ptr(), 1, out.nbytes(), stdout) != out.nbytes()) return IoError("stdout");
  return OkStatus();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const cairn::Status status = cairn::Run(argc, argv);
  if (!status.ok()) fmt::print(stderr, "logits_probe: {}\n", status.message());
  return status.ok() ? 0 : 2;
}
