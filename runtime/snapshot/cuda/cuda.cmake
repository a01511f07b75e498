# The module that takes snapshots from a GPU: the one part that needs nvcc.
find_program(CAIRN_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin PATH_SUFFIXES bin)
if(CAIRN_NVCC)
  if(NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${CAIRN_NVCC})
  endif()
  include(CheckLanguage)
  check_language(CUDA)  # an nvcc that does not work with this compiler is as good as none
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "no working nvcc here: building without GPU snapshots (CAIRN_NVCC says where it is)")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # A100, H100 and H200; PTX of 90 for what comes after
endif()
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20 since 12.0
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)

# nvcc takes the host compiler's options behind -Xcompiler only, and its own code is not clean under -Wextra.
get_property(options DIRECTORY PROPERTY COMPILE_OPTIONS)
set_property(DIRECTORY PROPERTY COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CXX>:${options}>"
             "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>")

# The CUDA runtime is linked statically: the module then needs the driver alone, wherever the toolkit lies, and does not
# have to agree with the libcudart that torch brings. Streams and memory are the driver's, so they pass between the two.
add_library(cairn_cuda MODULE snapshot/cuda/cuda_snapshot.cc snapshot/cuda/snapshot_kernels.cu snapshot/snapshot_window.cc)
target_link_libraries(cairn_cuda PRIVATE CUDA::cudart_static fmt::fmt PkgConfig::XXHASH)
target_link_options(cairn_cuda PRIVATE -Wl,--no-undefined)
set_target_properties(cairn_cuda PROPERTIES CUDA_RUNTIME_LIBRARY Static LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
