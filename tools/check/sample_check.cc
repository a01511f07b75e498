// All chunks of the step are listed, and a partial shuffle by the seed draws from them until the budget is
// reached. They are then sorted by place: files are read forwards. To check a chunk, one element of it is
// read: the reader verifies the whole chunk first. If the place of a wrong chunk is not known, no ranges are
// reported, so that no later sample can settle the failure.

#include "tools/check/sample_check.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>

#include "ckpt/base/parse_number.h"
#include "ckpt/base/posix_error.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

struct ChunkAt {
  size_t piece;  // into the catalog
  uint64_t chunk;
};

// The shuffle is written out, so a seed means the same chunks with every standard library.
std::vector<ChunkAt> ChooseChunks(const StepCatalog& catalog, uint64_t budget_bytes, uint64_t seed) {
  std::vector<ChunkAt> chunks;
  for (size_t i = 0; i < catalog.pieces.size(); ++i)
    for (uint64_t chunk = 0; chunk < catalog.pieces[i].chunks.size(); ++chunk) chunks.push_back({i, chunk});
  std::mt19937_64 random(seed);
  uint64_t bytes = 0;
  size_t count = 0;
  while (count < chunks.size() && (count == 0 || bytes < budget_bytes)) {
    std::swap(chunks[count], chunks[count + random() % (chunks.size() - count)]);
    const Piece& piece = catalog.pieces[chunks[count].piece];
    bytes +=
        PlaceOfChunk(piece, chunks[count].chunk, SizeOf(catalog.tensors[piece.tensor].dtype)).stored_bytes;
    ++count;
  }
  chunks.resize(count);
  std::ranges::sort(chunks, {}, [&](const ChunkAt& c) {
    const Piece& piece = catalog.pieces[c.piece];
    return std::tuple(piece.file, piece.file_offset, c.chunk);
  });
  return chunks;
}

// Ranges next to each other become one.
void AddRange(std::vector<CheckedRange>& ranges, CheckedRange range) {
  if (range.begin == range.end) return;  // stored as another tensor's bytes
  if (!ranges.empty() && ranges.back().file == range.file && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(std::move(range));
}

}  // namespace

Result<SampleSize> ParseSampleSize(std::string_view text) {
  std::string_view unit = text;
  const double number = TakeNumber<double>(unit).value_or(0);
  const auto bad = [&] {
    return InvalidArgument("'{}' is not a sample; write for example 5% or 200GB", text);
  };
  if (!(number > 0)) return bad();
  if (unit == "%") return number <= 100 ? Result<SampleSize>(SampleSize{.fraction = number / 100}) : bad();
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},      {"B", 1},         {"kB", 1e3},      {"MB", 1e6},      {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1099511627776.0}};
  for (const auto& [name, bytes] : kUnits)
    if (unit == name && number * bytes < 9e18)
      return SampleSize{.max_bytes = static_cast<uint64_t>(std::ceil(number * bytes))};
  return bad();
}

SampleReport CheckSample(StepReader& step, const SampleSize& size,
                         const std::function<void(uint64_t)>& progress) {
  const StepCatalog& catalog = step.catalog();
  const auto budget =
      std::min(size.max_bytes, static_cast<uint64_t>(size.fraction * static_cast<double>(catalog.bytes())));
  SampleReport report;
  report.seed = std::random_device{}();
  std::vector<CheckedRange> wrong;
  bool known = true;  // the places of all that is wrong
  for (const ChunkAt& at : ChooseChunks(catalog, budget, report.seed)) {
    const Piece& piece = catalog.pieces[at.piece];
    const TensorEntry& tensor = catalog.tensors[piece.tensor];
    const uint64_t element_bytes = SizeOf(tensor.dtype);
    const uint64_t first = piece.range.begin + at.chunk * (kChunkBytes / element_bytes);
    std::byte element[8];
    const uint64_t before = step.bytes_read();
    const Status status =
        step.ReadBox(piece.tensor, ElementAt(piece.box, first), std::span(element, element_bytes));
    report.bytes_checked += step.bytes_read() - before;
    ++report.chunks;
    const ChunkPlace place = PlaceOfChunk(piece, at.chunk, element_bytes);
    const CheckedRange range{catalog.files[piece.file], place.offset, place.offset + place.stored_bytes};
    AddRange(report.ranges, range);
    if (IsRefusal(status)) {
      report.Add(status, step.directory());
    } else if (!status.ok()) {
      known &= place.stored_bytes > 0;
      AddRange(wrong, range);
      report.problems.push_back(
          {JoinPath(step.DirectoryOf(catalog.files[piece.file]), catalog.files[piece.file]), place.offset,
           DisplayName(tensor),
           status.kind() == StatusKind::kCorrupt ? "does not match its digest" : status.message()});
    }
    if (progress) progress(report.bytes_checked);
  }
  if (!report.problems.empty()) report.ranges = known ? std::move(wrong) : std::vector<CheckedRange>{};
  return report;
}

}  // namespace cairn
