#include "runtime/text/sentencepiece_trainer.h"

#include <sentencepiece_trainer.h>

#include <thread>
#include <unordered_map>

namespace cairn {
namespace {

constexpr size_t kMaxSentenceBytes = 4000;  // SentencePiece skips sentences of more than 4192 bytes

// Hands SentencePiece the lines of the text, long ones in parts.
class LineIterator final : public sentencepiece::SentenceIterator {
 public:
  explicit LineIterator(TextSource& source) : source_(source) { Advance(); }

  bool done() const override { return done_; }
  void Next() override { Advance(); }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }  // the caller asks source_status()

  const Status& source_status() const { return source_status_; }

 private:
  void Advance() {
    do {
      while (begin_ >= chunk_.text.size()) {
        const Result<bool> more = source_.Next(&chunk_);
        if (!more.ok()) source_status_ = more.status();
        done_ = !more.ok() || !*more;
        if (done_) return;
        begin_ = 0;
      }
      TakeLine();
    } while (line_.empty());
  }

  void TakeLine() {
    const std::string_view rest = std::string_view(chunk_.text).substr(begin_);
    size_t size = std::min(rest.find('\n'), rest.size());
    if (size > kMaxSentenceBytes) {
      size = rest.rfind(' ', kMaxSentenceBytes);
      if (size == std::string_view::npos || size == 0) size = kMaxSentenceBytes;
    }
    line_.assign(rest.substr(0, size));
    begin_ += size;
    if (begin_ < chunk_.text.size() && chunk_.text[begin_] == '\n') ++begin_;
    if (line_.ends_with('\r')) line_.pop_back();
  }

  TextSource& source_;
  TextChunk chunk_;
  size_t begin_ = 0;
  std::string line_;
  bool done_ = false;
  Status source_status_;
};

}  // namespace

Result<std::string> TrainSentencePiece(TextSource& source, uint32_t vocab_size) {
  const std::unordered_map<std::string, std::string> options = {
      {"vocab_size", std::to_string(vocab_size)},
      {"model_type", "unigram"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"byte_fallback", "true"},
      {"input_sentence_size", std::to_string(kMaxTrainingLines)},
      {"num_threads", std::to_string(std::max(1u, std::thread::hardware_concurrency()))},
      {"minloglevel", "2"},
  };
  LineIterator lines(source);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, &lines, &model);
  CAIRN_RETURN_IF_ERROR(lines.source_status());
  if (!status.ok())
    return InvalidArgument("cannot train a SentencePiece model of {} tokens on this text: {}", vocab_size,
                           status.ToString());
  return model;
}

}  // namespace cairn
