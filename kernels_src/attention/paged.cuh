/* attention/paged.cuh: where a row stands in the paged cache, with every id and position checked once. */
#ifndef CAIRN_PAGED_CUH
#define CAIRN_PAGED_CUH

#ifndef CAIRN_PAGES_CSR
#define CAIRN_PAGES_CSR 0 /* 1: the table's rows have any length, by indptr */
#endif

struct paged_row {
    bool valid;
    int position; /* the row's own */
    int sequence; /* row of the page table */
};

/* Where the table's row of a sequence begins. */
CAIRN_INLINE int64_t paged_first(const paged_rows &at, const paged_row &row) {
    if constexpr (CAIRN_PAGES_CSR) return at.indptr[row.sequence];
    return (int64_t)row.sequence * at.max_pages;
}

/* Whether the table has room for that position of the row's sequence. */
CAIRN_INLINE bool paged_holds(const paged_rows &at, const paged_row &row, int64_t position) {
    if constexpr (CAIRN_PAGES_CSR) {
        const int from = at.indptr[row.sequence], to = at.indptr[row.sequence + 1];
        if (from < 0 || to > at.max_pages || from >= to) return false;
        int kept = at.last_page_len ? at.last_page_len[row.sequence] : at.page_size;
        kept = kept < 0 ? 0 : min_of(kept, at.page_size);
        return position < (int64_t)(to - from - 1) * at.page_size + kept;
    }
    return position / at.page_size < at.max_pages;
}

/* Row r as it stands; what is out of range is reported where `tells`. */
CAIRN_INLINE paged_row paged_look(const paged_rows &at, int r, bool tells = true) {
    int sequence = at.sequences ? at.sequences[r] : r, position = at.positions[r];
    bool known = sequence >= 0 && sequence < at.sequence_count;
    bool inside = position >= 0;
    if constexpr (CAIRN_PAGES_CSR)
        inside = inside && known && paged_holds(at, paged_row{known, position, sequence}, position);
    else inside = inside && position / at.page_size < at.max_pages;
    if (tells) {
        if (!known) report_error(at.error, CAIRN_FAULT_ID, r, sequence);
        else if (!inside) report_error(at.error, CAIRN_FAULT_POSITION, r, position);
    }
    return {known && inside, position, sequence};
}

/* For a whole block: thread 0 reports; an invalid row is to be skipped. */
CAIRN_INLINE paged_row paged_find(const paged_rows &at, int r) {
    return paged_look(at, r, thread_id() == 0);
}

/* Asks for the table's word of logical page c, so that paged_physical will find it near. */
CAIRN_INLINE void paged_physical_soon(const paged_rows &at, const paged_row &row, int c) {
    load_early((const uint32_t *)at.page_table + paged_first(at, row) + c);
}

/* The physical page of logical page c, or -1 when the table holds none that exists. */
CAIRN_INLINE int paged_physical(const paged_rows &at, const paged_row &row, int c) {
    int page = at.page_table[paged_first(at, row) + c];
    return page >= 0 && page < at.pages ? page : -1;
}

#endif
