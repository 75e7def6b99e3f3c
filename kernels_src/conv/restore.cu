/* short_conv_restore: sets states to what they were after `accepted` tokens of an update that
 * filled snapshots, byte for byte (the contract is in runtime_ops.h).
 * Launch     grid (sequences, any), block 256
 * Oracle     tests/ref/conv_ref.h
 * matrix: */
#include "device/common.cuh"
#include "abi/conv.h"

template <class T>
CAIRN_INLINE void copy_rows(const short_conv_restore_params &p, int s, int slot, int accepted) {
    const int64_t count = p.rows * p.row_bytes / (int64_t)sizeof(T);
    const int64_t row = (int64_t)s * (p.rows + p.snapshot_tokens) + accepted;
    const T *from = (const T *)((const uint8_t *)p.snapshots + row * p.row_bytes);
    T *to = (T *)((uint8_t *)p.state + (int64_t)slot * p.rows * p.row_bytes);
    const int64_t step = (int64_t)grid_blocks_y() * block_threads();
    for (int64_t i = (int64_t)block_id_y() * block_threads() + thread_id(); i < count; i += step)
        to[i] = load_constant(from + i);
}

CAIRN_KERNEL(short_conv_restore, 256, 1, short_conv_restore_params) {
    const int s = block_id(), slot = p.state_indices ? p.state_indices[s] : s;
    const int accepted = p.accepted[s];
    const bool reports = block_id_y() == 0 && thread_id() == 0;
    const uint64_t odd = ((uint64_t)p.state | (uint64_t)p.snapshots | (uint64_t)p.row_bytes) % 16;
    if (slot == -1 || (slot >= 0 && slot < p.reserved_slots)) return;
    if (slot < 0 || slot >= p.slots) {
        if (reports) report_error(p.error, CAIRN_FAULT_ID, s, slot);
    } else if (accepted < 0 || accepted > p.snapshot_tokens) {
        if (reports) report_error(p.error, CAIRN_FAULT_LENGTH, s, accepted);
    } else if (!odd) {
        copy_rows<u32x4>(p, s, slot, accepted);
    } else {
        copy_rows<uint16_t>(p, s, slot, accepted);
    }
}
