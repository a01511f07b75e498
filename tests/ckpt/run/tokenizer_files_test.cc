#include "ckpt/run/tokenizer_files.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

void PutFile(const TempDir& dir, const std::string& name, const std::string& text = "x") {
  const std::string path = dir / name;
  ASSERT_TRUE(MakeDirs(Fs(), path.substr(0, path.rfind('/'))).ok());
  ASSERT_TRUE(WriteSmallFile(Fs(), path, text).ok());
}

std::set<std::string> NamesIn(const FileCopies& files) {
  std::set<std::string> names;
  for (const auto& [name, from] : files) names.insert(name);
  return names;
}

TEST(TokenizerFiles, CopiesOnlyTokenizersAndTemplates) {
  const TempDir dir(TempDir::Place::kMemory);
  const std::set<std::string> kTaken = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "tekken.json",
                                        "spiece.model",
                                        "vocab.txt",
                                        "sentencepiece.bpe.model",
                                        "processor_config.json",
                                        "preprocessor_config.json",
                                        "chat_template.jinja",
                                        "additional_chat_templates/rag.jinja",
                                        "LICENSE",
                                        "NOTICE.txt"};
  for (const std::string& name : kTaken) PutFile(dir, name);
  for (const char* other : {"README.md", "optimizer.pt", "model.safetensors", "modeling_x.py", "config.json"})
    PutFile(dir, other);
  const auto found = TokenizerOf(Fs(), dir.path());
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(NamesIn(*found), kTaken);
}

TEST(TokenizerFiles, CopiesCodeThatAutoMapNames) {
  const TempDir dir(TempDir::Place::kMemory);
  PutFile(dir, "modeling_x.py");
  PutFile(dir, "configuration_x.py");
  EXPECT_TRUE(TokenizerOf(Fs(), dir.path())->empty());
  PutFile(dir, "config.json", R"({"auto_map": {"AutoModel": "modeling_x.X"}})");
  const auto found = TokenizerOf(Fs(), dir.path());
  EXPECT_EQ(NamesIn(*found), (std::set<std::string>{"configuration_x.py", "modeling_x.py"}));
  EXPECT_FALSE(HasTokenizer(*found));
}

TEST(TokenizerFiles, TemplatesKeepTheirNamesInAStep) {
  const TempDir model(TempDir::Place::kMemory), step(TempDir::Place::kMemory);
  PutFile(model, "tokenizer.json");
  PutFile(model, "additional_chat_templates/rag.jinja", "R");
  const auto read = ReadCopies(*TokenizerFiles(Fs(), model.path()));
  ASSERT_TRUE(read.ok());
  for (const BesideFile& file : *read) PutFile(step, file.name, file.bytes);
  EXPECT_FALSE(Fs().Stat(step / "additional_chat_templates").ok());  // a step has no directories
  const auto back = TokenizerFiles(Fs(), step.path());
  EXPECT_EQ(NamesIn(*back), (std::set<std::string>{"additional_chat_templates/rag.jinja", "tokenizer.json"}));
  EXPECT_EQ(*ReadSmallFile(Fs(), back->at("additional_chat_templates/rag.jinja").path, 10), "R");
}

TEST(TokenizerFiles, RefusesLinksThatLeadOutside) {
  const TempDir dir(TempDir::Place::kMemory), other(TempDir::Place::kMemory);
  PutFile(dir, "tokenizer.json");
  PutFile(other, "secret.jinja");
  std::filesystem::create_directory_symlink(other.path(), dir / "additional_chat_templates");
  EXPECT_EQ(TokenizerFiles(Fs(), dir.path()).status().kind(), StatusKind::kInvalidArgument);
  std::filesystem::remove(dir / "additional_chat_templates");
  std::filesystem::create_symlink(other / "secret.jinja", dir / "LICENSE");
  EXPECT_EQ(TokenizerOf(Fs(), dir.path()).status().kind(), StatusKind::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
