/* A block format of tests/forward/forward_cuda_test.c, which reads it: 32 signed bytes behind an f32 scale.
 * It becomes a part of the rooms' declarations (tests/apart.sh), before all headers: without int64_t. */
#ifndef OWN_TYPE
#define OWN_TYPE 60
static void read_own(const unsigned char *blocks, float *out, __INT64_TYPE__ values);
#define CAIRN_BLOCK_TYPES {OWN_TYPE, "OWN", 32, 36, read_own},
#endif
