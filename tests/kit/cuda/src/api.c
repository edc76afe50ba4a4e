/* The calls about devices, contexts and memory, under the names that the library exports. */
#include "double.h"
#include "calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread struct context *current;
static struct context contexts[MAX_GPUS];
static bool ready;

int enter(void)
{
    pthread_mutex_lock(&lock);
    return ready ? OK : NOT_INITIALIZED;
}

int leave(int code)
{
    pthread_mutex_unlock(&lock);
    return code;
}

int current_gpu(void)
{
    return current ? current->gpu : -1;
}

/* The GPU of the thread's context, or -1 with the error code. */
int enter_context(int *gpu)
{
    int code = enter();
    *gpu = code || !current ? -1 : current->gpu;
    if (code)
        return code;
    return *gpu < 0 ? INVALID_CONTEXT : gpu_fails(*gpu);
}

int gpu_of_context(const struct context *context)
{
    return context >= contexts && context < contexts + box.gpus ? (int)(context - contexts) : -1;
}

static int enter_device(int device)
{
    int code = enter();
    return code ? code : device < 0 || device >= box.gpus ? INVALID_DEVICE : OK;
}

CALL cuInit(unsigned flags)
{
    pthread_mutex_lock(&lock);
    if (!ready && read_box())
        return leave(304); /* CUDA_ERROR_OPERATING_SYSTEM */
    if (flags || box.init_code || !box.gpus)
        return leave(flags ? INVALID_VALUE : box.init_code ? box.init_code : 100);
    for (int gpu = 0; gpu < box.gpus; gpu++)
        contexts[gpu].gpu = gpu;
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    box.blocking = blocking && !strcmp(blocking, "1");
    ready = true;
    return leave(OK);
}

CALL cuDriverGetVersion(int *version)
{
    pthread_mutex_lock(&lock);
    if (!box.read && read_box())
        return leave(304);
    *version = box.driver;
    return leave(OK);
}

CALL cuDeviceGetCount(int *count)
{
    int code = enter();
    *count = code ? 0 : box.gpus;
    return leave(code);
}

CALL cuDeviceGet(int *device, int ordinal)
{
    int code = enter_device(ordinal);
    *device = ordinal;
    return leave(code);
}

CALL cuDeviceGetName(char *name, int length, int device)
{
    int code = enter_device(device);
    if (!code && length > 0)
        snprintf(name, (size_t)length, "%s", box.gpu[device].name);
    return leave(code);
}

CALL cuDeviceGetPCIBusId(char *address, int length, int device)
{
    int code = enter_device(device);
    if (!code && length < 13)
        code = INVALID_VALUE;
    if (!code)
        snprintf(address, (size_t)length, "%s", box.gpu[device].address);
    return leave(code);
}

CALL cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    int code = enter_device(device);
    if (!code)
        *bytes = box.gpu[device].memory;
    return leave(code);
}

/* CUdevice_attribute: the attributes that a program may query before it copies. */
static int attribute(const struct gpu *gpu, int which, int *value)
{
    unsigned domain = 0, bus = 0, device = 0;
    sscanf(gpu->address, "%x:%x:%x", &domain, &bus, &device);
    const int answers[][2] = {
        {1, 1024}, {10, 32}, {16, 40}, {18, 0}, {19, 1}, {20, 0}, {33, (int)bus}, {34, (int)device},
        {38, (int)gpu->l2}, {40, 2}, {41, 1}, {50, (int)domain}, {75, gpu->major}, {76, gpu->minor},
        {92, 1}, {93, 1}, {94, 1}, {115, 0}, {122, 1}, {123, 1}};
    for (size_t index = 0; index < sizeof answers / sizeof *answers; index++)
        if (answers[index][0] == which) {
            *value = answers[index][1];
            return OK;
        }
    return INVALID_VALUE;
}

CALL cuDeviceGetAttribute(int *value, int which, int device)
{
    int code = enter_device(device);
    return leave(code ? code : attribute(&box.gpu[device], which, value));
}

CALL cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    int code = enter_device(device);
    if (!code && (peer < 0 || peer >= box.gpus))
        code = INVALID_DEVICE;
    if (!code)
        *can = box.can_peer[device][peer];
    return leave(code);
}

CALL cuDevicePrimaryCtxRetain(struct context **context, int device)
{
    int code = enter_device(device);
    code = code ? code : gpu_fails(device);
    if (!code) {
        contexts[device].retained++;
        *context = &contexts[device];
    }
    return leave(code);
}

CALL cuDevicePrimaryCtxRelease_v2(int device)
{
    int code = enter_device(device);
    if (!code && contexts[device].retained == 0)
        code = INVALID_CONTEXT;
    if (!code)
        contexts[device].retained--;
    return leave(code);
}

CALL cuCtxSetCurrent(struct context *context)
{
    int code = enter();
    if (!code && context && gpu_of_context(context) < 0)
        code = INVALID_CONTEXT;
    if (!code)
        current = context;
    return leave(code);
}

CALL cuCtxGetCurrent(struct context **context)
{
    int code = enter();
    *context = code ? NULL : current;
    return leave(code);
}

CALL cuCtxGetDevice(int *device)
{
    int code = enter_context(device);
    return leave(code);
}

CALL cuCtxSynchronize(void)
{
    int gpu, code = enter_context(&gpu);
    code = code ? code : wait_for_gpu(gpu);
    return leave(code ? code : gpu_fails(gpu));
}

CALL cuCtxEnablePeerAccess(struct context *peer, unsigned flags)
{
    int gpu, code = enter_context(&gpu), other = gpu_of_context(peer);
    if (!code)
        code = other < 0 || flags ? INVALID_VALUE : gpu_fails(other);
    if (!code && !box.can_peer[gpu][other])
        code = PEER_UNSUPPORTED;
    if (!code && box.gpu[gpu].peer_open[other])
        code = PEER_ALREADY_ENABLED;
    int open = 0;
    for (int index = 0; !code && index < box.gpus; index++)
        open += box.gpu[gpu].peer_open[index];
    if (!code && box.peer_limit && open >= box.peer_limit)
        code = TOO_MANY_PEERS;
    if (!code) {
        box.gpu[gpu].peer_open[other] = true;
        pass(PEER_S);
    }
    return leave(code);
}

CALL cuCtxDisablePeerAccess(struct context *peer)
{
    int gpu, code = enter_context(&gpu), other = gpu_of_context(peer);
    if (!code && (other < 0 || !box.gpu[gpu].peer_open[other]))
        code = PEER_NOT_ENABLED;
    if (!code) {
        box.gpu[gpu].peer_open[other] = false;
        pass(PEER_S);
    }
    return leave(code);
}

CALL cuMemGetInfo_v2(size_t *left, size_t *total)
{
    int gpu, code = enter_context(&gpu);
    if (!code) {
        *total = box.gpu[gpu].memory;
        *left = box.gpu[gpu].memory - taken(gpu);
    }
    return leave(code);
}

CALL cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    int gpu, code = enter_context(&gpu);
    return leave(code ? code : place_gpu(gpu, bytes, address));
}

CALL cuMemFree_v2(uint64_t address)
{
    int gpu, code = enter_context(&gpu);
    settle(all_idle, NULL);
    int freed = address ? unplace(address, false, !all_idle(NULL)) : OK;
    return leave(code ? code : freed);
}

CALL cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    int gpu, code = enter_context(&gpu);
    (void)flags;
    return leave(code ? code : place_host(bytes, address));
}

CALL cuMemFreeHost(void *address)
{
    int code = enter();
    settle(all_idle, NULL);
    return leave(code ? code : unplace((uint64_t)(uintptr_t)address, true, !all_idle(NULL)));
}

CALL cuMemHostGetDevicePointer_v2(uint64_t *address, void *host, unsigned flags)
{
    int gpu, code = enter_context(&gpu);
    struct place place = place_of((uint64_t)(uintptr_t)host);
    *address = (uint64_t)(uintptr_t)host;
    return leave(code ? code : !place.known || place.gpu >= 0 || flags ? INVALID_VALUE : OK);
}

CALL cuGetErrorName(int code, const char **name)
{
    *name = error_name(code);
    return *name ? OK : INVALID_VALUE;
}

CALL cuGetErrorString(int code, const char **says)
{
    *says = error_says(code);
    return *says ? OK : INVALID_VALUE;
}
