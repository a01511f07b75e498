// The words themselves. A pattern may be coarse: a hit only selects a line, which the reader of its kind then
// takes apart. But a pattern that most lines fit would cost more than it finds, hence the digits and quotes
// in some of them.
#pragma once

#include <hs/hs.h>

#include <cstdint>

#include "tools/report/log_words.h"

namespace cairn {

struct LogWord {
  const char* pattern;  // Vectorscan's (PCRE) syntax
  uint32_t kinds;
  unsigned flags = 0;
};
inline constexpr unsigned kAnyCase = HS_FLAG_CASELESS;

// One hit a line is best: each costs a look.
inline constexpr LogWord kLogWords[] = {
    // The \d keeps "elapsed time per iteration (ms)" and "number of skipped iterations" of the same line out.
    {R"(iteration[ :=]{0,16}\d)", kIterationLine, kAnyCase},
    {R"(iter time \(s\):)", kDeepSpeedLine},
    {R"(, skipped=)", kDeepSpeedLine},
    {R"(SamplesPerSec=)", kDeepSpeedLine},
    {R"(max reserved: )", kMemoryLine},
    {R"(Max_CA )", kMemoryLine},
    {R"(MaxMemAllocated=)", kMemoryLine},
    {R"(\w \.{3})", kConfigLine},
    {R"(using world size:)", kConfigLine | kStartLine},
    {R"(new size: )", kConfigLine},
    {R"(TOTAL_PARAMS=)", kConfigLine},
    {R"(with TP=)", kConfigLine | kStartLine},
    {R"(arguments ---)", kStartLine},
    {R"([ '"=]--[a-z])", kCommandLine},
    {R"~("(stage|train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps)" *:)~",
     kJsonLine},
    {R"(saved checkpoint)", kCheckpointLine},
    {R"(save-checkpoint)", kCheckpointLine},
    {R"(save checkpoint:)", kCheckpointLine},
    {R"(loaded checkpoint)", kStartLine},
    {R"(after training is done)", kDoneLine},
    {R"(exiting program (at|after))", kDoneLine},
    {R"(validation loss at)", kEvaluationLine},
    {R"('(loss|eval_loss|train_runtime)': )", kTrainerLine},
    {R"(\* Running training \*)", kTrainerLine},
    {R"(Total optimization steps = )", kTrainerLine},
    {R"(Num Epochs = )", kTrainerLine},
    {R"(Total train batch size )", kTrainerLine},
    {R"(Instantaneous batch size per device = )", kTrainerLine},
    {R"(Gradient Accumulation steps = )", kTrainerLine},
    {R"(Number of trainable parameters = )", kTrainerLine},
    {R"(Saving model checkpoint to )", kTrainerLine},
    {R"(\d%\|.{0,100}\d/\d+ \[\d+:\d\d<)", kTrainerLine},
    {R"(out of memory)", kTroubleLine, kAnyCase},
    {R"(out-of-memory)", kTroubleLine},
    {R"(OutOfMemory)", kTroubleLine},
    {R"(OUT_OF_ME)", kTroubleLine},
    {R"(oom[-_]kill)", kTroubleLine, kAnyCase},
    {R"(bad_alloc)", kTroubleLine},
    {R"(NODE[ _]?FAIL)", kTroubleLine},
    {R"(node failure)", kTroubleLine, kAnyCase},
    {R"(time limit)", kTroubleLine, kAnyCase},
    {R"(PREEMPT)", kTroubleLine},
    {R"(CANCELLED)", kTroubleLine},
    {R"(collective operation timeout)", kTroubleLine},
    {R"(timed out)", kTroubleLine, kAnyCase},
    {R"((wait|socket) timeout)", kTroubleLine, kAnyCase},
    {R"(illegal memory access)", kTroubleLine, kAnyCase},
    {R"(unspecified launch failure)", kTroubleLine, kAnyCase},
    {R"(NCCL (error|timeout|communicator))", kTroubleLine, kAnyCase},
    {R"(nccl(Unhandled|System|Internal|Remote)[A-Z])", kTroubleLine},
    {R"(unhandled (cuda|system) error)", kTroubleLine},
    {R"(Connection (reset|closed) by)", kTroubleLine},
    {R"(stopping all ranks)", kTroubleLine},
    {R"(heartbeat)", kTroubleLine},
    {R"([Aa]ssert)", kTroubleLine},
    {R"([a-z](Error|Exception|Interrupt)\b)", kTroubleLine},
    {R"(\b(Exception|StopIteration|StopAsyncIteration|SystemExit|GeneratorExit)\b)", kTroubleLine},
    {R"(NET/IB)", kTroubleLine},
    {R"(Traceback \(most recent call last\))", kTroubleLine},
    {R"(\b[Kk]illed\b)", kTroubleLine},
    {R"(SIG(KILL|TERM|SEGV|ABRT|BUS)\b)", kTroubleLine},
    {R"([Ss]egmentation fault)", kTroubleLine},
    {R"(core dumped)", kTroubleLine},
    {R"(Bus error)", kTroubleLine},
    {R"(No space left on device)", kTroubleLine},
    {R"(quota exceeded)", kTroubleLine, kAnyCase},
    {R"(ECC error)", kTroubleLine},
    {R"(Xid )", kTroubleLine},
    {R"([Ee]xit(ed with|s with|code)? (exit )?(code|status|value))", kTroubleLine},
    {R"(exitcode *:)", kTroubleLine},
    {R"(cairn-train: )", kTroubleLine},
};

}  // namespace cairn
