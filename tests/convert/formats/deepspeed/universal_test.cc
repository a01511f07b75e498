#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "convert/formats/systems.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"
#include "tests/support/whole_regions.h"

namespace cairn {
namespace {

// Three trained parameters whose steps differ, and a frozen one; every value of a tensor is its index.
class PartlyFrozenSource final : public CheckpointSource {
 public:
  PartlyFrozenSource() {
    manifest_.state = {{"iteration", 3}};
    for (const char* name : {"a.weight", "b.weight", "c.weight", "d.weight"}) {
      const ParameterSpec spec{.name = name, .shape = {2, 3}}, number{.name = name, .shape = {}};
      catalog_.tensors.push_back({spec, Role::kWeight, Dtype::kF32});
      if (spec.name == "b.weight") continue;
      for (const Role role : {Role::kExpAvg, Role::kExpAvgSq})
        catalog_.tensors.push_back({spec, role, Dtype::kF32});
      catalog_.tensors.push_back({number, Role::kStep, Dtype::kF32});
    }
  }
  const Manifest& manifest() const override { return manifest_; }
  const TensorTable& catalog() const override { return catalog_; }
  const Regions& regions() const override { return regions_.emplace(WholeRegions(catalog_)); }
  const std::string& directory() const override { return directory_; }
  Status ReadBox(uint32_t tensor, const Box&, std::span<std::byte> out) override {
    const std::vector<float> values(out.size() / sizeof(float), static_cast<float>(tensor));
    std::memcpy(out.data(), values.data(), out.size());
    return OkStatus();
  }
  void SetCacheBytes(uint64_t) override {}
  uint64_t bytes_read() const override { return 0; }

 private:
  Manifest manifest_;
  TensorTable catalog_;
  mutable std::optional<RegionList> regions_;
  std::string directory_ = "source";
};

TEST(Universal, FrozenParametersHaveNoStepIfStepsDiffer) {
  const TempDir dir(TempDir::Place::kMemory);
  PartlyFrozenSource source;
  const auto done = Export(Fs(), source, *FindSystem("universal"), dir / "out",
                           {.target = {.topology = {}, .dtype = {}}, .writer = {}});
  ASSERT_TRUE(done.ok()) << done.status().message();
  const auto read = OpenForeign(Fs(), dir / "out");
  ASSERT_TRUE(read.ok()) << read.status().message();
  std::vector<std::string> steps;
  for (const TensorEntry& tensor : (*read)->catalog().tensors)
    if (tensor.role == Role::kStep) steps.push_back(tensor.spec.name);
  EXPECT_THAT(steps, testing::UnorderedElementsAre("a.weight", "c.weight", "d.weight"));
  ASSERT_TRUE(Fs().RemoveFile(dir / "out/global_step3_universal/zero/a.weight/step.pt").ok());
  EXPECT_THAT(OpenForeign(Fs(), dir / "out").status().message(),
              testing::HasSubstr("zero/a.weight: step.pt is missing beside its states"));
}

}  // namespace
}  // namespace cairn
