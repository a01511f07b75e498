// A helper of tests/interop/test_dataset.py: shows to Python what the library does with data.
//
//   data_probe events DIR                              writes scalars "lm loss" and "learning rate" for 100
//   steps data_probe samples PREFIX SPLIT PART N S SEED      prints the N samples, a line each, of part 0, 1
//   or 2
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/data/data_split.h"
#include "runtime/data/gpt_dataset.h"
#include "runtime/log/event_writer.h"

namespace cairn {
namespace {

Status WriteEvents(const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(EventWriter writer, EventWriter::Open(FileSystem::Posix(), directory));
  for (int step = 1; step <= 100; ++step) {
    writer.AddScalar("lm loss", step, 10.0f / static_cast<float>(step));
    writer.AddScalar("learning rate", step, std::ldexp(1.0f, -step % 10));
    CAIRN_RETURN_IF_ERROR(writer.Flush());
  }
  return OkStatus();
}

Status PrintSamples(char** arguments) {
  CAIRN_ASSIGN_OR_RETURN(IndexedDataset indexed, IndexedDataset::Open(arguments[0]));
  CAIRN_ASSIGN_OR_RETURN(const auto parts, SplitSequences(arguments[1], indexed.sequence_count()));
  const auto number = [&](int i) { return std::strtoull(arguments[i], nullptr, 10); };
  CAIRN_ASSIGN_OR_RETURN(
      const GptDataset dataset,
      GptDataset::Create(std::make_shared<IndexedDataset>(std::move(indexed)), parts[number(2)], number(3),
                         number(4), static_cast<uint32_t>(number(5))));
  std::vector<int64_t> tokens(dataset.seq_length() + 1);
  for (uint64_t i = 0; i < number(3); ++i) {
    CAIRN_RETURN_IF_ERROR(dataset.Sample(i, tokens));
    for (const int64_t token : tokens) std::printf("%lld ", static_cast<long long>(token));
    std::printf("\n");
  }
  return OkStatus();
}

Status Run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "events" && argc == 3) return WriteEvents(argv[2]);
  if (mode == "samples" && argc == 8) return PrintSamples(argv + 2);
  return InvalidArgument("usage: data_probe events DIR | samples PREFIX SPLIT PART N S SEED");
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const cairn::Status status = cairn::Run(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "data_probe: %s\n", status.message().c_str());
  return status.ok() ? 0 : 2;
}
