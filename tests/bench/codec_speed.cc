// codec_speed FILE ELEMENT_BYTES: ckpt's codec on the file's bytes, one thread, as a JSON line. For
// codec_speed.py.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "ckpt/codec/codec_policy.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::ifstream file(argv[1], std::ios::binary | std::ios::ate);
  if (!file) return 2;
  std::vector<char> bytes(file.tellg());
  file.seekg(0).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const cairn::CodecSpeed speed =
      cairn::MeasureCodec(std::as_bytes(std::span(bytes)), std::strtoul(argv[2], nullptr, 10));
  std::printf("{\"bytes\": %zu, \"stored\": %zu, \"encode\": %.6f, \"decode\": %.6f}\n", speed.bytes,
              speed.stored_bytes, speed.encode_seconds, speed.decode_seconds);
}
