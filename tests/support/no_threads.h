// A system that gives this process no more threads, until the object is destroyed.
#pragma once

#include <pthread.h>

namespace cairn {

class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, size_t{1} << 46);  // more than there are addresses
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

}  // namespace cairn
