# libcairn_load.so: the code that cairn_load.h reaches, without the rest of the folders that it lies in: no HDF5, SQLite, OpenMP or
# OpenSSL, as the link proves, which leaves nothing undefined. It shows only the functions of cairn_load.h, so it can lie beside
# libtorch in one process.

# cairn_closure(OUT FOLDER...): these folders' targets and those that they use.
function(cairn_closure out)
  set(found)
  set(next ${ARGN})
  while(next)
    list(POP_FRONT next target)
    if(TARGET ${target} AND target MATCHES "^(ckpt|convert|tools)_" AND NOT target IN_LIST found)
      list(APPEND found ${target})
      get_target_property(uses ${target} INTERFACE_LINK_LIBRARIES)
      list(APPEND next ${uses})
    endif()
  endwhile()
  set(${out} ${found} PARENT_SCOPE)
endfunction()
cairn_closure(folders tools_load)
list(TRANSFORM folders REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE archives)

set(exports ${CMAKE_CURRENT_SOURCE_DIR}/load/exports.map)
add_library(cairn_load MODULE $<TARGET_OBJECTS:tools_load>)
add_dependencies(cairn_load ${folders})
set_target_properties(cairn_load PROPERTIES LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} LINK_DEPENDS "${exports};${archives}")
target_link_options(cairn_load PRIVATE -Wl,--version-script=${exports} -Wl,--gc-sections -Wl,-z,defs)
target_link_libraries(cairn_load PRIVATE -Wl,--start-group ${archives} -Wl,--end-group fmt::fmt PkgConfig::ZSTD PkgConfig::XXHASH
  PkgConfig::URING PkgConfig::ISAL PkgConfig::ARCHIVE Threads::Threads)
