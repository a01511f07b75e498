// A helper of tests/interop/test_dataset.py: prints the library's view of data for Python.
//
//   data_probe events DIR                              writes scalars "lm loss" and "learning rate" for 100
//   steps
//   data_probe samples PART N S SEED SPLIT WORD...   prints the N samples, a line each, of part 0, 1 or 2 of
//   --data-path WORD... and --split SPLIT; for SPLIT "-" of the weighted split WORD
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/data/data_sets.h"
#include "runtime/log/event_writer.h"

namespace cairn {
namespace {

Status WriteEvents(const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(EventWriter writer, EventWriter::Open(directory));
  for (int step = 1; step <= 100; ++step) {
    writer.AddScalar("lm loss", step, 10.0f / static_cast<float>(step));
    writer.AddScalar("learning rate", step, std::ldexp(1.0f, -step % 10));
    writer.Flush();
  }
  return OkStatus();
}

Status PrintSamples(const std::vector<std::string>& words) {
  const auto number = [&](int i) { return std::strtoull(words[i].c_str(), nullptr, 10); };
  const uint64_t part = number(0), count = number(1);
  DataRequest request{.train_samples = part == 0 ? count : 1,
                      .valid_samples = part == 1 ? count : 0,
                      .test_samples = part == 2 ? count : 0,
                      .seq_length = number(2),
                      .seed = static_cast<uint32_t>(number(3))};
  if (words[4] == "-") {
    request.train_groups = {words[5]};
  } else {
    request.split = words[4];
    request.data_path.assign(words.begin() + 5, words.end());
  }
  CAIRN_ASSIGN_OR_RETURN(const DataSets sets, OpenDataSets(request));
  const auto& set = part == 0 ? sets.train : part == 1 ? sets.valid.at(0).samples : sets.test.at(0).samples;
  std::vector<int64_t> tokens(request.seq_length + 1);
  for (uint64_t i = 0; i < count; ++i) {
    CAIRN_RETURN_IF_ERROR(set->Sample(i, tokens));
    for (const int64_t token : tokens) std::printf("%lld ", static_cast<long long>(token));
    std::printf("\n");
  }
  return OkStatus();
}

Status Run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "events" && argc == 3) return WriteEvents(argv[2]);
  if (mode == "samples" && argc > 7) return PrintSamples({argv + 2, argv + argc});
  return InvalidArgument("usage: data_probe events DIR | samples PART N S SEED SPLIT WORD...");
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const cairn::Status status = cairn::Run(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "data_probe: %s\n", status.message().c_str());
  return status.ok() ? 0 : 2;
}
