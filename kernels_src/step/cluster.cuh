/* What a step's row attends, by a cluster that has its runs (attention/cluster.cuh). */
#ifndef CAIRN_STEP_CLUSTER_CUH
#define CAIRN_STEP_CLUSTER_CUH

#include "attention/cluster.cuh"
#include "step/merge.cuh"

/* To the bit as merge_block. All threads. */
CAIRN_INLINE void merge_cluster(const cluster_inbox &inbox, int runs, int row, int kv_head, uint8_t *layer) {
    merge_sent(inbox, runs, [&](int m, int d, const merged_pair &pair) {
        const f32x2 o = pair.share();
        send_attended(layer, row, kv_head * GROUP + m, d, o.x, o.y);
    });
}

#endif
