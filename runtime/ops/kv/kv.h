/* kv: the ops on a paged KV cache that write it: kv_append (append.c) and kv_collate
 * (collate.c), each its entry, the CPU's half and the launch. Other rooms call the public
 * entries alone. */
