# SPDX-License-Identifier: Apache-2.0
# Stands for the functions of vcpkg that the port calls, as vcpkg's documentation describes them, with headers of the
# system: cmake -DPORT_DIR=... -DDISTFILES=... -DWORK=... -DLINKAGE=static|dynamic -P vcpkg_stand_in.cmake
# It runs the port's steps. That vcpkg itself accepts the port remains to be seen by running vcpkg.
cmake_minimum_required(VERSION 3.18)
set(PORT lowkey)
set(VCPKG_LIBRARY_LINKAGE "${LINKAGE}")
set(CURRENT_PACKAGES_DIR "${WORK}/packages")
set(build "${WORK}/build")

function(execute)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(status)
    message(FATAL_ERROR "exit status ${status}: ${ARGN}")
  endif()
endfunction()

function(vcpkg_download_distfile out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILENAME;SHA512" "URLS")
  file(SHA512 "${DISTFILES}/${arg_FILENAME}" sum)
  if(NOT sum STREQUAL arg_SHA512)
    message(FATAL_ERROR "${arg_FILENAME} has the sum ${sum}, the port states ${arg_SHA512}")
  endif()
  set(${out} "${DISTFILES}/${arg_FILENAME}" PARENT_SCOPE)
endfunction()

function(vcpkg_extract_source_archive out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "ARCHIVE" "")
  file(ARCHIVE_EXTRACT INPUT "${arg_ARCHIVE}" DESTINATION "${WORK}/source")
  file(GLOB folders "${WORK}/source/*")
  set(${out} "${folders}" PARENT_SCOPE)
endfunction()

function(vcpkg_configure_meson)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  string(REPLACE dynamic shared library "${LINKAGE}")
  # vcpkg names the flags of its triplet instead of a buildtype.
  execute(${CMAKE_COMMAND} -E env "CFLAGS=-fPIC -O3 -DNDEBUG" "CXXFLAGS=-fPIC -O3 -DNDEBUG"
    meson setup "${build}" "${arg_SOURCE_PATH}" --buildtype plain --wrap-mode nodownload --libdir lib
    --default-library ${library} --prefix "${CURRENT_PACKAGES_DIR}" ${arg_OPTIONS})
endfunction()

function(vcpkg_install_meson)
  execute(meson install --quiet -C "${build}")
endfunction()

function(vcpkg_fixup_pkgconfig)
endfunction()

function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "PACKAGE_NAME;CONFIG_PATH" "")
  file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}/share")
  file(RENAME "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}" "${CURRENT_PACKAGES_DIR}/share/${arg_PACKAGE_NAME}")
endfunction()

function(vcpkg_replace_string path old new)
  file(READ "${path}" text)
  string(REPLACE "${old}" "${new}" changed "${text}")
  if(changed STREQUAL text)
    message(FATAL_ERROR "${path} has no ${old}")
  endif()
  file(WRITE "${path}" "${changed}")
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(INSTALL ${arg_FILE_LIST} DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}" RENAME copyright)
endfunction()

include("${PORT_DIR}/portfile.cmake")
