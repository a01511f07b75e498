#include "tools/serve/content_shard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ckpt/step/shard_image.h"

namespace cairn {

Status ContentShard::LayOut(const std::string& name, std::vector<TensorEntry> entries) {
  layout_.reset();
  std::vector<Piece> pieces;
  for (const TensorEntry& entry : entries)
    pieces.push_back({.tensor = static_cast<uint32_t>(pieces.size()),
                      .box = Box::Whole(entry.spec.shape),
                      .range = {0, entry.spec.shape.Volume()}});
  CAIRN_ASSIGN_OR_RETURN(ShardPlan layout, ShardPlan::Make(name, StepIdentity{}, entries, std::move(pieces)));
  image_.emplace(layout.file_bytes());
  layout_.emplace(std::move(layout));
  entries_ = std::move(entries);
  return OkStatus();
}

Result<std::optional<ShardReceipt>> ContentShard::Write(FileSystem& fs, const std::string& directory,
                                                        const std::string& name, const StepIdentity& identity,
                                                        std::span<const StateDict::Content> contents) {
  std::vector<TensorEntry> entries;
  std::vector<const std::string*> bytes;
  for (const StateDict::Content& content : contents) {
    if (content.bytes.empty()) continue;
    entries.push_back(content.entry);
    bytes.push_back(&content.bytes);
  }
  if (entries.empty()) return std::optional<ShardReceipt>();
  if (!layout_ || layout_->name() != name || entries_ != entries)
    CAIRN_RETURN_IF_ERROR(LayOut(name, std::move(entries)));
  layout_->Bind(identity);
  const std::span image(image_->data(), layout_->file_bytes());
  for (size_t i = 0; i < bytes.size(); ++i)
    std::ranges::copy(std::as_bytes(std::span(*bytes[i])), image.begin() + layout_->OffsetOf(i));
  CAIRN_ASSIGN_OR_RETURN(ShardReceipt receipt, WriteShardImage(fs, directory, *layout_, image));
  return std::optional(std::move(receipt));
}

}  // namespace cairn
