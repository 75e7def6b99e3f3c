/* attention/paged.cuh: where a row stands in the paged cache, with every id and position checked once. */
#ifndef CAIRN_PAGED_CUH
#define CAIRN_PAGED_CUH

struct paged_row {
    bool valid;
    int position; /* the row's own */
    int sequence; /* row of the page table */
};

/* Thread 0 reports what is out of range; an invalid row is to be skipped. */
CAIRN_INLINE paged_row paged_find(const paged_rows &at, int r) {
    int sequence = at.sequences ? at.sequences[r] : r, position = at.positions[r];
    bool known = sequence >= 0 && sequence < at.sequence_count;
    bool inside = position >= 0 && position / at.page_size < at.max_pages;
    if (thread_id() == 0) {
        if (!known) report_error(at.error, CAIRN_FAULT_ID, r, sequence);
        else if (!inside) report_error(at.error, CAIRN_FAULT_POSITION, r, position);
    }
    return {known && inside, position, sequence};
}

/* Asks for the table's word of logical page c, so that paged_physical will find it near. */
CAIRN_INLINE void paged_physical_soon(const paged_rows &at, const paged_row &row, int c) {
    load_early((const uint32_t *)at.page_table + (int64_t)row.sequence * at.max_pages + c);
}

/* The physical page of logical page c, or -1 when the table holds none that exists. */
CAIRN_INLINE int paged_physical(const paged_rows &at, const paged_row &row, int c) {
    int page = at.page_table[(int64_t)row.sequence * at.max_pages + c];
    return page >= 0 && page < at.pages ? page : -1;
}

#endif
