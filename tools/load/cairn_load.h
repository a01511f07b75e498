// The library libcairn_load.so: reads checkpoints into the memory of the process that loads it. For the
// Python package (python/cairn/_library.py), which calls it by ctypes, without the GIL.
//
// Every byte that has a digest in the checkpoint is compared with it. A file that is cut, removed or changed
// while it is read is an error; nothing is mapped, so there is no SIGBUS. Nothing in a checkpoint is
// executed.
//
// Functions return 0, or 1 after an error. Then `said` holds it as JSON: {"kind", "error"}, and "errno",
// "path" and "reason" if a system call failed, as in a reply of `cairn serve` (docs/serve-protocol.md). No
// exception leaves a function. Any thread may call any function at any time. No thread of the library
// outlives a call. After a fork the child has no open checkpoints; it opens its own.
#pragma once

#include <stdint.h>

// The version of this interface: raised whenever a function or the meaning of an argument changes. Python
// refuses another one.
#define CAIRN_LOAD_VERSION 4

#ifdef __cplusplus
extern "C" {
#endif

// Bytes that the library has allocated. Whoever passes one to a function frees it, also after an error.
typedef struct cairn_load_text {
  const char* data;
  uint64_t head;  // bytes of JSON
  uint64_t tail;  // bytes after it
} cairn_load_text;

int32_t cairn_load_version(void);

// Opens a step, a run (its newest step that opens), STORE:RUN@STEP, or another system's checkpoint.
// options: JSON as of ParseSourceOptions (tools/source/source_flags.h). `said` describes the checkpoint and
// its values that are not tensors; its tail has the pickles. `handle` is a number above 0.
int32_t cairn_load_open(const char* path, const char* options, int64_t* handle, cairn_load_text* said);

// Describes the tensors, in columns: {"fqn", "name", "role", "dtype", "shape"} have an item for each tensor,
// in the order of their numbers. An FQN is null if the tensor holds a value that is not one. "paths": by FQN,
// of tensors that a nested state dict has.
int32_t cairn_load_tensors(int64_t handle, cairn_load_text* said);

// numbers[i] becomes the number of the tensor whose FQN is name i and which has that type (a number of
// ckpt/FORMAT.md) and shape; -1 if there is none. `names`: each ends with a NUL. `shapes`: ranks[i] numbers
// for each name, one after another.
int32_t cairn_load_match(int64_t handle, uint64_t count, const char* names, const uint8_t* dtypes,
                         const uint8_t* ranks, const uint64_t* shapes, int64_t* numbers,
                         cairn_load_text* said);

// Fills `count` boxes. Box i is of the tensor with number tensors[i]. `offsets` and `extents` have for each
// box as many numbers as its tensor has dimensions, all one after another; null: all of each tensor. Its
// values go to places[i], in row-major order: memory of the caller, of exactly the box's bytes, which no
// other box shares and nobody uses meanwhile. After an error the contents of all places are undefined.
int32_t cairn_load_read(int64_t handle, uint64_t count, const uint64_t* tensors, const uint64_t* offsets,
                        const uint64_t* extents, void* const* places, cairn_load_text* said);

// Verifies checksums that cover more than the boxes read, of other systems' files. Call it before values are
// used.
int32_t cairn_load_check(int64_t handle, cairn_load_text* said);

// What a save must tell about a step that its training has read: JSON for the request `loaded` of
// `cairn serve`. Nothing if the checkpoint is not a step, or is not open; but of the last 64 that were read
// and closed it tells once.
int32_t cairn_load_origin(int64_t handle, cairn_load_text* said);

// sums[i] becomes the sum of the bits of array i, of rows[i] times columns[i] elements of element_bytes[i]
// (1, 2, 4 or 8) each, all one after another (ckpt/base/value_sum.h).
void cairn_load_sums(uint64_t count, const void* const* values, const uint64_t* rows, const uint64_t* columns,
                     const uint8_t* element_bytes, uint64_t* sums);

// At the exit of the process, by whatever way, tells the `cairn serve` at the other end of `socket` (request
// `end`) with which status that is, and waits until it has ended.
void cairn_load_tell_exit(int32_t socket);

// Reads that run meanwhile finish. A handle that is not open is ignored.
void cairn_load_close(int64_t handle);

void cairn_load_free(cairn_load_text* said);

#ifdef __cplusplus
}
#endif
