#include "convert/formats/dcp/dcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/formats/systems.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"

namespace cairn {
namespace {

// Export() opens its result.
std::string ErrorOfDcpWithState(const nlohmann::json& state) {
  const TempDir dir(TempDir::Place::kMemory);
  StepRecipe recipe = RecipeOf({.layers = 1, .vocab = 13}, {});
  recipe.state = state;
  EXPECT_TRUE(MakeStep(Fs(), dir / "run", recipe).ok());
  const auto source = Open(dir / "run");
  return Export(Fs(), *source, *FindSystem("dcp"), dir / "out",
                {.target = {.topology = {}, .dtype = {}}, .writer = {}})
      .status()
      .message();
}

TEST(Dcp, NamesItemsOfTheWrongKind) {
  EXPECT_EQ(ErrorOfDcpWithState({{"iteration", 3}, {"optimizer_step", 3}, {"other", {{"best", 1}}}}), "");
  EXPECT_THAT(ErrorOfDcpWithState({{"iteration", 3}, {"optimizer_step", "three"}}),
              testing::HasSubstr("its item \"cairn\": its state.optimizer_step is string, not a number"));
  EXPECT_THAT(ErrorOfDcpWithState({{"iteration", 3}, {"other", 7}}),
              testing::HasSubstr("its item \"cairn\": its state.other is number, not an object"));
}

}  // namespace
}  // namespace cairn
