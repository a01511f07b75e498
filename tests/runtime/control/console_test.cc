#include "runtime/control/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "ckpt/base/unique_fd.h"

namespace cairn {
namespace {

// Redirects stdout for a while.
class RedirectedStderr {
 public:
  explicit RedirectedStderr(int to) : before_(::dup(STDOUT_FILENO)) { ::dup2(to, STDOUT_FILENO); }
  ~RedirectedStderr() { ::dup2(before_.get(), STDOUT_FILENO); }

 private:
  UniqueFd before_;
};

TEST(Console, ReportsAFullStdoutAndItsRecoveryOnce) {
  const UniqueFd full(::open("/dev/full", O_WRONLY));
  testing::internal::CaptureStderr();
  {
    const RedirectedStderr redirected(full.get());
    Print(" iteration 1\n");
    Print(" iteration 2\n");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "cairn-train: standard output cannot be written: No space left on device; training continues and "
            "tries again\n");
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  Print(" iteration 3\n");
  Print(" iteration 4\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), " iteration 3\n iteration 4\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "cairn-train: standard output works again\n");
}

TEST(Console, AClosedPipeIsNotAnError) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const UniqueFd writer(ends[1]);
  testing::internal::CaptureStderr();
  {
    const RedirectedStderr redirected(writer.get());
    Print(" iteration 1\n");
  }
  Print("");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("Broken pipe; training continues"),
            std::string::npos);
  std::signal(SIGPIPE, before);
}

TEST(Console, ReportsHowManyRecordsAnOutputLost) {
  OutputHealth health("--log-json l");
  testing::internal::CaptureStderr();
  health.Note(OkStatus());
  health.Note(NoSpace("full"), 0);
  health.Note(NoSpace("full"), 3);
  EXPECT_TRUE(health.failing());
  health.Note(OkStatus(), 4);
  EXPECT_FALSE(health.failing());
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "cairn-train: --log-json l cannot be written: full; training continues and tries again\n"
            "cairn-train: --log-json l works again; 4 records are missing\n");
}

}  // namespace
}  // namespace cairn
