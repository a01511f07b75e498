#include "tools/load/cairn_load.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "ckpt/base/threads.h"
#include "ckpt/base/value_sum.h"
#include "tools/load/reads.h"
#include "tools/serve/failure.h"
#include "tools/serve/packet.h"

namespace cairn {
namespace {

// Never destroyed: threads may use it while the process exits.
Reads* open_checkpoints = nullptr;

// A child starts with none. Another thread may have held a lock of the parent's when the child was forked.
void StartWithNone() { open_checkpoints = new Reads(FileSystem::Posix()); }

Reads& OpenCheckpoints() {
  static const bool made = [] {
    StartWithNone();
    return ::pthread_atfork(nullptr, nullptr, StartWithNone) == 0;
  }();
  (void)made;
  return *open_checkpoints;
}

// Copies both to memory that cairn_load_free() frees; empty if there is not enough.
void Say(std::string_view head, std::string_view tail, cairn_load_text* said) {
  auto* const data = static_cast<char*>(std::malloc(head.size() + tail.size() + 1));
  *said = {};
  if (data == nullptr) return;
  std::memcpy(data, head.data(), head.size());
  std::memcpy(data + head.size(), tail.data(), tail.size());
  *said = {data, head.size(), tail.size()};
}

// Runs `work`, and turns its error, or its exception, into 1 and text.
template <typename Work>
int32_t Guarded(cairn_load_text* said, const Work& work) noexcept {
  try {
    *said = {};
    const Status status = Caught(work);
    if (status.ok()) return 0;
    Say(CompactJson(FailureJson(status)), {}, said);
  } catch (...) {  // no memory for the text
  }
  return 1;
}

void TellExit(int status, void* descriptor) {
  const auto socket = static_cast<int>(reinterpret_cast<intptr_t>(descriptor));
  nlohmann::json head{{"id", 0}, {"do", "end"}, {"how", status == 0 ? "done" : "failed"}};
  if (status != 0) head["why"] = fmt::format("exit status {}", status & 0xff);
  const std::string request = EncodePacket({std::move(head), {}});
  (void)::send(socket, request.data(), request.size(), MSG_NOSIGNAL);
  (void)::shutdown(socket, SHUT_WR);
  char answer[256];
  while (::recv(socket, answer, sizeof(answer), 0) > 0 || errno == EINTR) errno = 0;
}

}  // namespace
}  // namespace cairn

using cairn::OpenCheckpoints, cairn::Guarded, cairn::Status;

int32_t cairn_load_version(void) { return CAIRN_LOAD_VERSION; }

int32_t cairn_load_open(const char* path, const char* options, int64_t* handle, cairn_load_text* said) {
  return Guarded(said, [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const cairn::Reads::Contents contents,
                           OpenCheckpoints().Open(path, nlohmann::json::parse(options), *handle));
    cairn::Say(contents.json, contents.pickles, said);
    return cairn::OkStatus();
  });
}

int32_t cairn_load_tensors(int64_t handle, cairn_load_text* said) {
  return Guarded(said, [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const std::string columns, OpenCheckpoints().Tensors(handle));
    cairn::Say(columns, {}, said);
    return cairn::OkStatus();
  });
}

int32_t cairn_load_match(int64_t handle, uint64_t count, const char* names, const uint8_t* dtypes,
                         const uint8_t* ranks, const uint64_t* shapes, int64_t* numbers,
                         cairn_load_text* said) {
  return Guarded(said, [&] {
    return OpenCheckpoints().Match(handle, {count, names, dtypes, ranks, shapes}, numbers);
  });
}

int32_t cairn_load_read(int64_t handle, uint64_t count, const uint64_t* tensors, const uint64_t* offsets,
                        const uint64_t* extents, void* const* places, cairn_load_text* said) {
  return Guarded(said, [&] {
    return OpenCheckpoints().Read(handle, {count, tensors, offsets, extents, places});
  });
}

int32_t cairn_load_check(int64_t handle, cairn_load_text* said) {
  return Guarded(said, [&] { return OpenCheckpoints().Check(handle); });
}

int32_t cairn_load_origin(int64_t handle, cairn_load_text* said) {
  return Guarded(said, [&] {
    if (const auto origin = OpenCheckpoints().Origin(handle))
      cairn::Say(cairn::CompactJson(*origin), {}, said);
    return cairn::OkStatus();
  });
}

void cairn_load_sums(uint64_t count, const void* const* values, const uint64_t* rows, const uint64_t* columns,
                     const uint8_t* element_bytes, uint64_t* sums) {
  for (uint64_t i = 0; i < count; ++i)
    sums[i] = cairn::ValueSum(values[i], rows[i], columns[i], element_bytes[i]);
}

void cairn_load_tell_exit(int32_t socket) {
  const int own = fcntl(socket, F_DUPFD_CLOEXEC, 0);  // the process closes its own before it exits
  if (own >= 0) (void)on_exit(cairn::TellExit, reinterpret_cast<void*>(static_cast<intptr_t>(own)));
}

void cairn_load_close(int64_t handle) {
  cairn_load_text said{};
  (void)Guarded(&said, [&] { return OpenCheckpoints().Close(handle), cairn::OkStatus(); });
  cairn_load_free(&said);
}

void cairn_load_free(cairn_load_text* said) {
  std::free(const_cast<char*>(said->data));
  *said = {};
}
