#include "ckpt/base/posix_error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace cairn {
namespace {

TEST(PosixErrorTest, ParsesErrnoAndPathFromAMessage) {
  for (const int error : {ENOENT, EACCES, EROFS, ENOSPC, EEXIST, ENAMETOOLONG}) {
    const Status status = PosixError("make directory", "/scratch/a: b/run", error).WithContext("at byte 3");
    const auto failure = ParsePosixError(status);
    ASSERT_TRUE(failure) << status.message();
    EXPECT_EQ(failure->error, error);
    EXPECT_EQ(failure->path, "/scratch/a: b/run");
    EXPECT_TRUE(status.message().ends_with(failure->reason));
  }
  for (const Status& other :
       {OkStatus(), NotFound("/run: no committed step here"), IoError("open run: Permission denied"),
        PosixError("no shared memory", "of 5 bytes for a save", ENOMEM)})
    EXPECT_FALSE(ParsePosixError(other)) << other.message();
}

}  // namespace
}  // namespace cairn
