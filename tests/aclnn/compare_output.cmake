# cmake -DPROGRAM=... -DEXPECTED=... -P compare_output.cmake: runs a program and compares what it
# prints, byte by byte, with a file.
execute_process(COMMAND ${PROGRAM} RESULT_VARIABLE result OUTPUT_VARIABLE output)
file(READ ${EXPECTED} expected)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with ${result}\n${output}")
endif()
if(NOT output STREQUAL expected)
  message(FATAL_ERROR "${PROGRAM} printed\n${output}\nexpected\n${expected}")
endif()
