// bench_server CKPT MEMORY: our contenders for a benchmark in another program, which decides about order and
// rounds (trained_state.py).
// bench_server raw_read|raw_write FILE BYTES: one such measurement, of the file's first bytes (turns.py).
//
// The state of a step is loaded into the file MEMORY that both map, so that it is in memory once. Then each
// line of stdin asks for one measurement, and one line of JSON on stdout answers, flushed, because the asker
// waits for it:
//   save RUN_DIR         commits the state there          {"stall": s, "flush": s, "commit": s, "durable": s}
//   save_lazy RUN_DIR    the same, copied lazily          the same
//   raw_write FILE       O_DIRECT, fsync, removed         {"seconds": s}
//   load STEP_DIR        into the shared memory           {"seconds": s}
//   raw_read FILE        all of FILE, O_DIRECT            {"seconds": s}
//   page_cache_read FILE all of FILE                      {"seconds": s}
//   warm FILE            into the page cache              {}
//   cold FILE            out of the page cache, checked   {}
// The first line of stdout is {"bytes": n, "tensors": [{name, role, dtype, shape, offset}]}. Paths hold no
// newline. Nothing is verified here but what `load` itself verifies: the asker does it. Raw transfers use the
// snapshot's memory, which is idle between saves. Raw writes have the depth and the block size of our own
// shards' writer, so that both ask the same of the disk, and memory in huge pages: to and from pages of 4
// KiB, as dd has them, the disk was seen to give a half.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ckpt/base/posix_error.h"
#include "ckpt/step/shard_image.h"
#include "tests/bench/bench_disk.h"
#include "tests/bench/bench_memory.h"
#include "tests/bench/bench_state.h"
#include "tools/source/open_ckpt.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

// `bytes` of shared, touched memory in the existing file `path`; mapped until the process ends.
Result<std::span<std::byte>> MapShared(const std::string& path, uint64_t bytes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return PosixError("open", path, errno);
  const bool sized = ::ftruncate(fd, static_cast<off_t>(bytes)) == 0;
  void* memory = sized ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  const int error = errno;
  ::close(fd);
  if (memory == MAP_FAILED) return PosixError("map", path, error);
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  return std::span(static_cast<std::byte*>(memory), bytes);
}

ordered_json Describe(const BenchState& state) {
  ordered_json tensors = ordered_json::array();
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const TensorEntry& tensor = state.tensors[i];
    const Dims& shape = tensor.spec.shape;
    tensors.push_back({{"name", tensor.spec.name},
                       {"role", Name(tensor.role)},
                       {"dtype", Name(tensor.dtype)},
                       {"shape", std::vector<uint64_t>(shape.begin(), shape.end())},
                       {"offset", state.offsets[i]}});
  }
  return {{"bytes", state.memory_bytes}, {"tensors", std::move(tensors)}};
}

void Answer(const ordered_json& answer) {
  fmt::print("{}\n", answer.dump());
  std::fflush(stdout);
}

RawTransfer::Engine Engine() {
  return TakesUring() ? RawTransfer::Engine::kUring : RawTransfer::Engine::kThreads;
}

Result<double> WriteAndRemove(const std::string& path, std::span<const std::byte> bytes) {
  const ImageWriteOptions ours;
  Result<double> seconds =
      RawWrite(path, bytes, {.engine = Engine(), .depth = ours.queue.depth, .block = ours.write_bytes});
  ::unlink(path.c_str());
  return seconds;
}

Result<ordered_json> Seconds(Result<double> seconds) {
  if (!seconds.ok()) return seconds.status();
  return ordered_json{{"seconds", *seconds}};
}

class Server {
 public:
  Server(const BenchState& state, StateSaver& saver) : state_(state), saver_(saver), arena_(saver.image()) {}

  Result<ordered_json> Handle(const std::string& what, const std::string& path) {
    if (what == "save" || what == "save_lazy") {
      CAIRN_ASSIGN_OR_RETURN(const SaveSeconds s, saver_.Save(path, what == "save_lazy"));
      return ordered_json{
          {"stall", s.stall}, {"flush", s.flush}, {"commit", s.commit}, {"durable", s.durable}};
    }
    if (what == "load") return Seconds(LoadState(path, state_));
    if (what == "raw_read") return Seconds(Read(path, {.engine = Engine(), .direct = true}));
    if (what == "page_cache_read") return Seconds(Read(path, {.depth = 2, .direct = false}));
    if (what == "raw_write") return Seconds(WriteAndRemove(path, arena_));
    if (what == "warm") return Done(MakeWarm(path));
    if (what == "cold") return Done(MakeCold(path));
    return InvalidArgument("unknown measurement {}", what);
  }

 private:
  Result<double> Read(const std::string& path, const RawTransfer& how) {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, FileSystem::Posix().Stat(path));
    const uint64_t bytes = info.bytes / kPageBytes * kPageBytes;
    if (bytes > arena_.size()) return InvalidArgument("{} is larger than the state", path);
    return RawRead(path, arena_.first(bytes), how);
  }
  static Result<ordered_json> Done(const Status& status) {
    if (!status.ok()) return status;
    return ordered_json::object();
  }

  const BenchState& state_;
  StateSaver& saver_;
  std::span<std::byte> arena_;
};

Status MeasureOnce(const std::string& what, const std::string& path, uint64_t bytes) {
  if (what != "raw_read" && what != "raw_write") return InvalidArgument("unknown transfer {}", what);
  CAIRN_ASSIGN_OR_RETURN(WarmBuffer memory, WarmBuffer::Make(bytes));
  const std::span all = memory.bytes().first(bytes);
  CAIRN_ASSIGN_OR_RETURN(
      const ordered_json answer,
      Seconds(what == "raw_read" ? RawRead(path, all, {.engine = Engine()}) : WriteAndRemove(path, all)));
  Answer(answer);
  return OkStatus();
}

// Until the end of stdin. Errors: the first measurement's to fail.
Status Serve(const std::string& checkpoint, const std::string& memory_file) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened,
                         OpenAnyCkpt(FileSystem::Posix(), checkpoint, {.format = "native"}));
  BenchState state = StateLike(*opened.step.reader);
  CAIRN_ASSIGN_OR_RETURN(state.memory, MapShared(memory_file, state.memory_bytes));
  for (uint32_t i = 0; i < state.tensors.size(); ++i)
    CAIRN_RETURN_IF_ERROR(
        opened.step.reader->ReadBox(i, Box::Whole(state.tensors[i].spec.shape), state.bytes_of(i)));
  CAIRN_ASSIGN_OR_RETURN(StateSaver saver, StateSaver::Make(state));
  Answer(Describe(state));
  Server server(state, saver);
  for (std::string line; std::getline(std::cin, line);) {
    const size_t space = std::min(line.find(' '), line.size());
    CAIRN_ASSIGN_OR_RETURN(
        const ordered_json answer,
        server.Handle(line.substr(0, space), line.substr(std::min(space + 1, line.size()))));
    Answer(answer);
  }
  return OkStatus();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4)
    return std::fprintf(stderr, "bench_server CKPT MEMORY, or bench_server raw_read|raw_write FILE BYTES\n"),
           2;
  const cairn::Status status =
      argc == 3 ? cairn::Serve(argv[1], argv[2]) : cairn::MeasureOnce(argv[1], argv[2], std::stoull(argv[3]));
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_server: %s\n", status.message().c_str());
  return 2;
}
