// OpenSSL's plain functions, not EVP: they are the same code, but EVP brings every cipher of the library into
// a program that has it inside (python/portable.cmake), and reads the machine's openssl.cnf.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "ckpt/base/sha256.h"

#include <fmt/format.h>
#include <openssl/sha.h>

namespace cairn {

void Sha256::Free::operator()(SHA256state_st* context) const { delete context; }

Sha256::Sha256() : context_(new SHA256state_st) { SHA256_Init(context_.get()); }

void Sha256::Update(std::span<const std::byte> bytes) {
  SHA256_Update(context_.get(), bytes.data(), bytes.size());
}

std::string Sha256::FinishHex() {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256_Final(digest, context_.get());
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace cairn
