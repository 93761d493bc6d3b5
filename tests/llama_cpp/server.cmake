# SPDX-License-Identifier: Apache-2.0
# The server's own code in few files and without optimization: a test compiles it once and computes little in it.
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL hurry)
function(hurry)
    foreach(target llama-common mtmd server-context llama-server-impl cpp-httplib)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
        target_compile_options(${target} PRIVATE -O0)
    endforeach()
    # It specializes templates that the other files use.
    set_source_files_properties(${CMAKE_SOURCE_DIR}/common/json.cpp TARGET_DIRECTORY llama-common
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
