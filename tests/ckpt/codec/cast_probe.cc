// Casts stdin to stdout, for interop/test_cast.py: cast_probe FROM TO.
#include <cstdio>
#include <vector>

#include "ckpt/codec/cast.h"

int main(int argc, char** argv) {
  const auto from = cairn::ParseDtype(argc == 3 ? argv[1] : ""),
             to = cairn::ParseDtype(argc == 3 ? argv[2] : "");
  if (!from || !to || !cairn::CanCast(*from, *to)) {
    std::fputs("usage: cast_probe FROM TO, of fp32 bf16 fp16\n", stderr);
    return 2;
  }
  std::vector<std::byte> in(1 << 16), out(2 * in.size());
  while (const size_t bytes = std::fread(in.data(), 1, in.size(), stdin)) {
    const size_t written = bytes / cairn::SizeOf(*from) * cairn::SizeOf(*to);
    cairn::Cast(*from, std::span(in).first(bytes), *to, std::span(out).first(written),
                cairn::OnOverflow::kInfinity);
    if (std::fwrite(out.data(), 1, written, stdout) != written) return 2;
  }
  return 0;
}
