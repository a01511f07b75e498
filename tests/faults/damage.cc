// Goal damage: every change of a checkpoint's bytes is detected, with file, tensor and offset.
#include "tests/faults/damage.h"

#include <algorithm>
#include <map>

#include "ckpt/step/verify.h"
#include "tests/faults/checkpoints.h"
#include "tests/faults/sim_disk.h"

namespace cairn {
namespace {

constexpr uint64_t kCleanLoads = 10'000;
constexpr const char* kRun = "/run";
constexpr const char* kForeign = "/foreign";

// The checkpoint that is damaged.
StepRecipe Victim() {
  StepRecipe recipe = SmallRecipe({1, 1, 2, 0}, 100, 1);
  recipe.specs = {{.name = "embedding.word.weight", .shape = {20, 16}},
                  {.name = "layers.0.mlp.up.weight", .shape = {16, 16}, .layer = 0},
                  {.name = "layers.1.mlp.down.weight", .shape = {16, 16}, .layer = 1}};
  return recipe;
}

// Other checkpoints whose shards could be mistaken for its own: the same tensors and sizes, of another step
// and of another run.
Result<std::unique_ptr<SimDisk>> MakeDisk() {
  SimDisk disk;
  StepRecipe recipe = Victim();
  CAIRN_RETURN_IF_ERROR(MakeStep(disk, kRun, recipe));
  recipe.seed = 2;
  recipe.step = 110;
  CAIRN_RETURN_IF_ERROR(MakeStep(disk, kRun, recipe));
  recipe.step = 100;
  recipe.run = "fedcba9876543210fedcba9876543210";
  CAIRN_RETURN_IF_ERROR(MakeStep(disk, kForeign, recipe));
  return disk.Settled();
}

// One thread's copy of the disk, and the checkpoint on it, opened while it was whole.
class Patient {
 public:
  explicit Patient(const SimDisk& original) : disk_(original.Settled()) {
    auto opened = StepReader::Open(*disk_, directory());
    if (opened.ok()) step_ = std::move(opened).value();
  }

  static std::string directory() { return JoinPath(kRun, StepDirName(100)); }
  SimDisk& disk() { return *disk_; }
  const StepReader& step() const { return *step_; }
  bool ok() const { return step_ != nullptr; }
  std::string* File(const std::string& name) { return disk_->MutableBytes(JoinPath(directory(), name)); }

  // The tensor, or structure, to which a byte of a file belongs.
  std::optional<Piece> PieceAt(const std::string& file, uint64_t offset) const {
    for (const Piece& piece : step_->catalog().pieces)
      if (step_->catalog().files[piece.file] == file && offset >= piece.file_offset &&
          offset < piece.file_offset + piece.stored_bytes)
        return piece;
    return std::nullopt;
  }

 private:
  std::unique_ptr<SimDisk> disk_;
  std::unique_ptr<StepReader> step_;
};

bool HasDamage(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The first problem of one file, as cairn verify finds it.
std::optional<Problem> FirstProblem(Patient& patient, const ManifestFile& file) {
  VerifyReport report;
  const Manifest& manifest = patient.step().manifest();
  const Status status = VerifyShard(
      patient.disk(), {Patient::directory(), file, patient.step().catalog(), {manifest.run, manifest.step}},
      report);
  if (!status.ok()) return Problem{JoinPath(Patient::directory(), file.name), {}, "", status.message()};
  if (report.problems.empty()) return std::nullopt;
  return report.problems.front();
}

// As a training loads it: from the manifest on, then the tensor.
Status LoadTensor(FileSystem& fs, uint32_t tensor) {
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(fs, Patient::directory()));
  const Dims& shape = step->catalog().tensors[tensor].spec.shape;
  std::vector<std::byte> bytes(step->catalog().tensors[tensor].bytes());
  return step->ReadBox(tensor, Box::Whole(shape), bytes);
}

std::string CheckFlip(Patient& patient, const std::string& name, uint64_t bit) {
  const std::string path = JoinPath(Patient::directory(), name);
  if (name == kManifestName) {
    const Status opened = StepReader::Open(patient.disk(), Patient::directory()).status();
    if (opened.ok()) return "not noticed";
    return HasDamage(opened.message(), path) ? "" : "the file is not named: " + opened.message();
  }
  const Manifest& manifest = patient.step().manifest();
  const auto file = std::ranges::find(manifest.files, name, &ManifestFile::name);
  const std::optional<Problem> problem = FirstProblem(patient, *file);
  if (!problem) return "not noticed";
  const std::optional<Piece> piece = patient.PieceAt(name, bit / 8);
  const std::string tensor = piece ? DisplayName(patient.step().catalog().tensors[piece->tensor]) : "";
  // Every piece here is one chunk.
  if (problem->file != path || problem->tensor != tensor || (piece && problem->offset != piece->file_offset))
    return "told as " + ToString(*problem);
  if (bit % 8 != bit / 8 % 8) return "";  // the loader: one bit of each byte
  if (piece) {
    const Status loaded = LoadTensor(patient.disk(), piece->tensor);
    if (loaded.ok()) return "not noticed by the loader";
    if (!HasDamage(loaded.message(),
                   fmt::format("{} at byte {}: tensor {}", path, piece->file_offset, tensor)))
      return "the loader reports: " + loaded.message();
  }
  const bool in_catalog = name == kIndexName && bit / 8 - manifest.catalog_offset < manifest.catalog_bytes;
  if (in_catalog && StepReader::Open(patient.disk(), Patient::directory()).ok())
    return "a damaged catalog is not noticed by the loader";
  return "";
}

std::string Flip(Patient& patient, const std::string& name, uint64_t bit) {
  char& byte = (*patient.File(name))[bit / 8];
  byte ^= static_cast<char>(1 << bit % 8);
  const std::string trouble = CheckFlip(patient, name, bit);
  byte ^= static_cast<char>(1 << bit % 8);
  return trouble.empty() ? ""
                         : fmt::format("{}, bit {} of byte {} flipped: {}", name, bit % 8, bit / 8, trouble);
}

std::string Truncate(Patient& patient, const std::string& name, uint64_t length) {
  std::string* bytes = patient.File(name);
  const std::string tail = bytes->substr(length);
  bytes->resize(length);
  const Status opened = StepReader::Open(patient.disk(), Patient::directory()).status();
  *bytes += tail;
  if (!opened.ok() && HasDamage(opened.message(), JoinPath(Patient::directory(), name))) return "";
  return fmt::format("{} cut to {} bytes: {}", name, length, opened.ok() ? "not noticed" : opened.message());
}

// Puts other whole files in the place of the step's own.
struct Swap {
  std::string what;
  std::map<std::string, std::string> files;  // name -> path of the file that takes its place
};

std::vector<Swap> AllSwaps() {
  const std::string own = Patient::directory(), stale = JoinPath(kRun, StepDirName(110)),
                    foreign = JoinPath(kForeign, StepDirName(100));
  std::vector<Swap> swaps;
  const std::string a = ShardName(0), b = ShardName(1);
  swaps.push_back({"swapped shards", {{a, JoinPath(own, b)}, {b, JoinPath(own, a)}}});
  swaps.push_back({"a duplicated shard", {{a, JoinPath(own, b)}}});
  swaps.push_back({"a duplicated shard", {{b, JoinPath(own, a)}}});
  for (const auto& [kind, from] : {std::pair("stale", stale), std::pair("foreign", foreign)}) {
    for (const std::string& name : {a, b, std::string(kIndexName), std::string(kManifestName)})
      swaps.push_back({fmt::format("a {} {}", kind, name), {{name, JoinPath(from, name)}}});
    swaps.push_back({fmt::format("all shards {}", kind), {{a, JoinPath(from, a)}, {b, JoinPath(from, b)}}});
  }
  return swaps;
}

std::string Exchange(Patient& patient, const Swap& swap) {
  std::map<std::string, std::string> before, instead;
  for (const auto& [name, path] : swap.files) {
    before[name] = *patient.File(name);
    instead[name] = *patient.disk().MutableBytes(path);
  }
  for (const auto& [name, bytes] : instead) *patient.File(name) = bytes;
  const auto find_trouble = [&]() -> std::string {
    const auto opened = StepReader::Open(patient.disk(), Patient::directory());
    if (!opened.ok()) return "";
    const VerifyReport report = VerifyHash(patient.disk(), **opened);
    if (report.problems.empty()) return "not noticed";
    for (const auto& [name, bytes] : instead) {
      const auto named = [&](const Problem& problem) {
        return problem.file.ends_with("/" + name) && (name == kIndexName || !problem.tensor.empty());
      };
      if (std::ranges::none_of(report.problems, named)) return name + " or its tensors are not named";
    }
    const auto& catalog = (*opened)->catalog();
    for (const Piece& piece : catalog.pieces)
      if (instead.contains(catalog.files[piece.file]) && LoadTensor(patient.disk(), piece.tensor).ok())
        return "not noticed by the loader";
    return "";
  };
  const std::string trouble = find_trouble();
  for (const auto& [name, bytes] : before) *patient.File(name) = bytes;
  return trouble.empty() ? "" : swap.what + ": " + trouble;
}

std::string LoadClean(Patient& patient, uint64_t n) {
  static const Content expected = ContentOf(Victim());
  const Result<Content> found = ReadWhole(patient.disk(), Patient::directory());
  if (!found.ok()) return fmt::format("clean load {}: a false alarm: {}", n, found.status().message());
  return *found == expected ? "" : "clean load: other values";
}

}  // namespace

void TryDamage(const GoalOptions& options, uint64_t stride, Tally& tally) {
  const auto disk = MakeDisk();
  if (!disk.ok()) return tally.Add(0, disk.status().message());
  Patient whole(**disk);
  if (!whole.ok()) return tally.Add(0, "cannot set up");
  std::vector<std::pair<std::string, uint64_t>> files;  // with their sizes
  uint64_t bytes = 0;
  const std::vector<std::string> names = (*disk)->List(Patient::directory()).value();
  for (const std::string& name : names) {
    files.emplace_back(name, whole.File(name)->size());
    bytes += files.back().second;
  }
  const std::vector<Swap> swaps = AllSwaps();
  // Seeds: the bits of all files in order, then the lengths, then the swaps, then the clean
  // loads.
  const auto attempt = [&](Patient& patient, uint64_t seed) -> std::string {
    uint64_t at = seed < 8 * bytes ? seed / 8 : seed - 8 * bytes;
    if (at < bytes) {
      auto file = files.begin();
      for (; at >= file->second; ++file) at -= file->second;
      return seed < 8 * bytes ? Flip(patient, file->first, 8 * at + seed % 8)
                              : Truncate(patient, file->first, at);
    }
    at -= bytes;
    return at < swaps.size() ? Exchange(patient, swaps[at]) : LoadClean(patient, at);
  };
  const uint64_t damages = 9 * bytes / stride;
  ForEachSeedOn(options, damages + swaps.size() + kCleanLoads / stride, tally, [&] {
    return [&, patient = std::make_shared<Patient>(**disk)](uint64_t seed) {
      return attempt(*patient, seed < damages ? seed * stride : 9 * bytes + seed - damages);
    };
  });
}

// Quick: every seventh bit, so that a bit of each byte is among them.
void RunDamage(const GoalOptions& options, Tally& tally) {
  TryDamage(options, options.form == GoalOptions::Form::kQuick ? 7 : 1, tally);
}

}  // namespace cairn
