#include "convert/verbs/strip.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "convert/formats/hugging_face/release_plan.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {
namespace {

using nlohmann::json;
using Bytes = std::vector<std::byte>;

// A skipped step also fails the test.
std::unique_ptr<StepReader> OpenWithoutSkipping(const std::string& path) {
  auto reader = OpenCheckpoint(Fs(), path, [](const Status& why) { ADD_FAILURE() << why.message(); });
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  return reader.ok() ? std::move(reader).value() : nullptr;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

struct LoadedTensor {
  std::string dtype;
  std::vector<uint64_t> shape;
  Bytes bytes;
};

// A plain reader of one safetensors file.
std::map<std::string, LoadedTensor> LoadSafetensors(const std::string& path) {
  const std::string file = ReadFile(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const json header = json::parse(file.substr(8, length));
  std::map<std::string, LoadedTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
    const auto* data = reinterpret_cast<const std::byte*>(file.data()) + 8 + length;
    tensors[name] = {entry.at("dtype"), entry.at("shape"), Bytes(data + offsets[0], data + offsets[1])};
  }
  return tensors;
}

Bytes CastBytes(Dtype from, const Bytes& in, Dtype to) {
  Bytes out(in.size() / SizeOf(from) * SizeOf(to));
  Cast(from, in, to, out, OnOverflow::kInfinity);
  return out;
}

// The whole weight of a parameter as strip should give it: its master if there is one, cast.
Bytes ExpectedWeight(const StepRecipe& recipe, const std::string& name, Dtype to) {
  Bytes weight;
  for (const TensorEntry& tensor : TensorsOf(recipe)) {
    if (tensor.spec.name != name || (tensor.role != Role::kWeight && tensor.role != Role::kMaster)) continue;
    weight = CastBytes(tensor.dtype, ValuesOf(tensor, recipe.seed), to);  // the master comes after the weight
  }
  return weight;
}

// out[j][i] = in[i][j], one element at a time.
Bytes Transposed(const Bytes& in, uint64_t rows, uint64_t columns, uint64_t size) {
  Bytes out(in.size());
  for (uint64_t i = 0; i < rows; ++i)
    for (uint64_t j = 0; j < columns; ++j)
      std::memcpy(&out[(j * rows + i) * size], &in[(i * columns + j) * size], size);
  return out;
}

class StripTest : public testing::Test {
 protected:
  void Make(const TinyGpt& model, const Topology& topology = {.tp = 2, .pp = 2, .dp = 2}) {
    model_ = model;
    recipe_ = RecipeOf(model, topology);
    Write();
  }
  void Write() { ASSERT_TRUE(MakeStep(Fs(), dir_ / "run", recipe_).ok()); }
  Result<TransferResult> Run(const StripOptions& options) {
    return Strip(Fs(), *OpenWithoutSkipping(dir_ / "run"), dir_ / "out", options);
  }
  std::vector<std::string> Left() { return *Fs().List(dir_.path()); }

  TempDir dir_;
  TinyGpt model_;
  StepRecipe recipe_;
  const std::vector<std::string> only_source_ = {"run"};
};

// The tensors of a GPT-2 in safetensors, against the recipe's parameters, one at a time.
class Gpt2Tensors {
 public:
  Gpt2Tensors(const StepRecipe& recipe, const TinyGpt& model, Dtype dtype, const std::string& path)
      : recipe_(recipe), model_(model), dtype_(dtype), loaded_(LoadSafetensors(path)) {}

  void Check() const {
    const uint64_t h = model_.hidden;
    Same("transformer.wte.weight", "embedding.word.weight", {model_.vocab, h});
    Same("transformer.wpe.weight", "embedding.position.weight", {model_.positions, h});
    Same("transformer.ln_f.bias", "final_norm.bias", {h});
    for (int layer = 0; layer < model_.layers; ++layer)
      CheckLayer(fmt::format("transformer.h.{}.", layer), fmt::format("layers.{}.", layer));
    EXPECT_EQ(loaded_.contains("lm_head.weight"), !model_.tied);
    EXPECT_EQ(loaded_.size(), 2 + 12 * 3 + 2 + (model_.tied ? 0u : 1u));
    EXPECT_EQ(loaded_.begin()->second.dtype, dtype_ == Dtype::kF32   ? "F32"
                                             : dtype_ == Dtype::kF16 ? "F16"
                                                                     : "BF16");
  }

 private:
  void CheckLayer(const std::string& to, const std::string& from) const {
    const uint64_t h = model_.hidden, f = model_.ffn;
    Same(to + "ln_1.weight", from + "input_norm.weight", {h});
    Same(to + "ln_2.bias", from + "post_attention_norm.bias", {h});
    Conv(to + "attn.c_proj.weight", from + "attention.output.weight", h, h);
    Conv(to + "mlp.c_fc.weight", from + "mlp.up.weight", h, f);
    Conv(to + "mlp.c_proj.weight", from + "mlp.down.weight", f, h);
    Bytes rows, bias;  // [Q; K; V] as rows; the transpose has them as columns
    for (const char* part : {"query", "key", "value"}) {
      const Bytes w = ExpectedWeight(recipe_, fmt::format("{}attention.{}.weight", from, part), dtype_);
      const Bytes b = ExpectedWeight(recipe_, fmt::format("{}attention.{}.bias", from, part), dtype_);
      rows.insert(rows.end(), w.begin(), w.end());
      bias.insert(bias.end(), b.begin(), b.end());
    }
    Expect(to + "attn.c_attn.weight", {h, 3 * h}, Transposed(rows, 3 * h, h, SizeOf(dtype_)));
    Expect(to + "attn.c_attn.bias", {3 * h}, bias);
  }
  void Same(const std::string& name, const std::string& parameter, std::vector<uint64_t> shape) const {
    Expect(name, std::move(shape), ExpectedWeight(recipe_, parameter, dtype_));
  }
  void Conv(const std::string& name, const std::string& parameter, uint64_t in, uint64_t out) const {
    Expect(name, {in, out}, Transposed(ExpectedWeight(recipe_, parameter, dtype_), out, in, SizeOf(dtype_)));
  }
  void Expect(const std::string& name, std::vector<uint64_t> shape, const Bytes& bytes) const {
    ASSERT_TRUE(loaded_.contains(name)) << name;
    EXPECT_EQ(loaded_.at(name).shape, shape) << name;
    EXPECT_EQ(loaded_.at(name).bytes, bytes) << name;
  }

  const StepRecipe& recipe_;
  const TinyGpt& model_;
  const Dtype dtype_;
  const std::map<std::string, LoadedTensor> loaded_;
};

TEST_F(StripTest, HuggingFaceTensorsEqualAPlainLoop) {
  for (const bool tied : {true, false}) {
    const TinyGpt model{
        .layers = 3, .hidden = 12, .heads = 2, .ffn = 34, .vocab = 41, .positions = 7, .tied = tied};
    const StepRecipe recipe = RecipeOf(model, {.tp = 2, .pp = 2, .dp = 2});
    const TempDir dir;
    ASSERT_TRUE(MakeStep(Fs(), dir / "run", recipe).ok());
    for (const uint64_t window : {uint64_t{1} << 10, kDefaultMaxMemory}) {
      for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16, Dtype::kF32}) {
        SCOPED_TRACE(fmt::format("tied {}, {} bytes of memory, {}", tied, window, Name(dtype)));
        const std::string out = dir / fmt::format("out-{}-{}", window, Name(dtype));
        const auto result = Strip(Fs(), *OpenWithoutSkipping(dir / "run"), out,
                                  {.dtype = dtype, .writer = {.max_memory = window}});
        ASSERT_TRUE(result.ok()) << result.status().message();
        Gpt2Tensors(recipe, model, dtype, out + "/model.safetensors").Check();
      }
    }
  }
}

TEST_F(StripTest, ConfigDescribesTheModel) {
  Make({.layers = 3, .vocab = 41, .positions = 7});
  recipe_.model["eos_token_id"] = 40;
  std::filesystem::remove_all(dir_ / "run");
  Write();
  ASSERT_TRUE(Run({}).ok());
  const json config = json::parse(ReadFile(dir_ / "out/config.json"));
  EXPECT_EQ(config["architectures"], json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(config["n_layer"], 3);
  EXPECT_EQ(config["vocab_size"], 41);
  EXPECT_EQ(config["n_positions"], 7);
  EXPECT_EQ(config["torch_dtype"], "float16");
  EXPECT_EQ(config["dtype"], "float16");
  EXPECT_EQ(config["activation_function"], "gelu_new");
  EXPECT_EQ(config["eos_token_id"], 40);
  EXPECT_TRUE(config["bos_token_id"].is_null());
  EXPECT_EQ(json::parse(ReadFile(dir_ / "out/generation_config.json"))["eos_token_id"], 40);
}

TEST_F(StripTest, TheSameSourceGivesTheSameBytes) {
  Make({});
  ASSERT_TRUE(Run({}).ok());
  const std::string first = ReadFile(dir_ / "out/model.safetensors");
  ASSERT_TRUE(Strip(Fs(), *OpenWithoutSkipping(dir_ / "run"), dir_ / "again/", {}).ok());
  EXPECT_EQ(ReadFile(dir_ / "again/model.safetensors"), first);
}

TEST_F(StripTest, OnlyTheMastersAreRead) {
  Make({});
  const auto result = Run({});
  ASSERT_TRUE(result.ok());
  uint64_t masters = 0;
  for (const TensorEntry& tensor : TensorsOf(recipe_))
    if (tensor.role == Role::kMaster) masters += tensor.bytes();
  EXPECT_EQ(result->bytes_read, masters);
  for (const TransferredTensor& tensor : result->tensors) EXPECT_EQ(tensor.source, Role::kMaster);
}

TEST_F(StripTest, WithoutMastersTakesTheWeights) {
  Make({});
  recipe_.optimizer = false;
  std::filesystem::remove_all(dir_ / "run");
  Write();
  ASSERT_TRUE(Run({.dtype = Dtype::kF32, .format = FindSystem("safetensors")}).ok());
  const auto loaded = LoadSafetensors(dir_ / "out/model.safetensors");
  for (const ParameterSpec& spec : recipe_.specs)
    EXPECT_EQ(loaded.at(spec.name).bytes, ExpectedWeight(recipe_, spec.name, Dtype::kF32)) << spec.name;
}

TEST_F(StripTest, NativeOutputIsAStepOfWeightsOnTheSameTopology) {
  Make({.layers = 3});
  const auto result = Run({.dtype = Dtype::kBF16, .format = FindSystem("native"), .keep_fp32 = {"*norm*"}});
  ASSERT_TRUE(result.ok()) << result.status().message();
  const auto reader = OpenWithoutSkipping(dir_ / "out");
  EXPECT_EQ(reader->manifest().topology, recipe_.topology);
  ASSERT_EQ(reader->catalog().tensors.size(), recipe_.specs.size());
  for (uint32_t i = 0; i < recipe_.specs.size(); ++i) {
    const TensorEntry& tensor = reader->catalog().tensors[i];
    const bool norm = tensor.spec.name.find("norm") != std::string::npos;
    EXPECT_EQ(tensor.role, Role::kWeight);
    EXPECT_EQ(tensor.dtype, norm ? Dtype::kF32 : Dtype::kBF16);
    Bytes bytes(tensor.bytes());
    ASSERT_TRUE(reader->ReadBox(i, Box::Whole(tensor.spec.shape), bytes).ok());
    EXPECT_EQ(bytes, ExpectedWeight(recipe_, tensor.spec.name, tensor.dtype));
  }
}

TEST_F(StripTest, LargeModelsAreSplitIntoFilesWithAnIndex) {
  Make({});
  const auto result = Run({.max_file_bytes = 4000});
  ASSERT_TRUE(result.ok());
  const json index = json::parse(ReadFile(dir_ / "out/model.safetensors.index.json"));
  std::map<std::string, std::map<std::string, LoadedTensor>> files;
  uint64_t total = 0;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!files.contains(file)) files[file] = LoadSafetensors(dir_ / ("out/" + file.get<std::string>()));
    ASSERT_TRUE(files[file].contains(name));
    total += files[file][name].bytes.size();
  }
  EXPECT_GT(files.size(), 2u);
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_TRUE(files.contains(fmt::format("model-00001-of-{:05}.safetensors", files.size())));
  EXPECT_EQ(result->files, files.size() + 4);  // index, two configurations, SHA256SUMS
  EXPECT_EQ(PlanStrip(*OpenWithoutSkipping(dir_ / "run"), {.max_file_bytes = 4000})->Cost()->files,
            result->files);
}

TEST(CutIntoFilesTest, FillsFilesInOrderAndGivesLargeTensorsTheirOwn) {
  using Files = std::vector<std::vector<size_t>>;
  EXPECT_EQ(CutIntoFiles({4, 4, 4}, 8), (Files{{0, 1}, {2}}));
  EXPECT_EQ(CutIntoFiles({1, 20, 1, 1}, 8), (Files{{0}, {1}, {2, 3}}));
  EXPECT_EQ(CutIntoFiles({1, 2}, 100), (Files{{0, 1}}));
}

// Rewrites a step whose masters hold `value` at one place.
class StripOverflowTest : public StripTest {
 protected:
  void SetUp() override {
    // fp32 values of ValuesOf are at most 1; a run of fp32 weights, some of them scaled up by hand, is
    // simplest.
    recipe_ = RecipeOf({}, {});
    recipe_.weights = Dtype::kF32;
    recipe_.optimizer = false;
    recipe_.rng_bytes = 0;
    const std::vector<TensorEntry> tensors = TensorsOf(recipe_);
    const std::string partial = dir_ / "run/step-00000100.partial-7e57";
    ASSERT_TRUE(MakeDirs(Fs(), partial).ok());
    WriteRing ring(Fs(), {.buffer_bytes = 64 << 10});
    const StepInfo info{{recipe_.run, recipe_.step}, recipe_.topology, recipe_.model, recipe_.state};
    const auto pieces = PiecesOfRank(recipe_, tensors, 0);
    ASSERT_TRUE(pieces.ok());
    auto writer = ShardWriter::Create(Fs(), ring, partial, {ShardName(0), info.identity, tensors, *pieces});
    ASSERT_TRUE(writer.ok());
    for (size_t i = 0; i < pieces->size(); ++i) {
      Bytes bytes = ValuesOf(tensors[(*pieces)[i].tensor], recipe_.seed);
      if (tensors[(*pieces)[i].tensor].spec.name == "layers.1.mlp.up.weight") {
        const float values[] = {1e6f, -70000.0f, 1e-6f, 1e-9f};
        std::memcpy(bytes.data() + 8, values, sizeof(values));
      }
      ASSERT_TRUE((*writer)->Append(i, bytes).ok());
    }
    auto receipt = (*writer)->Finish();
    ASSERT_TRUE(receipt.ok());
    auto seal = MakeSeal(info, tensors, {*receipt});
    Committer committer(Fs(), dir_ / "run", recipe_.step, "7e57");
    ASSERT_TRUE(seal.ok() && committer.Commit(*seal).ok());
  }
  static const TransferredTensor& Find(const TransferResult& result, const std::string& name) {
    return *std::ranges::find(result.tensors, name, &TransferredTensor::name);
  }
};

TEST_F(StripOverflowTest, CountsOverflowAndLeavesNothing) {
  for (const System* format : {FindSystem("hf"), FindSystem("native")}) {
    const auto result = Run({.format = format});
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_TRUE(result->overflowed);
    EXPECT_EQ(Find(*result, "layers.1.mlp.up.weight").counts.overflowed, 2u);
    EXPECT_EQ(Find(*result, "layers.0.mlp.up.weight").counts.overflowed, 0u);
    EXPECT_EQ(Left(), only_source_);
  }
}

TEST_F(StripOverflowTest, ADryRunReportsItAndWritesNothing) {
  const auto step = StepReader::Open(Fs(), dir_ / "run/step-00000100");
  ASSERT_TRUE(step.ok());
  const auto tried = PlanStrip(**step, {})->CountOnly();
  ASSERT_TRUE(tried.ok()) << tried.status().message();
  EXPECT_TRUE(tried->overflowed);
  EXPECT_EQ(Find(*tried, "layers.1.mlp.up.weight").counts.overflowed, 2u);
  EXPECT_FALSE(PlanStrip(**step, {.dtype = Dtype::kBF16})->CountOnly()->overflowed);
  EXPECT_FALSE(PlanStrip(**step, {.on_overflow = OnOverflow::kSaturate})->CountOnly()->overflowed);
  EXPECT_EQ(Left(), only_source_);
}

TEST_F(StripOverflowTest, SaturateKeepsTheLargestFinite) {
  const auto result = Run({.format = FindSystem("safetensors"), .on_overflow = OnOverflow::kSaturate});
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->overflowed);
  const CastCounts& counts = Find(*result, "layers.1.mlp.up.weight").counts;
  EXPECT_EQ(counts.overflowed, 2u);
  EXPECT_GE(counts.subnormal, 1u);
  EXPECT_GE(counts.underflowed, 1u);
  const auto loaded = LoadSafetensors(dir_ / "out/model.safetensors");
  uint16_t halves[2];
  std::memcpy(halves, loaded.at("layers.1.mlp.up.weight").bytes.data() + 4, 4);
  EXPECT_EQ(halves[0], 0x7bff);
  EXPECT_EQ(halves[1], 0xfbff);
}

TEST_F(StripOverflowTest, Bf16AndKeptTensorsDoNotOverflow) {
  EXPECT_FALSE(Run({.dtype = Dtype::kBF16})->overflowed);
  std::filesystem::remove_all(dir_ / "out");
  EXPECT_FALSE(Run({.keep_fp32 = {"layers.1.mlp.*"}})->overflowed);
}

TEST_F(StripTest, AFusedTensorKeepsFp32Whole) {
  Make({});
  ASSERT_TRUE(Run({.keep_fp32 = {"layers.0.attention.key.weight"}}).ok());
  const auto loaded = LoadSafetensors(dir_ / "out/model.safetensors");
  EXPECT_EQ(loaded.at("transformer.h.0.attn.c_attn.weight").dtype, "F32");
  EXPECT_EQ(loaded.at("transformer.h.1.attn.c_attn.weight").dtype, "F16");
}

TEST_F(StripTest, NamesAGlobThatMatchesNothing) {
  Make({});
  const auto result = Run({.keep_fp32 = {"*.lm_haed.*"}});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(result.status().message().find("*.lm_haed.*"), std::string::npos);
  EXPECT_EQ(Left(), only_source_);
}

TEST_F(StripTest, NamesAnUnknownArchitecture) {
  Make({});
  recipe_.model["architecture"] = "perceiver";
  std::filesystem::remove_all(dir_ / "run");
  Write();
  const auto result = Run({});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().kind(), StatusKind::kNotSupported);
  EXPECT_NE(result.status().message().find("perceiver"), std::string::npos);
  EXPECT_TRUE(Run({.format = FindSystem("safetensors")}).ok());
}

TEST_F(StripTest, NamesAModelThatContradictsItsTensors) {
  Make({});
  for (const auto& [field, value, named] :
       {std::tuple("hidden_size", json(32), "embedding.word.weight"),
        std::tuple("num_layers", json(9), "layers.2."), std::tuple("vocab_size", json("many"), "vocab_size"),
        std::tuple("num_layers", json(-1), "num_layers")}) {
    StepRecipe recipe = recipe_;
    recipe.model[field] = value;
    TempDir dir;
    ASSERT_TRUE(MakeStep(Fs(), dir / "run", recipe).ok());
    const auto result = Strip(Fs(), *OpenWithoutSkipping(dir / "run"), dir / "out", {});
    ASSERT_FALSE(result.ok()) << field;
    EXPECT_NE(result.status().message().find(named), std::string::npos) << result.status().message();
  }
}

// Changes one byte of one write on its way to the disk.
class LyingFileSystem final : public WrappedFileSystem {
 public:
  LyingFileSystem(FileSystem& base, int64_t lie_at) : WrappedFileSystem(base), left_(lie_at) {}
  bool lied() const { return left_ < 0; }

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    const bool is_data = call.kind == FsCall::Kind::kWrite && call.path.ends_with(".safetensors");
    if (!is_data || left_ < 0 || left_-- > 0) return run();
    Bytes bytes(call.bytes.begin(), call.bytes.end());
    bytes.front() ^= std::byte{1};  // the last bytes may be padding
    return call.file->WriteAt(call.offset, bytes);
  }

 private:
  int64_t left_;
};

TEST_F(StripTest, DetectsAByteThatTheDiskChanged) {
  Make({});
  for (int64_t lie_at = 0;; ++lie_at) {
    LyingFileSystem lying(Fs(), lie_at);
    const auto result =
        Strip(lying, *OpenWithoutSkipping(dir_ / "run"), dir_ / "out", {.max_file_bytes = 2000});
    if (!lying.lied()) {
      EXPECT_TRUE(result.ok());
      EXPECT_GT(lie_at, 5);
      break;
    }
    ASSERT_FALSE(result.ok()) << lie_at;
    EXPECT_EQ(result.status().kind(), StatusKind::kCorrupt);
    EXPECT_NE(result.status().message().find("read back"), std::string::npos);
    EXPECT_EQ(Left(), only_source_);
  }
}

// Whatever fails, the directory is complete or does not exist.
TEST_F(StripTest, AFailureLeavesNoPartialDirectory) {
  Make({}, {});
  ASSERT_TRUE(WriteSmallFile(Fs(), dir_ / "tokenizer.json", std::string(5000, 't')).ok());
  const auto options = [&](FileSystem& fs) {
    return StripOptions{.max_file_bytes = 20000,
                        .copies = {{"tokenizer.json", {&fs, dir_ / "tokenizer.json"}}}};
  };
  FaultyFileSystem faulty(Fs());
  ASSERT_TRUE(Strip(faulty, *OpenWithoutSkipping(dir_ / "run"), dir_ / "whole", options(faulty)).ok());
  const std::vector<std::string> whole = *Fs().List(dir_ / "whole");
  const int64_t operations = faulty.operations();
  for (int64_t budget = 0; budget < operations; budget += budget < operations - 60 ? 11 : 1) {
    FaultyFileSystem failing(Fs());
    failing.SetBudget(budget);
    EXPECT_FALSE(Strip(failing, *OpenWithoutSkipping(dir_ / "run"), dir_ / "out", options(failing)).ok());
    if (!Fs().Stat(dir_ / "out").ok()) continue;
    for (const std::string& name : whole)
      EXPECT_EQ(ReadFile(dir_ / ("out/" + name)), ReadFile(dir_ / ("whole/" + name))) << budget;
    std::filesystem::remove_all(dir_ / "out");
  }
}

TEST_F(StripTest, AsStoredTakesTheWeightsAndNotTheirMasters) {
  Make({});
  ASSERT_TRUE(Run({.dtype = {}, .format = FindSystem("safetensors")}).ok());
  for (const TensorEntry& tensor : TensorsOf(recipe_)) {
    if (tensor.role != Role::kWeight) continue;
    const auto loaded = LoadSafetensors(dir_ / "out/model.safetensors");
    EXPECT_EQ(loaded.at(tensor.spec.name).bytes, ValuesOf(tensor, recipe_.seed)) << tensor.spec.name;
  }
}

TEST_F(StripTest, AnExistingDirectoryIsNeverOverwritten) {
  Make({});
  ASSERT_TRUE(Fs().MakeDir(dir_ / "out").ok());
  const auto result = Run({});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().kind(), StatusKind::kAlreadyExists);
}

}  // namespace
}  // namespace cairn
