// Status and Result<T>: how every function of ckpt and convert reports failure.
//
// Worker threads and background saves hand a Status back; an exception could not leave them. Kinds are few
// and tell what the user can do; the message names the object (path, tensor, offset, expected and found) and
// ends with what to do next. Libraries never print or exit: tools/main.cc and runtime/main.cc turn a Status
// into one line.
#pragma once

#include <fmt/format.h>

#include <cassert>
#include <optional>
#include <string>
#include <utility>

namespace cairn {

enum class StatusKind {
  kOk,
  kNotFound,         // a file, step or tensor is missing
  kCorrupt,          // bytes that contradict themselves or their digest
  kInvalidArgument,  // the request cannot be met: wrong topology, unknown flag value, size mismatch
  kNotSupported,     // a version, dtype or architecture that this program does not know
  kAlreadyExists,    // the destination exists and is never overwritten
  kNoSpace,          // disk or quota full
  kIoError,          // the operating system refused; the message carries errno's text
  kAborted,          // a peer failed or a deadline passed
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

  bool ok() const { return kind_ == StatusKind::kOk; }
  StatusKind kind() const { return kind_; }
  const std::string& message() const { return message_; }

  // The same failure with `context` and ": " before its message. A success stays as it is.
  Status WithContext(const std::string& context) const {
    return ok() ? *this : Status(kind_, context + ": " + message_);
  }

 private:
  StatusKind kind_ = StatusKind::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }

#define CAIRN_DEFINE_STATUS_MAKER(Name)                                             \
  template <typename... Args>                                                       \
  Status Name(fmt::format_string<Args...> format, Args&&... args) {                 \
    return {StatusKind::k##Name, fmt::format(format, std::forward<Args>(args)...)}; \
  }
CAIRN_DEFINE_STATUS_MAKER(NotFound)
CAIRN_DEFINE_STATUS_MAKER(Corrupt)
CAIRN_DEFINE_STATUS_MAKER(InvalidArgument)
CAIRN_DEFINE_STATUS_MAKER(NotSupported)
CAIRN_DEFINE_STATUS_MAKER(AlreadyExists)
CAIRN_DEFINE_STATUS_MAKER(NoSpace)
CAIRN_DEFINE_STATUS_MAKER(IoError)
CAIRN_DEFINE_STATUS_MAKER(Aborted)
#undef CAIRN_DEFINE_STATUS_MAKER

// A value, or the Status that says why it is missing. Throws std::bad_optional_access if a caller takes a
// value that is missing.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    assert(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return value_.value(); }
  const T& value() const& { return value_.value(); }
  T&& value() && { return std::move(value_).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

#define CAIRN_CONCAT_INNER(a, b) a##b
#define CAIRN_CONCAT(a, b) CAIRN_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expr` failed.
#define CAIRN_RETURN_IF_ERROR(expr)                                      \
  do {                                                                   \
    if (::cairn::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

// `CAIRN_ASSIGN_OR_RETURN(auto x, F());` declares x, or returns F's Status.
#define CAIRN_ASSIGN_OR_RETURN(lhs, expr) \
  CAIRN_ASSIGN_OR_RETURN_IMPL(CAIRN_CONCAT(result_, __LINE__), lhs, expr)
#define CAIRN_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                \
  if (!result.ok()) return result.status();            \
  lhs = std::move(result).value()

}  // namespace cairn
