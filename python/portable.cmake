# CAIRN_PORTABLE: the `cairn` program and libcairn_load.so with their libraries inside. They need only libc, libm and libgcc_s, and run
# on any machine whose glibc is not older than this one's. They are those in the wheel.
#
# Each library's target keeps its headers, and its shared objects are replaced by archives. Compile commands stay the same, so
# ccache can reuse objects of other builds. The archives are Debian's, but Debian has none of ISA-L, fmt and muParser, and no zstd for a
# shared object:
# python/libraries builds those from Debian's sources.
set(CAIRN_PORTABLE_LIBRARIES "" CACHE PATH "The directory that python/libraries printed")
if(CAIRN_RUNTIME)
  message(FATAL_ERROR "CAIRN_PORTABLE: the trainer needs libtorch, which cannot be inside; give -DCAIRN_RUNTIME=OFF")
endif()
if(NOT EXISTS "${CAIRN_PORTABLE_LIBRARIES}/ready")
  message(FATAL_ERROR "CAIRN_PORTABLE: CAIRN_PORTABLE_LIBRARIES=${CAIRN_PORTABLE_LIBRARIES} is not a directory that python/libraries made; "
    "run it, and give what it prints")
endif()

# cairn_inside(TARGET archive...): replaces TARGET's libraries by these archives. m, dl and pthread are the C library's.
function(cairn_inside target)
  set(archives)
  foreach(name IN LISTS ARGN)
    if(name MATCHES "^(m|dl|pthread)$")
      list(APPEND archives ${name})
      continue()
    endif()
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=lib${name}.a OUTPUT_VARIABLE of_compiler OUTPUT_STRIP_TRAILING_WHITESPACE)
    get_filename_component(of_compiler "${of_compiler}" DIRECTORY)
    find_library(archive NAMES lib${name}.a HINTS ${CMAKE_BINARY_DIR} ${CAIRN_PORTABLE_LIBRARIES}/lib ${HDF5_LIBRARY_DIRS} ${of_compiler} REQUIRED NO_CACHE)
    list(APPEND archives ${archive})
    unset(archive)
  endforeach()
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL INTERFACE_LIBRARY)  # fmt: the target has its own file
    list(POP_FRONT archives own)
    set_target_properties(${target} PROPERTIES IMPORTED_CONFIGURATIONS "" IMPORTED_LOCATION ${own} IMPORTED_LOCATION_NONE ${own})
  endif()
  set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${archives}" INTERFACE_LINK_DIRECTORIES "")
endfunction()

# OpenSSL and ISA-L both define gf_mul.
find_library(crypto NAMES libcrypto.a REQUIRED NO_CACHE)
execute_process(COMMAND ${CMAKE_OBJCOPY} --redefine-sym gf_mul=openssl_gf_mul ${crypto} ${CMAKE_BINARY_DIR}/libcrypto.a
                COMMAND_ERROR_IS_FATAL ANY)

cairn_inside(fmt::fmt fmt)
cairn_inside(PkgConfig::HDF5 hdf5 sz aec z m dl)
cairn_inside(PkgConfig::ZSTD zstd)
cairn_inside(PkgConfig::XXHASH xxhash)
cairn_inside(PkgConfig::URING uring)
cairn_inside(PkgConfig::ISAL isal)
cairn_inside(PkgConfig::CRYPTO crypto dl)
cairn_inside(PkgConfig::ARCHIVE archive)  # only its tar code: without codecs, XML and ACLs
cairn_inside(PkgConfig::SQLITE sqlite3 m dl)
cairn_inside(PkgConfig::MUPARSER muparser)
if(TARGET OpenMP::OpenMP_CXX)
  cairn_inside(OpenMP::OpenMP_CXX gomp)
endif()
# libgcc is linked dynamically: its archive needs a function of glibc 2.35.
add_link_options(-static-libstdc++ -Wl,--gc-sections -Wl,--as-needed)
set(CMAKE_SKIP_RPATH ON)
