-- Writes runtime/generated/driver.h: the part of the binary interface of the NVIDIA driver (libcuda)
-- and of NVRTC that Cairn uses, and a table of their functions that runtime/driver/driver.c fills at run
-- time. No CUDA header is needed to build. tests/driver/driver_abi_test.c compares it with the real ones.
--
-- To use another function, add its prototype below. `-> NAME` is the symbol where it differs from
-- the field; lines under `optional` may be absent from a library and then answer "not supported".

local types = [[
typedef int CUresult; /* an int-sized enum there */
typedef int nvrtcResult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUlinkState_st *CUlinkState;
typedef struct _nvrtcProgram *nvrtcProgram;
typedef int CUdevice_attribute;
typedef int CUfunction_attribute;
typedef int CUpointer_attribute;
typedef int CUjit_option;
typedef int CUjitInputType;
typedef int CUstreamCaptureMode;
typedef int CUstreamCaptureStatus;
typedef int CUlimit;
typedef int CUdriverProcAddressQueryResult;
typedef unsigned long long cuuint64_t;
typedef struct CUuuid { char bytes[16]; } CUuuid;
typedef void (*CUhostFn)(void *user);

typedef union CUlaunchAttributeValue {
    char pad[64];
    struct { unsigned int x, y, z; } clusterDim;
    int programmaticStreamSerializationAllowed;
    int priority;
} CUlaunchAttributeValue;

typedef struct CUlaunchAttribute {
    int id;
    char pad[4];
    CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

typedef struct CUgraphExecUpdateResultInfo {
    int result;
    CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;
]]

local constants = [[
CUDA_SUCCESS 0
CUDA_ERROR_INVALID_VALUE 1
CUDA_ERROR_OUT_OF_MEMORY 2
CUDA_ERROR_NOT_INITIALIZED 3
CUDA_ERROR_DEINITIALIZED 4
CUDA_ERROR_STUB_LIBRARY 34
CUDA_ERROR_NO_DEVICE 100
CUDA_ERROR_INVALID_DEVICE 101
CUDA_ERROR_INVALID_IMAGE 200
CUDA_ERROR_INVALID_CONTEXT 201
CUDA_ERROR_NO_BINARY_FOR_GPU 209
CUDA_ERROR_INVALID_PTX 218
CUDA_ERROR_JIT_COMPILER_NOT_FOUND 221
CUDA_ERROR_UNSUPPORTED_PTX_VERSION 222
CUDA_ERROR_INVALID_SOURCE 300
CUDA_ERROR_FILE_NOT_FOUND 301
CUDA_ERROR_INVALID_HANDLE 400
CUDA_ERROR_NOT_FOUND 500
CUDA_ERROR_NOT_READY 600
CUDA_ERROR_ILLEGAL_ADDRESS 700
CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES 701
CUDA_ERROR_LAUNCH_TIMEOUT 702
CUDA_ERROR_LAUNCH_FAILED 719
CUDA_ERROR_NOT_PERMITTED 800
CUDA_ERROR_NOT_SUPPORTED 801
CUDA_ERROR_SYSTEM_NOT_READY 802
CUDA_ERROR_SYSTEM_DRIVER_MISMATCH 803
CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE 804
CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED 900
CUDA_ERROR_STREAM_CAPTURE_INVALIDATED 901
CUDA_ERROR_STREAM_CAPTURE_IMPLICIT 906
CUDA_ERROR_UNKNOWN 999
CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK 1
CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK 8
CU_DEVICE_ATTRIBUTE_WARP_SIZE 10
CU_DEVICE_ATTRIBUTE_CLOCK_RATE 13
CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT 16
CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT 17
CU_DEVICE_ATTRIBUTE_INTEGRATED 18
CU_DEVICE_ATTRIBUTE_COMPUTE_MODE 20
CU_DEVICE_ATTRIBUTE_PCI_BUS_ID 33
CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID 34
CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE 36
CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH 37
CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE 38
CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING 41
CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID 50
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR 75
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR 76
CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR 81
CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR 82
CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN 97
CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH 120
CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK 0
CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES 1
CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES 2
CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES 3
CU_FUNC_ATTRIBUTE_NUM_REGS 4
CU_FUNC_ATTRIBUTE_BINARY_VERSION 6
CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES 8
CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT 9
CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED 14
CU_POINTER_ATTRIBUTE_CONTEXT 1
CU_POINTER_ATTRIBUTE_MEMORY_TYPE 2
CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL 9
CU_JIT_INFO_LOG_BUFFER 3
CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES 4
CU_JIT_ERROR_LOG_BUFFER 5
CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES 6
CU_JIT_INPUT_PTX 1
CU_CTX_SCHED_AUTO 0
CU_CTX_SCHED_SPIN 1
CU_CTX_SCHED_YIELD 2
CU_CTX_SCHED_BLOCKING_SYNC 4
CU_STREAM_NON_BLOCKING 1
CU_EVENT_DEFAULT 0
CU_EVENT_BLOCKING_SYNC 1
CU_EVENT_DISABLE_TIMING 2
CU_MEMHOSTALLOC_PORTABLE 1
CU_MEMHOSTALLOC_DEVICEMAP 2
CU_MEMHOSTALLOC_WRITECOMBINED 4
CU_STREAM_CAPTURE_STATUS_NONE 0
CU_STREAM_CAPTURE_STATUS_ACTIVE 1
CU_STREAM_CAPTURE_STATUS_INVALIDATED 2
CU_STREAM_CAPTURE_MODE_GLOBAL 0
CU_STREAM_CAPTURE_MODE_THREAD_LOCAL 1
CU_STREAM_CAPTURE_MODE_RELAXED 2
CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION 4
CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION 6
CU_LAUNCH_ATTRIBUTE_PRIORITY 8
NVRTC_SUCCESS 0
NVRTC_ERROR_OUT_OF_MEMORY 1
NVRTC_ERROR_PROGRAM_CREATION_FAILURE 2
NVRTC_ERROR_INVALID_INPUT 3
NVRTC_ERROR_INVALID_PROGRAM 4
NVRTC_ERROR_INVALID_OPTION 5
NVRTC_ERROR_COMPILATION 6
NVRTC_ERROR_BUILTIN_OPERATION_FAILURE 7
NVRTC_ERROR_INTERNAL_ERROR 11
NVRTC_ERROR_CANCELLED 16
]]

local cuda = [[
CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetErrorName(CUresult result, const char **name);
CUresult cuGetErrorString(CUresult result, const char **text);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetName(char *name, int bytes, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device);
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device); -> cuDeviceTotalMem_v2
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device); -> cuDeviceGetUuid_v2
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device); -> cuDevicePrimaryCtxRelease_v2
CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device); -> cuCtxCreate_v2
CUresult cuCtxDestroy(CUcontext context); -> cuCtxDestroy_v2
CUresult cuCtxPushCurrent(CUcontext context); -> cuCtxPushCurrent_v2
CUresult cuCtxPopCurrent(CUcontext *context); -> cuCtxPopCurrent_v2
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxSynchronize(void);
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes); -> cuMemAlloc_v2
CUresult cuMemFree(CUdeviceptr address); -> cuMemFree_v2
CUresult cuMemGetInfo(size_t *free, size_t *total); -> cuMemGetInfo_v2
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes); -> cuMemcpyHtoD_v2
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes); -> cuMemcpyDtoH_v2
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes); -> cuMemcpyDtoD_v2
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream); -> cuMemcpyHtoDAsync_v2
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream); -> cuMemcpyDtoHAsync_v2
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream); -> cuMemcpyDtoDAsync_v2
CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count); -> cuMemsetD8_v2
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream);
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream);
CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags);
CUresult cuMemFreeHost(void *address);
CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned int flags); -> cuMemHostGetDevicePointer_v2
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority);
CUresult cuStreamDestroy(CUstream stream); -> cuStreamDestroy_v2
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode); -> cuStreamBeginCapture_v2
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
CUresult cuEventQuery(CUevent event);
CUresult cuEventDestroy(CUevent event); -> cuEventDestroy_v2
CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags); -> cuGraphInstantiateWithFlags
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info); -> cuGraphExecUpdate_v2
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuModuleGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name); -> cuModuleGetGlobal_v2
CUresult cuLinkCreate(unsigned int count, CUjit_option *options, void **values, CUlinkState *state); -> cuLinkCreate_v2
CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name, unsigned int count, CUjit_option *options, void **values); -> cuLinkAddData_v2
CUresult cuLinkComplete(CUlinkState state, void **cubin, size_t *bytes);
CUresult cuLinkDestroy(CUlinkState state);
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function);
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value);
CUresult cuLaunchKernel(CUfunction function, unsigned int gridX, unsigned int gridY, unsigned int gridZ, unsigned int blockX, unsigned int blockY, unsigned int blockZ, unsigned int sharedBytes, CUstream stream, void **parameters, void **extra);
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t sharedBytes);
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config);
optional
CUresult cuFuncLoad(CUfunction function);
CUresult cuGetProcAddress(const char *symbol, void **address, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *found); -> cuGetProcAddress_v2
]]

local nvrtc = [[
nvrtcResult nvrtcVersion(int *major, int *minor);
const char *nvrtcGetErrorString(nvrtcResult result);
nvrtcResult nvrtcGetNumSupportedArchs(int *count);
nvrtcResult nvrtcGetSupportedArchs(int *archs);
nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int headerCount, const char *const *headers, const char *const *includeNames);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program);
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin);
nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *bytes);
nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *ptx);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log);
nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char *expression);
nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char *expression, const char **name);
optional
nvrtcResult nvrtcSetFlowCallback(nvrtcProgram program, driver_flow_callback callback, void *payload);
]]

local function parse(text)
  local functions, optional = {}, false
  for line in text:gmatch "[^\n]+" do
    if line == "optional" then optional = true
    else
      local result, name, arguments, rest = line:match "^([%w%s]-[%s%*]+)(%w+)%((.*)%);%s*(.*)$"
      assert(name, "cannot read: " .. line)
      local symbol = rest:match "^%->%s*([%w_]+)$"
      assert(symbol or rest == "", "cannot read: " .. line)
      functions[#functions + 1] = { result = result:gsub("%s+$", ""), name = name,
        arguments = arguments, symbol = symbol or name, optional = optional }
    end
  end
  return functions
end

local lines = {}
local function put(format, ...) lines[#lines + 1] = string.format(format, ...) .. "\n" end

-- Breaks a declaration at commas so that no line is longer than 100 columns.
local function put_wrapped(text, indent)
  while #text > 100 do
    local cut = text:sub(1, 100):match ".*(),%s"
    assert(cut, "cannot break: " .. text)
    put("%s", text:sub(1, cut))
    text = indent .. text:sub(cut + 2)
  end
  put("%s", text)
end

local function space(result) return result:sub(-1) == "*" and result or result .. " " end

local function put_fields(functions)
  for _, f in ipairs(functions) do
    put_wrapped(("    %s(*%s)(%s);"):format(space(f.result), f.name, f.arguments), "        ")
  end
end

local function put_stub(f, answer)
  put_wrapped(("static %sdriver_absent_%s(%s) {"):format(space(f.result), f.name, f.arguments),
    "        ")
  for argument in f.arguments:gmatch "[^,]+" do put("    (void)%s;", argument:match "(%w+)%s*$") end
  put("    return %s;\n}", answer)
end

local function put_rows(name, functions, answer)
  for _, f in ipairs(functions) do if f.optional then put_stub(f, answer) end end
  put("\nstatic const driver_row %s[] = {", name)
  for _, f in ipairs(functions) do
    put_wrapped(('    {"%s", offsetof(driver_calls, %s), %s},'):format(f.symbol, f.name,
      f.optional and "(os_function)driver_absent_" .. f.name or "NULL"), "     ")
  end
  put("};\n")
end

local cuda_functions, nvrtc_functions = parse(cuda), parse(nvrtc)

put [[
/* Generated by gen/driver.lua; edit there. The binary interface of libcuda and NVRTC, as far as
 * Cairn uses it, in the driver's own names: a file that includes cuda.h cannot hold this too. */
#ifndef DRV_TYPES_FROM_CUDA]]
put("%s", types)
put "enum {"
for name, value in constants:gmatch "([%w_]+) (%d+)" do put("    %s = %s,", name, value) end
put [[
};
#endif

typedef int (*driver_flow_callback)(void *payload, void *reserved); /* returns 1 to cancel */

/* The libraries found, where, and every function by its name in cuda.h and nvrtc.h. All function
 * fields are callable after driver_open (driver_open_nvrtc); tests replace them. */
typedef struct driver_calls {
    void *cuda, *nvrtc, *builtins; /* libraries; NULL: not open */
    int cuda_version;              /* of the driver: 1000 * major + 10 * minor */
    int nvrtc_version;             /* the same; 0: not open */
    int device_count;
    int nvrtc_opened;              /* how often NVRTC has been opened */
    char cuda_path[1024], nvrtc_path[1024];
    char tried[8192]; /* one line for every place looked at: "PLACE: what was wrong" */
    size_t tried_bytes;]]
put_fields(cuda_functions)
put_fields(nvrtc_functions)
put [[
} driver_calls;

typedef struct driver_row {
    const char *symbol;
    size_t offset;      /* of the field in driver_calls */
    os_function absent; /* stands in for an optional function; NULL: required */
} driver_row;
]]
put_rows("driver_cuda_rows", cuda_functions, "CUDA_ERROR_NOT_SUPPORTED")
put_rows("driver_nvrtc_rows", nvrtc_functions, "NVRTC_ERROR_INVALID_INPUT")

put "/* For checks against the real headers: X(field, symbol) and X(name, value). */"
put "#define DRV_FUNCTIONS(X) \\"
local names = {}
for _, list in ipairs { cuda_functions, nvrtc_functions } do
  for _, f in ipairs(list) do
    names[#names + 1] = ("    X(%s, %s)"):format(f.name, f.symbol)
  end
end
put("%s", table.concat(names, " \\\n"))
put "#define DRV_CONSTANTS(X) \\"
local values = {}
for name, value in constants:gmatch "([%w_]+) (%d+)" do
  values[#values + 1] = ("    X(%s, %s)"):format(name, value)
end
put("%s", table.concat(values, " \\\n"))

return function(out) out.file("runtime/generated/driver.h", table.concat(lines)) end
