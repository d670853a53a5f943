# The router. Its kernels are plain C that compilers vectorise, each file for one instruction set;
# -fno-math-errno makes sqrt the instruction, which IEEE 754 defines to the bit. The scalar kernels
# are the specification, as written.
target_sources(moetoken_objects PRIVATE
  router/config.c router/parts.c router/choice.c router/router.c router/router_grad.c
  router/balance_loss.c router/z_loss.c router/update_bias.c router/drop.c
  router/scores/scores_scalar.c router/scores/scores_avx2.c router/scores/scores_avx512.c
  router/scores/scores_neon.c router/scores/scores_select.c)
set(MOETOKEN_SCORE_FLAGS "-O3;-fno-math-errno;-fno-trapping-math")
set_source_files_properties(router/scores/scores_scalar.c PROPERTIES COMPILE_OPTIONS
  "-fno-math-errno;-fno-tree-vectorize;$<$<C_COMPILER_ID:Clang>:-fno-slp-vectorize>")
set_source_files_properties(router/scores/scores_neon.c PROPERTIES COMPILE_OPTIONS
  "${MOETOKEN_SCORE_FLAGS}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(router/scores/scores_avx2.c PROPERTIES COMPILE_OPTIONS
    "${MOETOKEN_SCORE_FLAGS};-mavx2;-mfma")
  set_source_files_properties(router/scores/scores_avx512.c PROPERTIES COMPILE_OPTIONS
    "${MOETOKEN_SCORE_FLAGS};-mavx2;-mfma;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512")
endif()
