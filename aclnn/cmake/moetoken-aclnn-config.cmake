# find_package(moetoken-aclnn) - the target moetoken-aclnn::opapi, and MOETOKEN_ASCEND_HOME_PATH for
# build files that want a folder. This file stands in <ascend tree>/lib64/cmake/moetoken-aclnn.
get_filename_component(MOETOKEN_ASCEND_HOME_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET moetoken-aclnn::opapi)
  add_library(moetoken-aclnn::opapi SHARED IMPORTED)
  set_target_properties(moetoken-aclnn::opapi PROPERTIES
    IMPORTED_LOCATION "${MOETOKEN_ASCEND_HOME_PATH}/lib64/libopapi.so"
    IMPORTED_SONAME "libascendcl.so"
    INTERFACE_INCLUDE_DIRECTORIES
      "${MOETOKEN_ASCEND_HOME_PATH}/include;${MOETOKEN_ASCEND_HOME_PATH}/include/aclnn;${MOETOKEN_ASCEND_HOME_PATH}/include/aclnnop")
endif()
