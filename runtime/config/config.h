/* config: the one description of what a runtime does. Its fields stand in gen/schema.lua; the
 * tables generated from there drive all of this room: defaults, checks, dump and the diff of a
 * reload (check.c), and the reader of config files (scan.c, read.c).
 *
 * Owns no memory that outlives a call and no global state: every call may run on any thread. All
 * mistakes are found in one pass and kept in a config_report; a config is handed out whole or
 * not at all. Calls base and os. */

/* What differs between two checked configs: how many hot and cold fields, and their paths, joined
 * by ", " and cut with "..." where there is no more room. */
typedef struct config_change { int hot, cold; char hot_names[256], cold_names[256]; } config_change;

/* The host program's fields are not compared: take them over with config_keep_host first. */
static void config_diff(const cairn_config *old, const cairn_config *fresh, config_change *change);
/* Takes the host program's fields (callbacks, memory, handles) over from the config in force. */
static void config_keep_host(cairn_config *c, const cairn_config *opened);
/* CPU threads of a runtime, 0: one per core; and whether they go after the host program's. */
static int config_threads(const cairn_config *config);
static bool config_is_low(const cairn_config *config);
/* Whether this layer selects pages. */
static bool config_layer_selects(const cairn_config *config, int layer);
/* For calls without a runtime: the failure of the pointer `what` being NULL, its text in
 * `error`. */
static cairn_status config_refuse_null(const char *what, char *error, size_t error_bytes);
