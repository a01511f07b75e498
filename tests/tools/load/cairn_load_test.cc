// The interface of libcairn_load.so, called as Python calls it.
#include "tools/load/cairn_load.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using nlohmann::json;

class LoadTest : public testing::Test {
 protected:
  LoadTest() {
    EXPECT_TRUE(MakeStep(FileSystem::Posix(), dir_ / "run", Recipe()).ok());
    Open();
  }
  ~LoadTest() override { cairn_load_close(handle_); }

  // One rank; a weight of some chunks, and small tensors.
  static StepRecipe Recipe() {
    StepRecipe recipe;
    recipe.specs = {{.name = "large", .shape = {1500, 1501}}, {.name = "small", .shape = {7}}};
    recipe.topology = {1, 1, 1, 1};
    recipe.weights = Dtype::kF32;
    recipe.optimizer = false;
    return recipe;
  }

  void Open() {
    cairn_load_text said{};
    ASSERT_EQ(cairn_load_open((dir_ / "run").c_str(), "{}", &handle_, &said), 0) << Text(said);
    described_ = json::parse(std::string_view(said.data, said.head));
    cairn_load_free(&said);
    ASSERT_EQ(cairn_load_tensors(handle_, &said), 0) << Text(said);
    tensors_ = json::parse(std::string_view(said.data, said.head));
    cairn_load_free(&said);
  }

  static std::string Text(const cairn_load_text& said) {
    return said.data == nullptr ? "" : std::string(said.data, said.head);
  }
  // The error of a call; null if there was none.
  template <typename Call>
  static json ErrorOf(const Call& call) {
    cairn_load_text said{};
    const int32_t failed = call(&said);
    const std::string text = Text(said);
    cairn_load_free(&said);
    EXPECT_EQ(failed != 0, !text.empty());
    return failed == 0 ? json() : json::parse(text);
  }
  json Read(std::vector<uint64_t> tensors, std::vector<uint64_t> offsets, std::vector<uint64_t> extents,
            std::vector<void*> places) {
    return ErrorOf([&](cairn_load_text* said) {
      return cairn_load_read(handle_, tensors.size(), tensors.data(), offsets.data(), extents.data(),
                             places.data(), said);
    });
  }
  uint64_t Number(const std::string& name) const {
    for (uint64_t i = 0; i < tensors_["name"].size(); ++i)
      if (tensors_["name"][i] == name) return i;
    throw std::out_of_range(name);
  }
  std::string Shard() const { return described_["dir"].get<std::string>() + "/shard-00000.h5"; }

  static constexpr uint64_t kRows = 1500, kColumns = 1501;
  const TempDir dir_;
  int64_t handle_ = 0;
  json described_, tensors_;
  std::vector<float> whole_ = std::vector<float>(kRows * kColumns);
};

TEST_F(LoadTest, FillsBoxesWithTheValues) {
  const uint64_t large = Number("large");
  std::vector<float> rows(3 * 5), small(7);
  EXPECT_TRUE(Read({large, Number("small"), large}, {0, 0, 0, 700, 1200}, {kRows, kColumns, 7, 3, 5},
                   {whole_.data(), small.data(), rows.data()})
                  .is_null());
  const std::vector<std::byte> expected =
      ValuesOf({.spec = {.name = "large", .shape = {kRows, kColumns}}, .dtype = Dtype::kF32}, 1);
  EXPECT_EQ(std::memcmp(whole_.data(), expected.data(), expected.size()), 0);
  for (uint64_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(rows[i], whole_[(700 + i / 5) * kColumns + 1200 + i % 5]) << i;
  EXPECT_TRUE(ErrorOf([&](cairn_load_text* said) { return cairn_load_check(handle_, said); }).is_null());
}

// As tied weights have it, of which the later name counts.
TEST_F(LoadTest, BoxesThatShareMemoryAreReadOneAfterAnother) {
  const uint64_t large = Number("large");
  for (int time = 0; time < 5; ++time)
    EXPECT_TRUE(
        Read({large, large}, {0, 0, 750, 0}, {750, kColumns, 750, kColumns}, {whole_.data(), whole_.data()})
            .is_null());
  std::vector<float> second(750 * kColumns);
  EXPECT_TRUE(Read({large}, {750, 0}, {750, kColumns}, {second.data()}).is_null());
  EXPECT_TRUE(std::equal(second.begin(), second.end(), whole_.begin()));
}

TEST_F(LoadTest, WrongRequestsAreErrors) {
  const uint64_t large = Number("large");
  const auto invalid = [](const json& error) {
    return error.is_object() && error["kind"] == "invalid_argument";
  };
  EXPECT_TRUE(invalid(Read({99}, {0, 0}, {1, 1}, {whole_.data()})));
  EXPECT_TRUE(invalid(Read({large}, {1499, 0}, {2, 1}, {whole_.data()})));
  EXPECT_TRUE(invalid(Read({large}, {~uint64_t{0}, 0}, {1, 1}, {whole_.data()})));
  EXPECT_TRUE(invalid(Read({large}, {0, 0}, {0, 1}, {whole_.data()})));
  EXPECT_TRUE(invalid(Read({large}, {0, 0}, {1, 1}, {nullptr})));
  cairn_load_close(handle_);
  EXPECT_TRUE(invalid(Read({large}, {0, 0}, {1, 1}, {whole_.data()})));
  EXPECT_TRUE(invalid(ErrorOf([&](cairn_load_text* said) { return cairn_load_check(handle_, said); })));
  EXPECT_TRUE(invalid(ErrorOf([&](cairn_load_text* said) { return cairn_load_tensors(handle_, said); })));
  EXPECT_TRUE(invalid(ErrorOf([&](cairn_load_text* said) {
    return cairn_load_match(handle_, 0, nullptr, nullptr, nullptr, nullptr, nullptr, said);
  })));
  int64_t handle = 0;
  const auto open = [&](const std::string& path, const char* options) {
    return ErrorOf(
        [&](cairn_load_text* said) { return cairn_load_open(path.c_str(), options, &handle, said); });
  };
  EXPECT_TRUE(invalid(open(dir_ / "run", R"({"from": "zip"})")));
  EXPECT_TRUE(open(dir_ / "run", "{").is_object());
  const json missing = open(dir_ / "nowhere", "{}");
  EXPECT_EQ(missing["kind"], "not_found") << missing;
  EXPECT_EQ(cairn_load_version(), CAIRN_LOAD_VERSION);
}

TEST_F(LoadTest, ADamagedByteIsNamed) {
  std::fstream file(Shard(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(5 << 20);
  const int good = file.get();
  file.seekp(5 << 20);
  file.put(static_cast<char>(good ^ 16));
  file.close();
  const json error = Read({Number("large")}, {0, 0}, {kRows, kColumns}, {whole_.data()});
  EXPECT_EQ(error["kind"], "corrupt");
  EXPECT_NE(error["error"].get<std::string>().find(Shard() + " at byte "), std::string::npos) << error;
  EXPECT_NE(error["error"].get<std::string>().find("tensor large"), std::string::npos) << error;
}

TEST_F(LoadTest, ACutFileIsAnErrorAtOpenAndLater) {
  std::filesystem::resize_file(Shard(), 3 << 20);
  const json error = Read({Number("large")}, {0, 0}, {kRows, kColumns}, {whole_.data()});
  EXPECT_EQ(error["kind"], "corrupt") << error;
  EXPECT_NE(error["error"].get<std::string>().find(Shard()), std::string::npos) << error;
  const json again = ErrorOf([&](cairn_load_text* said) {
    int64_t handle = 0;
    return cairn_load_open(described_["dir"].get<std::string>().c_str(), "{}", &handle, said);
  });
  EXPECT_EQ(again["kind"], "corrupt") << again;
}

// Neither a signal nor wrong values, whenever the file is cut and made whole again.
TEST_F(LoadTest, AFileThatIsCutDuringALoadGivesAnErrorOrTheValues) {
  const uint64_t large = Number("large");
  ASSERT_TRUE(Read({large}, {0, 0}, {kRows, kColumns}, {whole_.data()}).is_null());
  const std::vector<float> right = whole_;
  std::filesystem::copy_file(Shard(), dir_ / "good");
  std::atomic<bool> done = false;
  std::thread writer([&] {
    while (!done) {
      std::filesystem::resize_file(Shard(), 2 << 20);
      std::ifstream good(dir_ / "good", std::ios::binary);
      std::fstream shard(Shard(), std::ios::in | std::ios::out | std::ios::binary);
      shard << good.rdbuf();
    }
  });
  int failed = 0, loaded = 0;
  for (int time = 0; time < 60 && (failed < 5 || loaded < 5); ++time) {
    std::ranges::fill(whole_, 0);
    const json error = Read({large}, {0, 0}, {kRows, kColumns}, {whole_.data()});
    if (error.is_null()) {
      ++loaded;
      ASSERT_TRUE(whole_ == right);
    } else {
      ++failed;
      ASSERT_NE(error["error"].get<std::string>().find("large"), std::string::npos) << error;
    }
  }
  done = true;
  writer.join();
  EXPECT_GT(failed, 0);
}

TEST_F(LoadTest, AForkedChildHasNoOpenCheckpointsAndOpensItsOwn) {
  const uint64_t large = Number("large");
  std::atomic<bool> done = false;
  std::thread reader([&] {  // the child is forked while it holds locks
    std::vector<float> values(kRows * kColumns);
    const uint64_t offset[] = {0, 0}, extent[] = {kRows, kColumns};
    void* const place = values.data();
    while (!done) {
      cairn_load_text said{};
      EXPECT_EQ(cairn_load_read(handle_, 1, &large, offset, extent, &place, &said), 0);
      cairn_load_free(&said);
    }
  });
  for (int time = 0; time < 20; ++time) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      const int64_t parents = handle_;
      bool good = !Read({large}, {0, 0}, {1, 1}, {whole_.data()}).is_null();
      Open();
      good = good && handle_ > parents && Read({large}, {0, 0}, {kRows, kColumns}, {whole_.data()}).is_null();
      ::_exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  done = true;
  reader.join();
}

TEST_F(LoadTest, MatchesTensorsOfThatFormAndReadsThemWhole) {
  const uint64_t shapes[] = {7, 8, 7, 7, kRows, kColumns, 7};
  const uint8_t fp32 = static_cast<uint8_t>(Dtype::kF32);
  const uint8_t dtypes[] = {fp32, fp32, 3, fp32, fp32, 0}, ranks[] = {1, 1, 1, 1, 2, 1};
  const char names[] = "small\0small\0small\0none\0large\0";  // and an empty one
  std::vector<int64_t> numbers(6);
  EXPECT_TRUE(ErrorOf([&](cairn_load_text* said) {
                return cairn_load_match(handle_, 6, names, dtypes, ranks, shapes, numbers.data(), said);
              }).is_null());
  const auto small = static_cast<int64_t>(Number("small")), large = static_cast<int64_t>(Number("large"));
  EXPECT_EQ(numbers, (std::vector<int64_t>{small, -1, -1, -1, large, -1}));

  std::vector<float> expected(kRows * kColumns), seven(7), expected_seven(7);
  ASSERT_TRUE(Read({Number("large"), Number("small")}, {0, 0, 0}, {kRows, kColumns, 7},
                   {expected.data(), expected_seven.data()})
                  .is_null());
  const uint64_t wanted[] = {Number("small"), Number("large")};
  void* const places[] = {seven.data(), whole_.data()};
  EXPECT_TRUE(ErrorOf([&](cairn_load_text* said) {
                return cairn_load_read(handle_, 2, wanted, nullptr, nullptr, places, said);
              }).is_null());
  EXPECT_TRUE(seven == expected_seven && whole_ == expected);
}

TEST_F(LoadTest, TellsWhichTensorsWereRead) {
  const auto origin = [&] {
    cairn_load_text said{};
    EXPECT_EQ(cairn_load_origin(handle_, &said), 0);
    const json told = json::parse(Text(said), nullptr, false);
    cairn_load_free(&said);
    return told;
  };
  EXPECT_EQ(origin()["read"], json::array());
  std::vector<float> small(7);
  ASSERT_TRUE(Read({Number("small")}, {0}, {7}, {small.data()}).is_null());
  EXPECT_EQ(origin()["read"], json::array({Number("small")}));
  EXPECT_EQ(origin()["step"], 100);
  EXPECT_EQ(origin()["names"], tensors_["fqn"]);
  cairn_load_close(handle_);
  EXPECT_EQ(origin()["read"], json::array({Number("small")}));
  EXPECT_TRUE(origin().is_discarded());
}

}  // namespace
}  // namespace cairn
