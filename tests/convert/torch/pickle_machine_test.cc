#include "convert/torch/pickle_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "convert/torch/pickle_emitter.h"
#include "convert/torch/pickle_value.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

using namespace std::string_literals;

Result<std::unique_ptr<Pickle>> ReadPickle(const std::string& bytes) {
  return Unpickle(std::make_shared<const std::string>(bytes));
}

std::string LittleEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i);
  return text;
}

std::string Text(const std::string& text) { return "X" + LittleEndian(text.size(), 4) + text; }

// torch.save's storage 0 of `elements` floats, and a tensor of this shape and stride in it.
std::string Tensor(uint64_t elements, const std::string& offset, const std::string& shape,
                   const std::string& stride) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + Text("storage") + "ctorch\nFloatStorage\n" + Text("0") +
         Text("cpu") + "J" + LittleEndian(elements, 4) + "tQ" + offset + shape + stride + "\x89" +
         "ccollections\nOrderedDict\n)RtR";
}

const std::string kProto2 = "\x80\x02";

TEST(PickleMachine, ReadsPlainValues) {
  const auto pickle = ReadPickle(
      kProto2 + "}(" + Text("int") + "K\x07" + Text("negative") + "J\xfe\xff\xff\xff" + Text("float") +
      "G\x40\x04\0\0\0\0\0\0"s + Text("none") + "N" + Text("true") + "\x88" + Text("long") +
      "\x8a\x02\x00\x80"s + Text("text") + Text("\xc3\xa4") + "K\x05" + "(K\x01K\x02t" + "u.");
  ASSERT_TRUE(pickle.ok()) << pickle.status().message();
  const PyValue& root = *(*pickle)->root;
  EXPECT_EQ(AsInt(Find(root, "int")), 7);
  EXPECT_EQ(AsInt(Find(root, "negative")), -2);
  EXPECT_EQ(AsNumber(Find(root, "float")), 2.5);
  EXPECT_TRUE(Find(root, "none")->is(PyKind::kNone));
  EXPECT_EQ(AsInt(Find(root, "true")), 1);
  EXPECT_EQ(AsInt(Find(root, "long")), -32768);
  EXPECT_EQ(AsText(Find(root, "text")), "\xc3\xa4");
  EXPECT_EQ(Find(root, "absent"), nullptr);
  EXPECT_EQ(AsDims(root.items.back()), (Dims{1, 2}));
}

TEST(PickleEmitter, WritesIntegersOfAnySizeAndSign) {
  PickleEmitter emitter;
  emitter.Json({INT64_MIN, -1, 255, INT64_MAX, uint64_t{INT64_MAX} + 1, UINT64_MAX});
  const auto pickle = ReadPickle(emitter.Finish());
  ASSERT_TRUE(pickle.ok()) << pickle.status().message();
  const std::vector<PyValue*>& items = (*pickle)->root->items;
  ASSERT_EQ(items.size(), 6U);
  EXPECT_EQ(AsInt(items[0]), INT64_MIN);
  EXPECT_EQ(AsInt(items[1]), -1);
  EXPECT_EQ(AsInt(items[2]), 255);
  EXPECT_EQ(AsInt(items[3]), INT64_MAX);
  EXPECT_TRUE(items[4]->is(PyKind::kBigInt));
  EXPECT_EQ(items[4]->text, "\0\0\0\0\0\0\0\x80\0"s);
  EXPECT_EQ(items[5]->text, "\xff\xff\xff\xff\xff\xff\xff\xff\0"s);
}

TEST(PickleMachine, TheLastOfEqualKeysWins) {
  const auto pickle =
      ReadPickle(kProto2 + "}(K\x01K\x02" + Text("a") + "K\x03" + "K\x01K\x04" + Text("a") + "K\x05u.");
  ASSERT_TRUE(pickle.ok()) << pickle.status().message();
  EXPECT_EQ(AsInt(EntryOf((*pickle)->root, 1)), 4);
  EXPECT_EQ(AsInt(Find(*(*pickle)->root, "a")), 5);
  EXPECT_EQ(EntryOf((*pickle)->root, 2), nullptr);
}

TEST(PickleMachine, ReadsTensors) {
  const auto pickle = ReadPickle(kProto2 + Tensor(10, "K\x01", "K\x02K\x03\x86", "K\x03K\x01\x86") + ".");
  ASSERT_TRUE(pickle.ok()) << pickle.status().message();
  const PyValue& root = *(*pickle)->root;
  ASSERT_TRUE(root.is(PyKind::kTensor));
  EXPECT_EQ(root.tensor->type->name, "float32");
  EXPECT_EQ(root.tensor->storage->bytes, 40u);
  EXPECT_EQ(root.tensor->offset, 1u);
  EXPECT_EQ(root.tensor->shape, (Dims{2, 3}));
  EXPECT_TRUE(root.tensor->contiguous());
}

TEST(PickleMachine, AnImpossibleTensorIsKeptAsACall) {
  for (const std::string& shape :
       {"J\xff\xff\xff\xffK\x03\x86"s, "(KKKKKKKKKKKKKKKKKKt"s, "K\x02\x85"s, "N"s}) {
    const auto pickle = ReadPickle(kProto2 + Tensor(10, "K\0"s, shape, "K\x03K\x01\x86") + ".");
    ASSERT_TRUE(pickle.ok()) << pickle.status().message();
    EXPECT_EQ((*pickle)->root->ClassName(), "torch._utils._rebuild_tensor_v2");
  }
}

TEST(PickleMachine, CodeIsNeverRun) {
  for (const std::string& call :
       {"cos\nsystem\n"s, "cposix\nsystem\n"s, "csubprocess\nPopen\n"s, "c__builtin__\neval\n"s,
        "\x8c\x08"
        "builtins\x8c\x04"
        "exec\x93"s}) {
    const auto pickle = ReadPickle("\x80\x04" + call + Text("touch /tmp/never") + "\x85R.");
    ASSERT_TRUE(pickle.ok()) << pickle.status().message();
    EXPECT_TRUE((*pickle)->root->is(PyKind::kObject));
    ASSERT_EQ((*pickle)->suspicious.size(), 1u);
    EXPECT_EQ((*pickle)->suspicious[0].name, (*pickle)->root->ClassName());
  }
  const auto harmless = ReadPickle(kProto2 + "cargparse\nNamespace\n)\x81}" + Text("a") + "K\x03sb.");
  ASSERT_TRUE(harmless.ok());
  EXPECT_EQ((*harmless)->suspicious.size(), 0u);
  EXPECT_EQ((*harmless)->root->ClassName(), "argparse.Namespace");
  EXPECT_EQ(AsInt(Find(*(*harmless)->root, "a")), 3);
}

TEST(PickleMachine, RefusesUnknownOpcodesWithTheirOffset) {
  for (const char opcode :
       {'P', 'i', 'o', 'S', 'V', 'I', 'L', 'F', 'p', 'g', '\x82', '\x83', '\x97', '\x98', '\x01'}) {
    const auto pickle = ReadPickle(kProto2 + "K\x01" + opcode + "0\n.");
    EXPECT_EQ(pickle.status().kind(), StatusKind::kNotSupported);
    EXPECT_THAT(pickle.status().message(),
                testing::HasSubstr(fmt::format("opcode 0x{:02x} at byte 4", static_cast<uint8_t>(opcode))));
  }
  EXPECT_EQ(ReadPickle("\x80\x06N.").status().kind(), StatusKind::kNotSupported);
}

TEST(PickleMachine, RefusesInconsistentPickles) {
  for (const std::string& body : {
           "."s,  // an empty stack
           "R."s,
           "N\x85R."s,
           "NN\x86R."s,
           "Nb."s,
           "s."s,  // too few operands
           "K\x01)R."s,
           "ca\nb\nK\x01R."s,  // what is called is not a class, or has no arguments
           "K\x01K\x02"
           "a."s,
           "]K\x01K\x02s."s,  // fills what is not a list or dict
           "}(K\x01u."s,
           "(K\x01"
           "d."s,  // a key without a value
           "t."s,
           "u."s,
           "e."s,
           "1."s,  // no mark
           "h\x00."s,
           "j\xff\xff\xff\xff."s,   // an empty memo slot
           "Nr\xff\xff\xff\xff."s,  // a memo slot without end
           "(N(0a."s,               // reaches below a mark
           "K\x01Q."s,
           "K\x01K\x02\x93."s,
       }) {
    const auto pickle = ReadPickle(kProto2 + body);
    EXPECT_FALSE(pickle.ok()) << testing::PrintToString(body);
    EXPECT_THAT(pickle.status().message(), testing::HasSubstr("byte"));
  }
}

TEST(PickleMachine, LengthsPastTheEndAreTruncation) {
  for (const std::string& body : {"X\xff\xff\xff\xff"s, "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s,
                                  "\x8b\xff\xff\xff\x7f"s, "\x8e\0\0\0\0\0\0\0\x80"s, "B\xff\xff\xff\xff"s,
                                  "\x96\xff\xff\xff\xff\xff\xff\xff\x7f"s, "cos"s, "\x8a\xff"s}) {
    bool ran_out = false;
    const auto pickle = Unpickle(std::make_shared<const std::string>(kProto2 + body + "abc"), 0, &ran_out);
    EXPECT_EQ(pickle.status().kind(), StatusKind::kCorrupt);
    EXPECT_TRUE(ran_out);
  }
}

TEST(PickleMachine, EveryTruncationIsRefused) {
  const std::string whole = kProto2 + "}(" + Text("w") +
                            Tensor(6, "K\0"s, "K\x02K\x03\x86", "K\x03K\x01\x86") + Text("n") +
                            "cargparse\nNamespace\n)\x81}" + Text("a") + "K\x03sbu.";
  ASSERT_TRUE(ReadPickle(whole).ok());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_EQ(ReadPickle(whole.substr(0, bytes)).status().kind(), StatusKind::kCorrupt) << bytes;
}

TEST(PickleMachine, SurvivesEveryDamagedByte) {
  const std::string whole = kProto2 + "}(" + Text("w") +
                            Tensor(6, "K\0"s, "K\x02K\x03\x86", "K\x03K\x01\x86") + Text("s") +
                            "c__builtin__\nset\n](K\x01K\x02"
                            "e\x85R" +
                            Text("b") + "c_codecs\nencode\n" + Text("\xc3\xbf") + Text("latin1") + "\x86Ru.";
  std::mt19937_64 rng(1);
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = whole;
    for (int n = 1 + static_cast<int>(rng() % 3); n > 0; --n)
      damaged[rng() % damaged.size()] = static_cast<char>(rng());
    const auto pickle = ReadPickle(damaged);
    if (!pickle.ok()) continue;
    (void)ForEachTensor(*(*pickle)->root, [](const std::string&, const TensorRef&) { return OkStatus(); });
  }
}

TEST(PickleMachine, DeepNestingUsesNoStack) {
  std::string deep = kProto2;
  constexpr int kDepth = 1'000'000;
  deep += std::string(kDepth, ']') + std::string(kDepth - 1, 'a') + ".";
  const auto pickle = ReadPickle(deep);
  ASSERT_TRUE(pickle.ok());
  EXPECT_EQ(ForEachTensor(*(*pickle)->root, [](auto&, auto&) { return OkStatus(); }).kind(),
            StatusKind::kCorrupt);
  EXPECT_TRUE(ReadPickle(kProto2 + std::string(kDepth, '(') + "N.").ok());
  std::string tuples = kProto2 + "N";
  for (int i = 0; i < kDepth; ++i) tuples += '\x85';
  EXPECT_TRUE(ReadPickle(tuples + ".").ok());
}

TEST(PickleMachine, WalkingACycleIsRefused) {
  const auto pickle = ReadPickle(kProto2 + "]q\0h\0a."s);
  ASSERT_TRUE(pickle.ok());
  EXPECT_EQ((*pickle)->root->items[0], (*pickle)->root);
  const Status status = ForEachTensor(*(*pickle)->root, [](auto&, auto&) { return OkStatus(); });
  EXPECT_THAT(status.message(), testing::HasSubstr("endlessly"));
}

// 40 lists, each twice in the next: 2^40 leaves from a few hundred bytes.
TEST(PickleMachine, SharedValuesAreNotCopied) {
  std::string bomb = kProto2 + "]";
  for (int i = 0; i < 40; ++i) bomb += "2\x86";
  const auto pickle = ReadPickle(bomb + ".");
  ASSERT_TRUE(pickle.ok());
  EXPECT_LT((*pickle)->values.size(), 50u);
  EXPECT_EQ(ForEachTensor(*(*pickle)->root, [](auto&, auto&) { return OkStatus(); }).kind(),
            StatusKind::kCorrupt);
}

// One tensor 1000 times in a list, and that list 1000 times in another: a million from a few kilobytes.
TEST(PickleMachine, VisitsOfSharedTensorsAreBounded) {
  std::string bomb = kProto2 + Tensor(6, "K\0"s, "K\x02K\x03\x86", "K\x03K\x01\x86") + "q\1" + "0(";
  for (int i = 0; i < 1000; ++i) bomb += "h\1";
  bomb += "lq\2" + "0("s;
  for (int i = 0; i < 1000; ++i) bomb += "h\2";
  const auto pickle = ReadPickle(bomb + "l.");
  ASSERT_TRUE(pickle.ok()) << pickle.status().message();
  uint64_t visits = 0;
  const Status status = ForEachTensor(*(*pickle)->root, [&](auto&, auto&) {
    ++visits;
    return OkStatus();
  });
  EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
  EXPECT_LT(visits, 500'000u);
  EXPECT_GT(visits, 100'000u);
}

TEST(PickleMachine, CopiesAreBoundedByTheLengthOfThePickle) {
  std::string bomb = kProto2 + "](";
  for (int i = 0; i < 10000; ++i) bomb += "N";
  bomb += "eq\1c__builtin__\nset\nq\2";
  for (int i = 0; i < 1000; ++i) bomb += "0h\2h\1\x85R";
  EXPECT_THAT(ReadPickle(bomb + ".").status().message(), testing::HasSubstr("over and over"));
}

// numpy.dtype(code), given that many bytes: 9 would not fit a number, and 0 are none.
TEST(PickleMachine, ReadsNumpyNumbersOfValidSizes) {
  const auto scalar = [](const std::string& code, const std::string& bytes) {
    return ReadPickle(
        "\x80\x03"
        "cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(" +
        Text(code) + "\x89\x88tRC" + LittleEndian(bytes.size(), 1) + bytes + "tR.");
  };
  const auto five = scalar("i4", LittleEndian(5, 4));
  ASSERT_TRUE(five.ok()) << five.status().message();
  EXPECT_EQ(AsInt((*five)->root), 5);
  EXPECT_EQ(AsInt((*scalar("i2", "\xfe\xff"))->root), -2);
  for (int size : {0, 9}) {
    const auto none = scalar("i" + std::to_string(size), std::string(size, '\x01'));
    ASSERT_TRUE(none.ok()) << none.status().message();
    EXPECT_EQ(AsInt((*none)->root), std::nullopt) << size;
  }
}

TEST(PickleMachine, ReadsBytesOfProtocol2) {
  const auto pickle =
      ReadPickle(kProto2 + "c_codecs\nencode\n" + Text("a\xc3\xbf\xc2\x80") + Text("latin1") + "\x86R.");
  ASSERT_TRUE(pickle.ok());
  EXPECT_EQ(AsBytes(*(*pickle)->root, 100), "a\xff\x80");
  EXPECT_EQ(AsBytes(*(*pickle)->root, 2), "a\xff");
}

}  // namespace
}  // namespace cairn
