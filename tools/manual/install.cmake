# `cmake --install`: the programs, their modules, manual pages and completions. cairn itself writes the last two, then.
include(GNUInstallDirs)
if(SKBUILD)  # a wheel's places: they become the environment's bin and share
  set(CMAKE_INSTALL_BINDIR ${SKBUILD_SCRIPTS_DIR})
  set(CMAKE_INSTALL_DATADIR ${SKBUILD_DATA_DIR}/share)
  set(CMAKE_INSTALL_MANDIR ${SKBUILD_DATA_DIR}/share/man)
endif()
install(TARGETS cairn COMPONENT programs)
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

set(made ${CMAKE_BINARY_DIR}/manual)
install(CODE "
  file(REMOVE_RECURSE \"${made}\")
  file(MAKE_DIRECTORY \"${made}/completion\")
  execute_process(COMMAND \"$<TARGET_FILE:cairn>\" manual --format man --output \"${made}/man1\" COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell bash zsh fish)
    execute_process(COMMAND \"$<TARGET_FILE:cairn>\" completion \${shell} OUTPUT_FILE \"${made}/completion/\${shell}\"
                    COMMAND_ERROR_IS_FATAL ANY)
  endforeach()" COMPONENT manual)
install(DIRECTORY ${made}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT manual)
install(FILES ${made}/completion/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME cairn
        COMPONENT manual)
install(FILES ${made}/completion/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _cairn COMPONENT manual)
install(FILES ${made}/completion/fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME cairn.fish
        COMPONENT manual)
