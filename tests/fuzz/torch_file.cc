// torch.save's files: the zip of records, the older stream, and the pickles in both.
#include "convert/torch/torch_file.h"

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace cairn {
namespace {

using namespace std::string_literals;

std::string Little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(i < 8 ? value >> 8 * i : 0);
  return text;
}

std::string Text(const std::string& text) { return "X" + Little(text.size(), 4) + text; }

std::string Tensor(uint64_t elements, const std::string& shape, const std::string& stride) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + Text("storage") + "ctorch\nFloatStorage\n" + Text("0") +
         Text("cpu") + "J" + Little(elements, 4) + "tQK\0"s + shape + stride + "\x89" +
         "ccollections\nOrderedDict\n)RtR";
}

std::string Zip(const std::vector<std::pair<std::string, std::string>>& records) {
  std::string file, directory;
  for (const auto& [name, data] : records) {
    const uint64_t header = file.size();
    file += "PK\3\4" + Little(0, 2) + Little(0x808, 2) + Little(0, 2) + Little(0, 16) +
            Little(name.size(), 2) + Little(3, 2) + name + "FBZ" + data;
    directory += "PK\1\2" + Little(0, 4) + Little(0x808, 2) + Little(0, 2) + Little(0, 4) + Little(0, 4) +
                 Little(data.size(), 4) + Little(data.size(), 4) + Little(name.size(), 2) + Little(0, 12) +
                 Little(header, 4) + name;
  }
  const uint64_t at = file.size();
  return file + directory + "PK\5\6" + Little(0, 4) + Little(records.size(), 2) + Little(records.size(), 2) +
         Little(directory.size(), 4) + Little(at, 4) + Little(0, 2);
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string proto = "\x80\x02";
  const std::string state = proto + "}(" + Text("w") + Tensor(6, "K\x02K\x03\x86", "K\x03K\x01\x86") +
                            Text("n") + "K\x07" + Text("f") + "G\x40\x04\0\0\0\0\0\0"s + Text("l") +
                            "](K\x01\x8a\x02\x00\x80"s + "Neu.";
  const std::string zip =
      Zip({{"a/data.pkl", state}, {"a/data/0", std::string(24, 'x')}, {"a/version", "3\n"}});
  const std::string stream = proto + "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + proto +
                             "M\xe9\x03." + proto + "}." + state + proto + "](" + Text("0") + "e." +
                             Little(6, 8) + std::string(24, 'y');
  return {zip,
          stream,
          state,
          proto + "cposix\nsystem\n" + Text("true") + "\x85R.",  // runs in Python
          proto + std::string(3000, '(') + ".",                  // deep nesting
          proto + "]q\0" + std::string(200, 'h') + "e.",         // memo
          proto + Tensor(6, "J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86", "K\x01K\x01\x86") +
              ".",  // a product that overflows
          Zip({{"../../etc/passwd", "x"}, {"a/data.pkl", state}, {"a/data.pkl", state}}),
          "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"};
}

std::vector<std::string> FuzzWords() {
  return {"\x80\x02",
          "ctorch._utils\n_rebuild_tensor_v2\n",
          "ctorch\nFloatStorage\n",
          "ccollections\nOrderedDict\n",
          "R",
          "Q",
          "\x85",
          "\x86",
          "\x87",
          "(",
          "t",
          "u",
          "e",
          "s",
          ".",
          "}",
          "]",
          ")",
          "q",
          "h",
          "r",
          "j",
          "\x94",
          "\x8e",
          "\x8a\xff",
          "cbuiltins\neval\n",
          "b",
          "\x81",
          "PK\3\4",
          "PK\1\2",
          "PK\5\6",
          "PK\6\6",
          "PK\6\7",
          "\xff\xff\xff\xff",
          "\xff\xff\xff\x7f",
          "data.pkl"};
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  MemoryFile file(std::string_view(reinterpret_cast<const char*>(data), size));
  const auto opened = TorchFile::Read(file, {0, size});
  if (!opened.ok()) {
    FuzzCheck(!opened.status().message().empty());
    return 0;
  }
  for (const auto& [name, storage] : opened->storages())
    FuzzCheck(storage.file_offset <= size && storage.bytes <= size - storage.file_offset);
  return 0;
}
