# `cmake --install`: the programs, their modules, manual pages and completions.
include(GNUInstallDirs)
if(SKBUILD)  # a wheel's places: they become the environment's bin and share
  set(CMAKE_INSTALL_BINDIR ${SKBUILD_SCRIPTS_DIR})
  set(CMAKE_INSTALL_DATADIR ${SKBUILD_DATA_DIR}/share)
  set(CMAKE_INSTALL_MANDIR ${SKBUILD_DATA_DIR}/share/man)
endif()
install(TARGETS cairn COMPONENT programs)
if(SKBUILD)
  install(TARGETS cairn_load LIBRARY DESTINATION cairn COMPONENT programs)  # into the package
else()
  install(TARGETS cairn_load LIBRARY DESTINATION lib/cairn COMPONENT programs)  # as python/cairn/_library.py looks for it
endif()
foreach(target cairn-train cairn_nccl cairn_cuda cairn_norm)
  if(TARGET ${target})
    install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} LIBRARY DESTINATION lib/cairn  # as ModulePath says
            COMPONENT programs)
  endif()
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documents)
if(CAIRN_PORTABLE)  # with whatever is inside
  install(CODE "execute_process(COMMAND \"${CMAKE_SOURCE_DIR}/python/licenses\" \"${CMAKE_BINARY_DIR}\" \"${CMAKE_BINARY_DIR}/licenses\"
                                COMMAND_ERROR_IS_FATAL ANY)" COMPONENT licenses)
  install(DIRECTORY ${CMAKE_BINARY_DIR}/licenses/ DESTINATION ${SKBUILD_METADATA_DIR}/licenses/bundled COMPONENT licenses)
endif()

install(CODE "set(pages \"${CMAKE_INSTALL_MANDIR}/man1\")
  cmake_path(ABSOLUTE_PATH pages BASE_DIRECTORY \"\${CMAKE_INSTALL_PREFIX}\")
  execute_process(COMMAND \"${Python3_EXECUTABLE}\" \"${CMAKE_SOURCE_DIR}/scripts/manual\" --man \"\$ENV{DESTDIR}\${pages}\"
                          \"$<TARGET_FILE:cairn>\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT manual)
foreach(place bash:bash-completion/completions/cairn zsh:zsh/site-functions/_cairn fish:fish/vendor_completions.d/cairn.fish)
  string(REGEX MATCH "([a-z]+):(.+)/(.+)" place ${place})
  install(FILES ${CMAKE_SOURCE_DIR}/tools/commands/completion/${CMAKE_MATCH_1} RENAME ${CMAKE_MATCH_3}
          DESTINATION ${CMAKE_INSTALL_DATADIR}/${CMAKE_MATCH_2} COMPONENT manual)
endforeach()
