/* driver: finds libcuda and NVRTC at run time, fills the table of their functions, and turns their
 * results into statuses. Owns the two libraries; calls os.
 *
 * libcuda is opened with the runtime; NVRTC when a kernel must be compiled, or is going to be. Every place looked
 * at is written down in drv.tried, for error messages and `cairn info`. A function that an older
 * library lacks is a stub that answers "not supported", never a null pointer. The table itself,
 * driver_calls, is generated (gen/driver.lua). */

/* Fills `out` from the driver at `path`; NULL: CAIRN_CUDA_PATH, else the system's. On failure
 * nothing is open, but out->tried says what was tried. */
static cairn_status driver_open(base *b, const char *path, driver_calls *out);
/* Closes the driver's library; the record of places is kept. */
static void driver_close(driver_calls *d);

/* Opens NVRTC, unless it is open. `path`: a file or a folder; NULL: CAIRN_NVRTC_PATH, else the
 * search. `d` needs no driver; where there is one, its version steers the choice.
 * [blocks: the first time, some 5 to 200 ms] */
static cairn_status driver_open_nvrtc(base *b, const char *path, driver_calls *d);

/* The copy of NVRTC that NVIDIA ships beside it under another name: the same code, with locks of its own. `out`
 * becomes `d` with that copy's functions; false: there is none, and nothing is open. [blocks: 5 to 200 ms] */
static bool driver_open_twin(const driver_calls *d, driver_calls *out);
/* Closes it, or the first. */
static void driver_close_nvrtc(driver_calls *d);

/* What a driver's result is as a status. */
static cairn_status driver_status(CUresult result);
/* `call` is the driver's function, with its object where that helps: "cuMemAlloc(KV cache)". */
static cairn_status driver_fail(base *b, const driver_calls *d, CUresult result, const char *call);
/* The same of an NVRTC call. */
static cairn_status driver_nvrtc_fail(base *b, const driver_calls *d, nvrtcResult result,
                                      const char *call);
