// Reading memory that a file is mapped to: if the file was truncated or its file system failed, the kernel
// sends SIGBUS. Under a guard that is a failed read; elsewhere it ends the process with a line that names the
// file.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

namespace cairn {

// Installs the handler of SIGBUS. Without it SIGBUS kills without a word.
void HandleBusErrors();

// A line in a table of mappings, so that the handler knows their files; a few are remembered, the others have
// no name.
class NamedMapping {
 public:
  NamedMapping(const void* begin, size_t bytes, const std::string& path);
  NamedMapping(NamedMapping&& other) noexcept;
  NamedMapping& operator=(NamedMapping&& other) noexcept;
  ~NamedMapping();

 private:
  int slot_ = -1;
};

// Runs `read`; false if it met a page that cannot be read; it is then left at that point. It must not own
// anything that has to be destroyed. `file`, if given, is set to the path of the mapping, empty if it has no
// name.
bool ReadMapped(void (*read)(void*), void* context, std::string* file);

template <typename Read>
bool ReadMapped(Read read, std::string* file = nullptr) {
  static_assert(std::is_trivially_destructible_v<Read>);
  return ReadMapped([](void* context) { (*static_cast<Read*>(context))(); }, static_cast<void*>(&read), file);
}

}  // namespace cairn
