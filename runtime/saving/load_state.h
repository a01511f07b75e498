// Loads the tensors of a step into this rank's buffers, from any topology and, if asked, from other types.
#pragma once

#include "ckpt/step/step_reader.h"
#include "runtime/saving/checkpoint_hooks.h"
#include "runtime/saving/checkpointer_options.h"

namespace cairn {

// The random state of one rank: a tensor that only the same rank of the same topology loads.
TensorEntry RngTensor(const Topology& topology, int rank, size_t bytes);

// False for a step that another program's training was converted to.
bool IsOwnStep(const nlohmann::json& state);

class StateLoader {
 public:
  // All must outlive it.
  StateLoader(const CheckpointerOptions& options, StepReader& step, StateBuffers& buffers)
      : options_(options), step_(step), lookup_(step.catalog()), buffers_(buffers) {}

  // Weights, masters and the optimizer's states; or only weights and masters, from the step's masters if it
  // has them and --skip-train does not ask for the stored weights. Errors: InvalidArgument naming a tensor
  // that is missing or does not fit; those of the reader.
  Status LoadParts(bool weights_alone);
  // Reads the random state that this rank saved; leaves it empty if the step has none.
  void LoadRng(int rank);

 private:
  Status CheckStates() const;
  Result<uint32_t> WeightOf(const ParameterSpec& spec, const StateBuffers::Part& part) const;
  Result<uint32_t> TensorOf(const ParameterSpec& spec, const StateBuffers::Part& part) const;
  Status LoadAs(uint32_t tensor, const Box& box, const StateBuffers::Part& part, std::byte* target);
  Status LoadToGpu(std::span<const ReadRequest> requests);
  const TensorEntry& Entry(uint32_t tensor) const { return step_.catalog().tensors[tensor]; }

  const CheckpointerOptions& options_;
  StepReader& step_;
  const TensorLookup lookup_;
  StateBuffers& buffers_;
};

}  // namespace cairn
