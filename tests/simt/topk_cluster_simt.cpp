/* topk/cluster.cu on the emulation, against a sort: clusters of several sizes, slices of one tile
 * and of many, and room for so few keys that most rows have too many, or some blocks more than others. */
#include "topk_sweep.h"

#define CAIRN_SCORE_TYPE 1
#define CAIRN_THREADS 128
#define CAIRN_ITEMS 8
#define CAIRN_CLUSTER 4
#define CAIRN_STAGES 1
#define CAIRN_CAPACITY 4096
#define CAIRN_LISTED 1024
#define CAIRN_ROOM 4096
namespace f32_staged {
#include "topk/cluster.cu"
}
#undef CAIRN_CAPACITY
#define CAIRN_CAPACITY 256
#undef CAIRN_LISTED
#define CAIRN_LISTED 224
#undef CAIRN_ROOM
#define CAIRN_ROOM 256
#undef CAIRN_CLUSTER
#define CAIRN_CLUSTER 2
namespace f32_cramped {
#include "topk/cluster.cu"
}
#undef CAIRN_CAPACITY
#define CAIRN_CAPACITY 4096
#undef CAIRN_LISTED
#define CAIRN_LISTED 1024
#undef CAIRN_ROOM
#define CAIRN_ROOM 8192
#undef CAIRN_SCORE_TYPE
#define CAIRN_SCORE_TYPE 3
#undef CAIRN_STAGES
#define CAIRN_STAGES 0
#undef CAIRN_ITEMS
#define CAIRN_ITEMS 32
#undef CAIRN_CLUSTER
#define CAIRN_CLUSTER 4
namespace bf16_wide {
#include "topk/cluster.cu"
}

template <class T> static shape launched(unsigned cluster) {
    return {cluster, 128, (unsigned)sizeof(T), ALL};
}

int main() {
    sweep<float>("staged, f32", f32_staged::topk_cluster, launched<f32_staged::staged_shared>(4),
                 same, same);
    sweep<float>("cramped, f32", f32_cramped::topk_cluster,
                 launched<f32_cramped::staged_shared>(2), same, same);
    sweep<bf16>("wide, bf16", bf16_wide::topk_cluster, launched<bf16_wide::staged_shared>(4),
                truncate_bf16, to_bf16);
    return tap_done();
}
