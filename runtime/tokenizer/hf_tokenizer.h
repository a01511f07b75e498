// Byte-level BPE tokenizers as GPT-2, BLOOM, LLaMA-3 and Qwen publish them, with the ids that the
// `tokenizers` library gives.
//
// Reads tokenizer.json with model BPE; pre_tokenizer ByteLevel, perhaps after Split and Digits;
// normalizer NFC or none; added tokens. Of GPT-2 also vocab.json with merges.txt, which know no added tokens:
// <|endoftext|> in a text is then text, as in Megatron's GPT2BPETokenizer. What the post_processor puts
// around a whole text is before() and behind(), apart from Encode's tokens.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"
#include "runtime/tokenizer/tokenizer.h"

namespace cairn {

// Where a tokenizer is: one of these.
struct HfTokenizerPlace {
  std::string path;                    // a directory, or a tokenizer.json
  std::string vocab_file, merge_file;  // GPT-2's
};

// From files by name: tokenizer.json with tokenizer_config.json, or vocab.json with merges.txt. Not to be
// used by several threads at once. Errors: Corrupt; NotSupported, naming the unknown part of tokenizer.json.
Result<std::unique_ptr<Tokenizer>> MakeHfTokenizer(const std::map<std::string, std::string>& files);

// With its files by name, as a directory that transformers' AutoTokenizer loads: files that the place does
// not have are generated.
struct OpenedHfTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::map<std::string, std::string> files;
};
// Errors: NotFound and IoError; NotSupported (a directory without any form of BPE); those of MakeHfTokenizer,
// naming the file.
Result<OpenedHfTokenizer> OpenHfTokenizer(FileSystem& fs, const HfTokenizerPlace& place);

}  // namespace cairn
