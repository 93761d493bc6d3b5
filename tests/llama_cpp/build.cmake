# SPDX-License-Identifier: Apache-2.0
# How a test builds llama.cpp. The server's own code in few files and without optimization: it is compiled once, and
# computes little. ggml-vulkan with what Debian 12's headers lack, ggml-cpu without what its compiler does wrong.
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL hurry)
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL avoid_tiles)
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL complete_vulkan)
function(hurry)
    foreach(target llama-common mtmd server-context llama-server-impl cpp-httplib)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
        target_compile_options(${target} PRIVATE -O0)
    endforeach()
    # Files that refuse to be compiled after others: a specialization of templates, a check of included headers.
    set(common ${CMAKE_SOURCE_DIR}/common)
    set(mtmd ${CMAKE_SOURCE_DIR}/tools/mtmd)
    set_source_files_properties(${common}/json.cpp DIRECTORY ${common} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    set_source_files_properties(${mtmd}/mtmd-helper.cpp ${mtmd}/mtmd-helper-gen.cpp DIRECTORY ${mtmd}
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
# _tile_loadconfig() of GCC before 12.4 and 13.3 reads 8 of the 64 bytes that it is given (GCC's bug 114098), so that the
# stores of the others are removed, and ggml's products with AMX end in an illegal instruction.
function(avoid_tiles)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64 AND
            (CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12.4 OR
            (CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13 AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13.3)))
        target_compile_options(ggml-cpu PRIVATE -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
    endif()
endfunction()
function(complete_vulkan)
    set(folder ${CMAKE_SOURCE_DIR}/ggml/src/ggml-vulkan)
    if(TARGET ggml-vulkan)
        set_source_files_properties(${folder}/ggml-vulkan.cpp DIRECTORY ${folder} PROPERTIES COMPILE_OPTIONS
            "-include;${CMAKE_CURRENT_FUNCTION_LIST_DIR}/vulkan_headers.h")
    endif()
endfunction()
