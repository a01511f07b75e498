// A function that a GPU's kernel and a CPU run alike: nvcc compiles it for both.
#pragma once

#ifdef __CUDACC__
#define CAIRN_HOST_DEVICE __host__ __device__
#else
#define CAIRN_HOST_DEVICE
#endif
