#include "ckpt/model/catalog.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>

namespace cairn {
namespace {

Catalog Example() {
  Catalog catalog;
  TensorEntry up;
  up.spec.name = "layers.0.mlp.up.weight";
  up.spec.shape = {4, 6};
  up.spec.cuts = {{.dim = 0}};
  up.spec.layer = 0;
  up.dtype = Dtype::kBF16;
  catalog.tensors = {up, up};
  catalog.tensors[1].role = Role::kExpAvg;
  catalog.tensors[1].dtype = Dtype::kF32;
  catalog.files = {"shard-00000.h5", "shard-00001.h5"};
  const auto add = [&](uint32_t tensor, uint32_t file, Box box, FlatRange range) {
    Piece piece{.tensor = tensor, .file = file, .box = box, .range = range, .chunks = {Digest{}}};
    piece.stored_bytes = range.size() * SizeOf(catalog.tensors[tensor].dtype);
    catalog.pieces.push_back(piece);
  };
  add(0, 0, {{0, 0}, {2, 6}}, {0, 12});
  add(0, 1, {{2, 0}, {2, 6}}, {0, 12});
  add(1, 0, Box::Whole({4, 6}), {0, 13});
  add(1, 1, Box::Whole({4, 6}), {13, 24});
  return catalog;
}

// The same, the second piece compressed, the third stored as it is by a compressing writer, the fourth the
// low halves of a master.
Catalog PackedExample() {
  Catalog catalog = Example();
  catalog.tensors[1].role = Role::kMaster;
  Piece& low = catalog.pieces[3];
  low.codec = Codec::kMasterLow;
  low.stored_bytes /= 2;
  low.stored = {{0, static_cast<uint32_t>(low.stored_bytes), true, Digest{}, 0, 2}};
  low.exceptions = {{3, 0x3f80}, {10, 0xffff}};
  for (const size_t i : {1, 2}) {
    Piece& piece = catalog.pieces[i];
    const bool encoded = i == 1;
    piece.codec = Codec::kShuffleZstd;
    piece.file_offset = 65'536 + i;
    if (encoded) piece.stored_bytes -= 3;
    piece.stored = {{piece.file_offset,
                     static_cast<uint32_t>(piece.stored_bytes),
                     encoded,
                     DigestOf(std::string_view("stored")),
                     {}}};
  }
  return catalog;
}

// The first piece, of an fp16 weight, derived from its master.
Catalog DerivedExample() {
  Catalog catalog = Example();
  catalog.tensors[0].dtype = Dtype::kF16;
  Piece& piece = catalog.pieces[0];
  piece.codec = Codec::kDerived;
  piece.stored_bytes = 0;
  piece.stored = {{.encoded = true, .exceptions = 2}};
  piece.exceptions = {{3, 0x3f80}, {11, 0xffff}};
  return catalog;
}

// The second tensor in a role that has no number.
Catalog NamedExample() {
  Catalog catalog = Example();
  catalog.tensors[1].role = RoleNamed("ema").value();
  return catalog;
}

// Both tensors a stack of experts.
Catalog ExpertsExample() {
  Catalog catalog = NamedExample();
  for (TensorEntry& tensor : catalog.tensors) {
    tensor.spec.of_experts = true;
    tensor.spec.cuts = {{.axis = Axis::kEp, .dim = 0}, {.axis = Axis::kEtp, .dim = 1, .unit = 3, .pad = 5}};
  }
  return catalog;
}

// The kind of error for a changed catalog.
StatusKind KindOf(Catalog catalog, const std::function<void(Catalog&)>& change) {
  change(catalog);
  return DecodeCatalog(EncodeCatalog(catalog)).status().kind();
}

// A catalog in which the first chunk of a piece has other exceptions.
StatusKind KindWith(Catalog catalog, size_t piece, std::vector<MasterException> exceptions) {
  return KindOf(std::move(catalog), [&](Catalog& c) {
    c.pieces[piece].stored[0].exceptions = static_cast<uint32_t>(exceptions.size());
    c.pieces[piece].exceptions = std::move(exceptions);
  });
}

TEST(CatalogTest, RoundTrips) {
  for (const Catalog& catalog :
       {Example(), PackedExample(), DerivedExample(), NamedExample(), ExpertsExample()}) {
    const std::string bytes = EncodeCatalog(catalog);
    EXPECT_EQ(bytes.size(), EncodedCatalogBytes(catalog));
    const auto decoded = DecodeCatalog(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(*decoded, catalog);
    EXPECT_TRUE(CheckCoverage(*decoded).ok());
  }
}

TEST(CatalogTest, OnlyCodecsAndNamedRolesRaiseTheVersion) {
  EXPECT_EQ(EncodeCatalog(Example())[8], 1);
  EXPECT_EQ(EncodeCatalog(PackedExample())[8], 2);
  EXPECT_EQ(EncodeCatalog(NamedExample())[8], 3);
}

// The byte 255 and a text take the place of the role's number.
std::string WithRoleText(std::string_view role) {
  std::string bytes = EncodeCatalog(NamedExample());
  const size_t at = bytes.find(std::string("\xff\x03\0ema", 6));
  const std::string text = std::string(1, '\xff') + static_cast<char>(role.size()) + '\0' + std::string(role);
  return bytes.replace(at, 6, text);
}

TEST(CatalogTest, RoleNamesMustDifferFromNumberedRolesAndGroups) {
  const auto decoded = DecodeCatalog(WithRoleText("teacher"));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(Name(decoded->tensors[1].role), "teacher");
  for (const char* name :
       {"", "weight", "exp_avg", "json", "model", "state", "cairn", "..", "a/b", "a b", "\x01"})
    EXPECT_EQ(DecodeCatalog(WithRoleText(name)).status().kind(), StatusKind::kCorrupt) << name;
  EXPECT_EQ(DecodeCatalog(WithRoleText(std::string(65, 'a'))).status().kind(), StatusKind::kCorrupt);
}

TEST(CatalogTest, EqualNamesAreOneRole) {
  EXPECT_EQ(RoleNamed("exp_avg").value(), Role::kExpAvg);
  EXPECT_EQ(RoleNamed("ema").value(), RoleNamed("ema").value());
  EXPECT_NE(RoleNamed("ema").value(), RoleNamed("z").value());
  EXPECT_EQ(ParseRole("ema"), std::nullopt);  // the limit for states of other systems
  EXPECT_TRUE(IsOptimizerState(RoleNamed("ema").value()));
}

// Returns windows of exactly the requested bytes.
class Dribble final : public ByteSource {
 public:
  explicit Dribble(std::string_view bytes) : bytes_(bytes) {}
  std::string_view More(std::string_view rest, uint64_t need) override {
    const std::string_view fresh = bytes_.substr(0, need - rest.size());
    bytes_.remove_prefix(fresh.size());
    auto window = std::make_unique<std::string>(std::string(rest) + std::string(fresh));
    window_.swap(window);  // this frees the old one, to which `rest` points
    return *window_;
  }

 private:
  std::string_view bytes_;
  std::unique_ptr<std::string> window_;
};

TEST(CatalogTest, StreamedCatalogEqualsTheDecodedOne) {
  const Catalog expected = Example();
  const std::string bytes = EncodeCatalog(expected);
  Dribble source(bytes);
  const auto decoded = DecodeStepCatalog(ByteReader(source, bytes.size()));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(static_cast<const TensorTable&>(*decoded), expected);
  ASSERT_EQ(decoded->pieces.size(), expected.pieces.size());
  for (size_t i = 0; i < expected.pieces.size(); ++i) EXPECT_EQ(decoded->pieces[i], expected.pieces[i]);
  for (uint32_t t = 0; t < expected.tensors.size(); ++t) {
    EXPECT_EQ(decoded->PiecesOfTensor(t), expected.PiecesOfTensor(t));
    EXPECT_EQ(*decoded->Find(expected.tensors[t].spec.name, expected.tensors[t].role), t);
  }
  EXPECT_FALSE(decoded->Find("layers.0.mlp.up.weight", Role::kMaster).ok());
  EXPECT_EQ(decoded->file_ends, (std::vector<uint64_t>{52, 44}));
  EXPECT_TRUE(CheckCoverage(*decoded).ok());
}

TEST(CatalogTest, ASourceThatEndsEarlyIsCorrupt) {
  const std::string bytes = EncodeCatalog(Example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    Dribble source(std::string_view(bytes).substr(0, size));
    EXPECT_EQ(DecodeStepCatalog(ByteReader(source, bytes.size())).status().kind(), StatusKind::kCorrupt)
        << size;
  }
}

TEST(CatalogTest, ARepeatedTensorIsCorrupt) {
  Catalog twice = Example();
  twice.tensors[1] = twice.tensors[0];
  EXPECT_NE(DecodeCatalog(EncodeCatalog(twice)).status().message().find("listed twice"), std::string::npos);
}

// Only a mixture needs version 4; older programs read all other catalogs.
TEST(CatalogTest, ExpertsAndSeveralCutsNeedVersion4) {
  EXPECT_EQ(EncodeCatalog(NamedExample())[8], 3);
  const std::string bytes = EncodeCatalog(ExpertsExample());
  EXPECT_EQ(bytes[8], 4);
  EXPECT_EQ(EncodedCatalogBytes(ExpertsExample()), bytes.size());
  const auto decoded = DecodeCatalog(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->tensors, ExpertsExample().tensors);
}

TEST(CatalogTest, CutsThatNoTopologyMakesAreCorrupt) {
  const auto with = [](bool of_experts, std::vector<Cut> cuts) {
    return KindOf(ExpertsExample(), [&](Catalog& catalog) {
      catalog.tensors[0].spec.of_experts = of_experts;
      catalog.tensors[0].spec.cuts = cuts;
    });
  };
  EXPECT_EQ(with(true, {}), StatusKind::kOk);
  EXPECT_EQ(with(false, {{.dim = 1}}), StatusKind::kOk);
  EXPECT_EQ(with(true, {{.dim = 1}}), StatusKind::kCorrupt);                      // dense ranks
  EXPECT_EQ(with(false, {{.axis = Axis::kEp, .dim = 0}}), StatusKind::kCorrupt);  // no expert
  EXPECT_EQ(with(true, {{.axis = Axis::kEdp, .dim = 0}}), StatusKind::kCorrupt);  // replicas
  EXPECT_EQ(with(true, {{.axis = Axis::kEp, .dim = 2}}), StatusKind::kCorrupt);
  EXPECT_EQ(with(true, {{.axis = Axis::kEp, .dim = -1}}), StatusKind::kCorrupt);
  EXPECT_EQ(with(true, {{.axis = Axis::kEp, .unit = 0}}), StatusKind::kCorrupt);
  EXPECT_EQ(with(true, {{.axis = Axis::kEp}, {.axis = Axis::kEtp}}), StatusKind::kCorrupt);
  EXPECT_EQ(with(true, {{.axis = Axis::kEp}, {.axis = Axis::kEp, .dim = 1}}), StatusKind::kCorrupt);
}

TEST(CatalogTest, EveryTruncationIsCorrupt) {
  for (const Catalog& catalog :
       {Example(), PackedExample(), DerivedExample(), NamedExample(), ExpertsExample()}) {
    const std::string bytes = EncodeCatalog(catalog);
    for (size_t size = 0; size < bytes.size(); ++size)
      EXPECT_EQ(DecodeCatalog(bytes.substr(0, size)).status().kind(), StatusKind::kCorrupt) << size;
    EXPECT_EQ(DecodeCatalog(bytes + "x").status().kind(), StatusKind::kCorrupt);
  }
}

TEST(CatalogTest, NoFlippedBitCrashesTheDecoder) {
  for (const Catalog& catalog :
       {Example(), PackedExample(), DerivedExample(), NamedExample(), ExpertsExample()}) {
    const std::string bytes = EncodeCatalog(catalog);
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
      const auto decoded = DecodeCatalog(flipped);
      if (decoded.ok()) (void)CheckCoverage(*decoded);  // digests and names may differ
    }
  }
}

// Sizes to read or fill are checked against the chunk's size before anything is allocated.
TEST(CatalogTest, ChunksOfImpossibleSizesAreCorrupt) {
  const auto decode = [](auto change) {
    return KindOf(PackedExample(), [&](Catalog& c) { change(c.pieces[1]); });
  };
  EXPECT_EQ(decode([](Piece&) {}), StatusKind::kOk);
  for (const uint32_t bytes : {0u, 24u, 1u << 30})
    EXPECT_EQ(decode([=](Piece& p) { p.stored_bytes = p.stored[0].bytes = bytes; }), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Piece& p) { p.stored[0].encoded = false; }), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Piece& p) { p.stored_bytes += 1; }), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Piece& p) { p.file_offset += 1; }), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Piece& p) { p.file_offset = p.stored[0].file_offset = UINT64_MAX - 8; }),
            StatusKind::kCorrupt);
}

TEST(CatalogTest, LowHalvesOutsideOfAMasterAreCorrupt) {
  const auto decode = [](auto change) { return KindOf(PackedExample(), change); };
  const auto with = [](std::vector<MasterException> exceptions) {
    return KindWith(PackedExample(), 3, std::move(exceptions));
  };
  EXPECT_EQ(with({}), StatusKind::kOk);
  EXPECT_EQ(with({{10, 1}}), StatusKind::kOk);
  EXPECT_EQ(with({{11, 1}}), StatusKind::kCorrupt);
  EXPECT_EQ(with({{5, 1}, {5, 1}}), StatusKind::kCorrupt);
  EXPECT_EQ(with(std::vector<MasterException>(MaxMasterExceptions(11) + 1)), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Catalog& c) { c.tensors[1].role = Role::kExpAvg; }), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Catalog& c) { c.pieces[3].stored[0].encoded = false; }), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Catalog& c) { c.pieces[3].stored[0].bytes += 2, c.pieces[3].stored_bytes += 2; }),
            StatusKind::kCorrupt);
}

TEST(CatalogTest, DerivedPiecesMustBelongToAnFp16WeightWithoutBytes) {
  const auto decode = [](auto change) { return KindOf(DerivedExample(), change); };
  const auto with = [](std::vector<MasterException> exceptions) {
    return KindWith(DerivedExample(), 0, std::move(exceptions));
  };
  EXPECT_EQ(with({}), StatusKind::kOk);
  EXPECT_EQ(with({{11, 1}}), StatusKind::kOk);
  EXPECT_EQ(with({{12, 1}}), StatusKind::kCorrupt);
  EXPECT_EQ(with({{5, 1}, {5, 1}}), StatusKind::kCorrupt);
  EXPECT_EQ(with(std::vector<MasterException>(MaxMasterExceptions(12) + 1)), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Catalog& c) { c.tensors[0].dtype = Dtype::kBF16; }), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Catalog& c) { c.tensors[0].role = Role::kExpAvg; }), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Catalog& c) { c.pieces[0].stored_bytes = 24; }), StatusKind::kCorrupt);
  EXPECT_EQ(decode([](Catalog& c) { c.pieces[0].file_offset = 4096; }), StatusKind::kCorrupt);
}

TEST(CatalogTest, HugeCountsAreRefusedBeforeAllocation) {
  std::string bytes = EncodeCatalog(Example());
  for (size_t i = 20; i < 28; ++i) bytes[i] = '\xff';  // piece count
  const auto decoded = DecodeCatalog(bytes);
  ASSERT_FALSE(decoded.ok());
  EXPECT_NE(decoded.status().message().find("counts exceed"), std::string::npos);
}

TEST(CatalogTest, UnknownVersionIsNotSupported) {
  std::string bytes = EncodeCatalog(Example());
  bytes[8] = 9;
  EXPECT_EQ(DecodeCatalog(bytes).status().kind(), StatusKind::kNotSupported);
}

TEST(CatalogTest, HolesAndOverlapsAreNamed) {
  EXPECT_TRUE(CheckCoverage(Example()).ok());
  Catalog hole = Example();
  hole.pieces.pop_back();
  EXPECT_NE(CheckCoverage(hole).message().find(
                "layers.0.mlp.up.weight/exp_avg of shape [4, 6] has a hole: its pieces hold 13 of 24"),
            std::string::npos)
      << CheckCoverage(hole).message();
  for (const auto& [name, says] :
       {std::pair("decoder.layers.mlp.experts.linear_fc1.weight", "of layer 2, expert 5"),
        std::pair("layers.7.mlp.experts.up.weight", "of expert 2")}) {
    Catalog experts{{{{{.name = name, .shape = {3, 8, 4}}, Role::kWeight, Dtype::kF32}}, {"f"}}, {}};
    for (const Box& box : {Box{{0, 0, 0}, {2, 8, 4}}, Box{{2, 0, 0}, {1, 5, 4}}, Box{{2, 6, 0}, {1, 2, 4}}})
      experts.pieces.push_back({.box = box, .range = {0, box.Volume()}, .stored_bytes = 4 * box.Volume()});
    const std::string message = CheckCoverage(experts).message();
    EXPECT_NE(message.find(std::string("missing is [2, 5, 0], ") + says), std::string::npos) << message;
  }
  Catalog overlap = Example();
  overlap.pieces[1].box.offset[0] = 1;
  const std::string message = CheckCoverage(overlap).message();
  EXPECT_NE(message.find("box [0:2, 0:6] elements 0:12 in shard-00000.h5 overlaps"), std::string::npos)
      << message;
}

TEST(CatalogTest, ParametersListsEachParameterOnce) {
  Catalog catalog = Example();
  for (const Role role : {Role::kRng, Role::kJson, Role::kPickle, Role::kTraining}) {
    TensorEntry opaque{.role = role};
    opaque.spec.name = "of no parameter";
    catalog.tensors.push_back(opaque);
  }
  ASSERT_EQ(catalog.Parameters().size(), 1u);
}

TEST(CatalogTest, MissingTensorsAreNamed) {
  const Catalog catalog = Example();
  const auto found = TensorLookup(catalog).Find("layers.0.mlp.up.weight", Role::kMaster);
  EXPECT_EQ(found.status().message(), "the checkpoint has no master of tensor layers.0.mlp.up.weight");
}

}  // namespace
}  // namespace cairn
