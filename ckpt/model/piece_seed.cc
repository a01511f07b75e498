#include "ckpt/model/piece_seed.h"

#include <fmt/format.h>

#include <string>

#include "ckpt/base/digest.h"

namespace cairn {

uint64_t PieceSeed(std::string_view run, int64_t step, const TensorEntry& tensor, const Box& box,
                   FlatRange range) {
  const std::string identity =
      fmt::format("{}|{}|{}|{}|{}|{}|{}:{}", run, step, Name(tensor.role), tensor.spec.name,
                  Name(tensor.dtype), ToString(box), range.begin, range.end);
  return Hash64(identity);
}

}  // namespace cairn
