#include "ckpt/base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

namespace cairn {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }

void Sha256::Update(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
}

std::string Sha256::FinishHex() {
  unsigned char digest[32];
  EVP_DigestFinal_ex(context_.get(), digest, nullptr);
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace cairn
