// Pickles and the tree of their values: no opcode runs anything, shared values cost no
// more than the pickle's length allows.
#include "convert/formats/training/param_groups.h"
#include "convert/torch/pickle_machine.h"
#include "convert/torch/tensor_walk.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"

namespace cairn {

std::vector<std::string> FuzzSeeds() { return {}; }

std::vector<std::string> FuzzWords() {
  return PickleWords({"ctorch._utils\n_rebuild_parameter\n", "ctorch._tensor\n_rebuild_from_type_v2\n",
                      "ctorch\nSize\n", "c__builtin__\nset\n", "c_codecs\nencode\n",
                      "cnumpy.core.multiarray\nscalar\n", "cnumpy\ndtype\n", "cposix\nsystem\n",
                      "X\x06\0\0\0latin1", "X\x07\0\0\0storage",
                      "U\x02"
                      "f8",
                      std::string("q\0", 2), std::string("h\0", 2), "q\1", "h\1", "r\xff\xff\xff\x7f",
                      "\x8a\xff", "\x95" + std::string(8, '\xff'), "J\xff\xff\xff\x7f"});
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const auto bytes = std::make_shared<const std::string>(TextOf(data, size));
  bool ran_out = false;
  const auto pickle = Unpickle(bytes, 0, &ran_out);
  if (!pickle.ok()) {
    FuzzCheck(!pickle.status().message().empty());
    return 0;
  }
  FuzzCheck(!ran_out && (*pickle)->root && (*pickle)->end <= size);
  for (const PyValue& value : (*pickle)->values) {
    if (value.is(PyKind::kTensor))
      FuzzCheck(value.tensor->type && value.tensor->shape.rank() == value.tensor->stride.rank());
    if (value.is(PyKind::kDict)) FuzzCheck(value.items.size() % 2 == 0);
    if (value.is(PyKind::kBytes)) AsBytes(value, 16);
  }
  const PyValue& root = *(*pickle)->root;
  uint64_t names = 0;
  (void)ForEachTensor(root, [&](const std::string& path, const TensorRef&) {
    names += path.size();
    return OkStatus();
  });
  for (const char* key : {"args", "optimizer", "param_groups", "state"}) (void)Find(root, key);
  (void)ParamGroupsOf(Find(root, "param_groups"));
  return 0;
}
