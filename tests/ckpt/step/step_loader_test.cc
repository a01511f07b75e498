// Boxes of a step loaded from a warm and a cold page cache, past it and through a foreign file system;
// damage, short files and failing reads in each of these ways; more shards than descriptors.
#include "ckpt/step/step_loader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "ckpt/step/step_reader.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

// Pieces of several chunks cut by rows and by columns, of one chunk, and of a few bytes.
StepRecipe StepLoaderRecipe() {
  StepRecipe recipe;
  recipe.specs = {
      {.name = "rows.weight", .shape = {1500, 1500}, .cuts = {{.dim = 0}}},
      {.name = "rows.bias", .shape = {1500}, .cuts = {{.dim = 0}}},
      {.name = "columns.weight", .shape = {1200, 2000}, .cuts = {{.dim = 1}}, .layer = 0},
      {.name = "cube.weight", .shape = {7, 50, 30}, .layer = 0},
      {.name = "scale", .shape = {}, .layer = 0},
  };
  recipe.topology = {2, 1, 2, 1};
  recipe.weights = Dtype::kF32;
  recipe.optimizer = false;
  return recipe;
}

enum class Way {
  kWarm,
  kCold,
  kThroughTheCache,
  kPastTheCache,
  kForeign,
  kInMemory,
  kUnmapped,
  kColdUnmapped
};

std::string NameOf(Way way) {
  return std::array{"Warm",    "Cold",     "ThroughTheCache", "PastTheCache",
                    "Foreign", "InMemory", "Unmapped",        "ColdUnmapped"}[static_cast<size_t>(way)];
}

class StepLoaderTest : public testing::TestWithParam<Way> {
 protected:
  static void SetUpTestSuite() {
    const Status made = MakeStep(FileSystem::Posix(), pristine_, StepLoaderRecipe());
    ASSERT_TRUE(made.ok()) << made.message();
  }

  void SetUp() override {
    std::filesystem::copy(pristine_, run_, std::filesystem::copy_options::recursive);
    auto step = StepReader::Open(fs(), StepPath());
    ASSERT_TRUE(step.ok()) << step.status().message();
    step_ = std::move(step).value();
    for (const TensorEntry& tensor : step_->catalog().tensors) values_.push_back(ValuesOf(tensor, 1));
    PrepareCache();
  }

  FileSystem& fs() { return GetParam() == Way::kForeign ? foreign_ : FileSystem::Posix(); }
  std::string StepPath() const { return JoinPath(run_, StepDirName(100)); }
  std::string PathOf(const Piece& piece) const {
    return JoinPath(StepPath(), step_->catalog().files[piece.file]);
  }

  LoadOptions Options() const {
    const bool unmapped = GetParam() == Way::kUnmapped || GetParam() == Way::kColdUnmapped;
    LoadOptions options{.threads = 3, .spread = unmapped, .map = !unmapped};
    if (GetParam() == Way::kThroughTheCache) options.direct = Direct::kOff;
    if (GetParam() == Way::kPastTheCache) options.direct = Direct::kOn;
    return options;
  }

  void PrepareCache() {
    for (const auto& entry : std::filesystem::directory_iterator(StepPath())) {
      const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (GetParam() == Way::kCold || GetParam() == Way::kColdUnmapped) {
        ::fsync(fd);
        ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      } else {
        std::vector<char> bytes(1 << 20);
        while (::read(fd, bytes.data(), bytes.size()) > 0) {
        }
      }
      ::close(fd);
    }
  }

  // Loads these boxes and compares each with the plain version.
  void ExpectLoads(const std::vector<std::pair<uint32_t, Box>>& boxes) {
    const StepCatalog& catalog = step_->catalog();
    std::vector<std::vector<std::byte>> out;
    std::vector<ReadRequest> requests;
    for (const auto& [tensor, box] : boxes)
      out.emplace_back(box.Volume() * SizeOf(catalog.tensors[tensor].dtype));
    for (size_t i = 0; i < boxes.size(); ++i) requests.push_back({boxes[i].first, boxes[i].second, out[i]});
    const Status loaded = step_->Load(requests, Options());
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    for (size_t i = 0; i < boxes.size(); ++i) {
      const auto& [tensor, box] = boxes[i];
      EXPECT_EQ(out[i], GatherPiece({.box = box, .range = {0, box.Volume()}}, catalog.tensors[tensor],
                                    values_[tensor]))
          << DisplayName(catalog.tensors[tensor]) << " " << ToString(box);
    }
  }

  Status LoadAll() {
    std::vector<std::vector<std::byte>> out;
    std::vector<ReadRequest> requests;
    const auto& tensors = step_->catalog().tensors;
    for (const TensorEntry& tensor : tensors) out.emplace_back(tensor.bytes());
    for (uint32_t t = 0; t < tensors.size(); ++t)
      requests.push_back({t, Box::Whole(tensors[t].spec.shape), out[t]});
    return step_->Load(requests, Options());
  }

  Piece PieceOfTwoChunks() const {
    return *std::ranges::find_if(step_->catalog().pieces,
                                 [](const Piece& p) { return p.chunks.size() == 2; });
  }

  static inline const TempDir pristine_dir_{TempDir::Place::kMemory};
  static inline const std::string pristine_ = pristine_dir_ / "run";
  TempDir temp_{GetParam() == Way::kInMemory ? TempDir::Place::kMemory : TempDir::Place::kDisk};
  std::string run_ = temp_ / "run";
  FaultyFileSystem foreign_{FileSystem::Posix()};  // its files have no descriptor
  std::unique_ptr<StepReader> step_;
  std::vector<std::vector<std::byte>> values_;
};

INSTANTIATE_TEST_SUITE_P(Ways, StepLoaderTest,
                         testing::Values(Way::kWarm, Way::kCold, Way::kThroughTheCache, Way::kPastTheCache,
                                         Way::kForeign, Way::kInMemory, Way::kUnmapped, Way::kColdUnmapped),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(StepLoaderTest, WholeTensorsReadEachByteOnce) {
  std::vector<std::pair<uint32_t, Box>> boxes;
  uint64_t stored = 0;
  for (uint32_t t = 0; t < step_->catalog().tensors.size(); ++t)
    boxes.push_back({t, Box::Whole(step_->catalog().tensors[t].spec.shape)});
  for (size_t i = 0; i < step_->catalog().pieces.size(); ++i)
    stored += step_->catalog().pieces[i].stored_bytes;
  ExpectLoads(boxes);
  EXPECT_EQ(step_->bytes_read(), stored);
}

TEST_P(StepLoaderTest, ColumnsReadEachChunkOnce) {
  const auto columns = static_cast<uint32_t>(
      std::ranges::find(step_->catalog().tensors, "columns.weight",
                        [](const TensorEntry& t) -> const std::string& { return t.spec.name; }) -
      step_->catalog().tensors.begin());
  // Three strips through all rows, the middle one across the seam between the two ranks.
  ExpectLoads({{columns, {{0, 0}, {1200, 700}}},
               {columns, {{0, 700}, {1200, 601}}},
               {columns, {{0, 1301}, {1200, 1}}}});
  EXPECT_EQ(step_->bytes_read(), step_->catalog().tensors[columns].bytes());
}

TEST_P(StepLoaderTest, AWholeTensorAndABoxOfItAreBothFilled) {
  const auto& tensors = step_->catalog().tensors;
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    Box box = Box::Whole(tensors[t].spec.shape);
    if (box.rank() > 0) box.extent[0] = (box.extent[0] + 1) / 2;
    ExpectLoads({{t, Box::Whole(tensors[t].spec.shape)}, {t, box}, {t, Box::Whole(tensors[t].spec.shape)}});
  }
}

TEST_P(StepLoaderTest, LoadsAnyBoxesTogether) {
  std::mt19937 random(7);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::pair<uint32_t, Box>> boxes;
    for (int i = 0; i < 12; ++i) {
      const auto tensor = static_cast<uint32_t>(random() % step_->catalog().tensors.size());
      Box box = Box::Whole(step_->catalog().tensors[tensor].spec.shape);
      for (int d = 0; d < box.rank(); ++d) {
        if (random() % 3 == 0) continue;
        box.offset[d] = random() % box.extent[d];
        box.extent[d] = random() % (box.extent[d] - box.offset[d] + 1);  // sometimes nothing
      }
      boxes.push_back({tensor, box});
    }
    ExpectLoads(boxes);
  }
}

TEST_P(StepLoaderTest, ADamagedChunkFailsTheLoadAndIsNamed) {
  const Piece piece = PieceOfTwoChunks();
  for (const uint64_t chunk : {0, 1}) {
    std::fstream file(PathOf(piece), std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(piece.file_offset + chunk * kChunkBytes + 1234);
    file.seekg(at);
    const int good = file.get();
    file.seekp(at);
    file.put(static_cast<char>(good ^ 4));
    file.close();
    PrepareCache();
    const Status loaded = LoadAll();
    EXPECT_EQ(loaded.kind(), StatusKind::kCorrupt);
    const std::string expected = fmt::format("{} at byte {}: tensor {} does not match its digest",
                                             PathOf(piece), piece.file_offset + chunk * kChunkBytes,
                                             DisplayName(step_->catalog().tensors[piece.tensor]));
    EXPECT_NE(loaded.message().find(expected), std::string::npos) << loaded.message();
    file.open(PathOf(piece), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put(static_cast<char>(good));
    file.close();
    EXPECT_TRUE(LoadAll().ok());
  }
}

TEST_P(StepLoaderTest, AFileTruncatedAfterOpeningIsAnErrorNotASignal) {
  ASSERT_TRUE(LoadAll().ok());  // its shards are open now
  const Piece piece = PieceOfTwoChunks();
  for (const uint64_t keep : {kChunkBytes + 4096 * 7, kChunkBytes / 2, kPageBytes, uint64_t{0}}) {
    std::filesystem::resize_file(PathOf(piece), piece.file_offset + keep);
    PrepareCache();
    const Status loaded = LoadAll();
    EXPECT_EQ(loaded.kind(), StatusKind::kCorrupt);
    EXPECT_NE(loaded.message().find(PathOf(piece)), std::string::npos) << loaded.message();
    EXPECT_NE(loaded.message().find("tensor "), std::string::npos) << loaded.message();
  }
}

TEST_P(StepLoaderTest, RequestsThatDoNotFitAreRefused) {
  std::vector<std::byte> out(16);
  const std::vector<ReadRequest> bad = {
      {99, Box::Whole({}), out},
      {0, Box{{1499, 0}, {2, 2}}, out},
      {0, Box{{0}, {4}}, out},
      {0, Box{{0, 0}, {1, 3}}, out},
  };
  for (const ReadRequest& request : bad)
    EXPECT_EQ(step_->Load(std::span(&request, 1), Options()).kind(), StatusKind::kInvalidArgument);
  EXPECT_TRUE(step_->Load({}, Options()).ok());
  EXPECT_EQ(step_->bytes_read(), 0u);
}

TEST(StepLoaderFaultTest, EveryFailingOperationFailsTheLoad) {
  const TempDir temp(TempDir::Place::kMemory);
  FaultyFileSystem faulty(FileSystem::Posix());
  ASSERT_TRUE(MakeStep(FileSystem::Posix(), temp / "run", StepLoaderRecipe()).ok());
  int failures = 0;
  for (int64_t budget = 0;; ++budget) {
    auto step = StepReader::Open(faulty, JoinPath(temp / "run", StepDirName(100)));
    ASSERT_TRUE(step.ok());
    const TensorEntry& tensor = (*step)->catalog().tensors[0];
    std::vector<std::byte> out(tensor.bytes());
    const ReadRequest request{0, Box::Whole(tensor.spec.shape), out};
    faulty.SetBudget(faulty.operations() + budget);
    const Status loaded = (*step)->Load(std::span(&request, 1), {.threads = 1});
    const bool spent = !loaded.ok();
    faulty.SetBudget(-1);
    if (!spent) break;
    EXPECT_EQ(loaded.kind(), StatusKind::kIoError);
    EXPECT_NE(loaded.message().find("injected fault"), std::string::npos) << loaded.message();
    ++failures;
  }
  EXPECT_GE(failures, 4);  // of two shards at least, each opened and read
}

TEST(StepLoaderLimitTest, LoadsMoreShardsThanOpenFilesAllow) {
  const TempDir temp(TempDir::Place::kMemory);
  StepRecipe recipe;
  recipe.specs = {{.name = "w", .shape = {200, 64}}};
  recipe.topology = {1, 1, 200, 1};
  recipe.weights = Dtype::kF32;
  recipe.optimizer = false;
  recipe.rng_bytes = 0;
  ASSERT_TRUE(MakeStep(FileSystem::Posix(), temp / "run", recipe).ok());
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit few{100, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto step = StepReader::Open(FileSystem::Posix(), JoinPath(temp / "run", StepDirName(100)));
  ASSERT_TRUE(step.ok()) << step.status().message();
  ASSERT_EQ((*step)->catalog().files.size(), 200u);
  std::vector<std::byte> out((*step)->catalog().tensors[0].bytes()), again(out.size());
  const ReadRequest request{0, Box::Whole({200, 64}), out};
  const Status loaded = (*step)->Load(std::span(&request, 1));
  const Status read = (*step)->ReadBox(0, request.box, again);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  ASSERT_TRUE(read.ok()) << read.message();
  EXPECT_EQ(out, ValuesOf((*step)->catalog().tensors[0], 1));
  EXPECT_EQ(again, out);
}

}  // namespace
}  // namespace cairn
