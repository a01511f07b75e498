#include "ckpt/io/open_files.h"

namespace cairn {

Result<std::shared_ptr<File>> OpenFiles::Get(const std::string& name, Direct direct) {
  const std::lock_guard lock(mutex_);  // also while it opens: two threads want the same file at the same time
  const Key key(name, direct);
  const auto found = index_.find(key);
  if (found != index_.end()) {
    recent_.splice(recent_.begin(), recent_, found->second);
    return recent_.front().file;
  }
  while (recent_.size() >= limit_) {
    index_.erase(recent_.back().key);
    recent_.pop_back();
  }
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<File> file, fs_.OpenForRead(JoinPath(directory_, name), direct));
  recent_.push_front({key, file});
  index_[key] = recent_.begin();
  return file;
}

}  // namespace cairn
