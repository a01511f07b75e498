# cairn-data: a script that starts the Python program of python/cairn/data. `cmake --install` copies the package beside it; the
# wheel has it as a console script of its own.
include(GNUInstallDirs)
set(python ${Python3_EXECUTABLE})
if(CAIRN_VENV)
  set(python ${CAIRN_VENV}/bin/python)
endif()
function(cairn_data_program directory packages)
  configure_file(${CMAKE_SOURCE_DIR}/python/cairn-data.in ${directory}/cairn-data @ONLY FILE_PERMISSIONS
                 OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
endfunction()
cairn_data_program(${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR}/python)
if(NOT SKBUILD)
  cairn_data_program(${CMAKE_BINARY_DIR}/installed [[$(dirname "$(readlink -f "$0")")/../lib/cairn/python]])
  install(PROGRAMS ${CMAKE_BINARY_DIR}/installed/cairn-data DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/python/cairn DESTINATION lib/cairn/python COMPONENT programs FILES_MATCHING PATTERN "*.py")
endif()
