/* Names of the result codes (cuda.h, CUresult) and sentences about them, and the calls by name. */
#include "double.h"
#include "calls.h"

#include <stdio.h>
#include <string.h>

static const struct {
    int code;
    const char *name, *says;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int found(int code)
{
    for (size_t index = 0; index < sizeof errors / sizeof *errors; index++)
        if (errors[index].code == code)
            return (int)index;
    return -1;
}

const char *error_name(int code)
{
    return found(code) < 0 ? NULL : errors[found(code)].name;
}

const char *error_says(int code)
{
    return found(code) < 0 ? NULL : errors[found(code)].says;
}

/* The name that bindings query, the CUDA version of its last change, and the exported symbol. */
#define SYMBOLS(X) \
    X("cuInit", 2000, cuInit) \
    X("cuDriverGetVersion", 2020, cuDriverGetVersion) \
    X("cuGetErrorName", 6000, cuGetErrorName) \
    X("cuGetErrorString", 6000, cuGetErrorString) \
    X("cuDeviceGetCount", 2000, cuDeviceGetCount) \
    X("cuDeviceGet", 2000, cuDeviceGet) \
    X("cuDeviceGetName", 2000, cuDeviceGetName) \
    X("cuDeviceGetPCIBusId", 4010, cuDeviceGetPCIBusId) \
    X("cuDeviceGetAttribute", 2000, cuDeviceGetAttribute) \
    X("cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2) \
    X("cuDeviceCanAccessPeer", 4000, cuDeviceCanAccessPeer) \
    X("cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain) \
    X("cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2) \
    X("cuCtxSetCurrent", 4000, cuCtxSetCurrent) \
    X("cuCtxGetCurrent", 4000, cuCtxGetCurrent) \
    X("cuCtxGetDevice", 2000, cuCtxGetDevice) \
    X("cuCtxSynchronize", 2000, cuCtxSynchronize) \
    X("cuCtxEnablePeerAccess", 4000, cuCtxEnablePeerAccess) \
    X("cuCtxDisablePeerAccess", 4000, cuCtxDisablePeerAccess) \
    X("cuMemGetInfo", 3020, cuMemGetInfo_v2) \
    X("cuMemAlloc", 3020, cuMemAlloc_v2) \
    X("cuMemFree", 3020, cuMemFree_v2) \
    X("cuMemHostAlloc", 2020, cuMemHostAlloc) \
    X("cuMemFreeHost", 2000, cuMemFreeHost) \
    X("cuMemHostGetDevicePointer", 3020, cuMemHostGetDevicePointer_v2) \
    X("cuMemcpyHtoDAsync", 3020, cuMemcpyHtoDAsync_v2) \
    X("cuMemcpyDtoHAsync", 3020, cuMemcpyDtoHAsync_v2) \
    X("cuMemcpyDtoDAsync", 3020, cuMemcpyDtoDAsync_v2) \
    X("cuMemcpyPeerAsync", 4000, cuMemcpyPeerAsync) \
    X("cuMemsetD8Async", 3020, cuMemsetD8Async) \
    X("cuMemsetD32Async", 3020, cuMemsetD32Async) \
    X("cuStreamCreate", 2000, cuStreamCreate) \
    X("cuStreamDestroy", 4000, cuStreamDestroy_v2) \
    X("cuStreamQuery", 2000, cuStreamQuery) \
    X("cuStreamSynchronize", 2000, cuStreamSynchronize) \
    X("cuStreamWaitEvent", 3020, cuStreamWaitEvent) \
    X("cuStreamWaitValue32", 11070, cuStreamWaitValue32_v2) \
    X("cuEventCreate", 2000, cuEventCreate) \
    X("cuEventDestroy", 4000, cuEventDestroy_v2) \
    X("cuEventRecord", 2000, cuEventRecord) \
    X("cuEventQuery", 2000, cuEventQuery) \
    X("cuEventSynchronize", 2000, cuEventSynchronize) \
    X("cuEventElapsedTime", 2000, cuEventElapsedTime) \
    X("cuModuleLoadData", 2000, cuModuleLoadData) \
    X("cuModuleUnload", 2000, cuModuleUnload) \
    X("cuModuleGetFunction", 2000, cuModuleGetFunction) \
    X("cuLaunchKernel", 4000, cuLaunchKernel)

#define DECLARED(name, since, symbol) extern int symbol();
SYMBOLS(DECLARED)

CALL cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

#define ENTRY(name, since, symbol) {name, since, (int (*)())symbol},
static const struct {
    const char *name;
    int since;
    int (*function)();
} calls[] = {SYMBOLS(ENTRY)};

CALL cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    char wanted[128];
    (void)flags;
    *function = NULL;
    if (status)
        *status = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
    if (!strncmp(name, "cuGetProcAddress", 16))
        *function = (void *)(uintptr_t)cuGetProcAddress_v2;
    snprintf(wanted, sizeof wanted, " %s ", name);
    pthread_mutex_lock(&lock);
    bool lacking = read_box() || strstr(box.lacks, wanted) != NULL;
    bool newer = version > box.driver; /* a driver does not know symbols of a later version */
    pthread_mutex_unlock(&lock);
    if (newer)
        return INVALID_VALUE;
    for (size_t index = 0; !lacking && index < sizeof calls / sizeof *calls; index++)
        if (!strcmp(calls[index].name, name) && version >= calls[index].since)
            *function = or_faulty(name, (void *)(uintptr_t)calls[index].function);
    if (*function && status)
        *status = 0;
    return *function ? OK : NOT_FOUND;
}
