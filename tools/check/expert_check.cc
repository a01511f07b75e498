#include "tools/check/expert_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "ckpt/base/short_list.h"

namespace cairn {

ExpertCheck::ExpertCheck(const TensorEntry& stack)
    : expert_bytes_(stack.spec.shape[0] == 0 ? 0 : stack.bytes() / stack.spec.shape[0]),
      element_bytes_(SizeOf(stack.dtype)),
      left_(expert_bytes_) {}

void ExpertCheck::Add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<const std::byte> own = bytes.first(std::min<uint64_t>(left_, bytes.size()));
    if (left_ == expert_bytes_)
      first_.assign(own.begin(), own.begin() + static_cast<ptrdiff_t>(element_bytes_));
    for (size_t i = 0; is_constant_ && i < own.size(); i += element_bytes_)
      is_constant_ = std::memcmp(own.data() + i, first_.data(), element_bytes_) == 0;
    hasher_.Update(own);
    left_ -= own.size();
    bytes = bytes.subspan(own.size());
    if (left_ == 0) EndExpert();
  }
}

void ExpertCheck::EndExpert() {
  if (!is_constant_) experts_[hasher_.Finish()].push_back(count_);
  ++count_;
  is_constant_ = true;
  left_ = expert_bytes_;
  hasher_.Reset(0);
}

std::string ExpertCheck::Equal() const {
  std::vector<std::string> groups;
  for (const auto& [digest, equal] : experts_)
    if (equal.size() > 1) groups.push_back(fmt::format("{}", fmt::join(equal, " = ")));
  return groups.empty()
             ? ""
             : fmt::format(
                   "experts {} are equal bit for bit: one was saved in place of another, unless the model "
                   "was made of copies and never trained",
                   ShortList(groups));
}

}  // namespace cairn
