// The sidecar of an archived step or of a bundle, as given and with the digest that its bytes should have;
// and the headers of its tar. Tars begin with a byte with which no JSON object begins.
#include "ckpt/model/plain_path.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/signed_json.h"
#include "tools/archive/store/bundle.h"
#include "tools/archive/tar/record.h"
#include "tools/archive/tar/tar_index.h"

namespace cairn {
namespace {

constexpr const char* kBundle = "run-bundle-00000040-00000900.5b6c7d8e.tar";

void Check(std::string_view text) {
  if (const auto bundle = DecodeBundle(text, kBundle); bundle.ok())
    FuzzCheck(DecodeBundle(EncodeBundle(*bundle), kBundle).ok());
  const auto record = DecodeRecord(text);
  if (!record.ok()) return FuzzCheck(!record.status().message().empty());
  FuzzCheck(EncodeRecord(*record) == text);
  const auto parts = ParseTarName(TarName(*record));
  FuzzCheck(!parts || parts->step == record->step);
}

void ReadTar(std::string_view bytes) {
  MemoryFileSystem fs;
  fs.files["run-step-00000040.9f8e7d6c.tar"] = fs.files["run-step-00000040.files.9f8e7d6c.tar"] = bytes;
  for (const auto& [path, unused] : fs.files) {
    const auto index = ReadTarIndex(fs, PlaceOfTar(path));
    if (!index.ok()) {
      FuzzCheck(!index.status().message().empty());
      continue;
    }
    for (const ArchivedFile& file : index->files)
      FuzzCheck((file.name.size() > 3000 || IsPlainPath(file.name)) && file.offset <= bytes.size() &&
                file.stored_bytes <= bytes.size() - file.offset);
  }
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  ArchiveRecord record{.name = "run",
                       .run = "0123456789abcdef0123456789abcdef",
                       .step = 40,
                       .directory = "run/step-00000040",
                       .manifest_digest = "9f8e7d6c9f8e7d6c9f8e7d6c9f8e7d6c",
                       .source = "/runs/run",
                       .files = {{.name = "manifest.json",
                                  .bytes = 10,
                                  .sha256 = std::string(64, 'a'),
                                  .offset = 1024,
                                  .stored_bytes = 10}}};
  ArchiveRecord packed = record;
  packed.files[0].packed = true;
  packed.parity = {TarName(packed) + std::string(kParitySuffix), 4096};
  ArchiveRecord tree = record;
  tree.form = Form::kFiles;
  tree.files[0].name = "d/\\ \xff";
  tree.tree = {.entries = {{.name = ""}, {.name = "d"}, {"l", EntryKind::kLink, "d/\xc3\xa4"}}};
  return {EncodeRecord(record), EncodeRecord(packed), EncodeRecord(tree),
          EncodeBundle({.name = kBundle, .tar_bytes = 8192, .members = {record}})};
}

std::vector<std::string> FuzzWords() {
  return JsonWords({"\"form\": \"files\"", "\"packed\": true", "\"derived_from\": \"x\"",
                    "\"offset\": 18446744073709551615", "../x", std::string("ustar\00000", 8),
                    "GNU.sparse.map=0,1", std::string(512, '\0')});
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view text = TextOf(data, size);
  Check(text);
  if (const auto record = SignedJson(text))
    Check(*record);
  else
    ReadTar(text);
  return 0;
}
