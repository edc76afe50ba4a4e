/* A libnvidia-ml.so.1 of four healthy GPUs in which one call goes wrong; the environment selects it:
 *
 *   FAULTY_NVML=FAULT@FUNCTION[:GPU][,AFTER]
 *   hang@nvmlDeviceGetName:2, segv@nvmlInitWithFlags, 999@nvmlDeviceGetCount_v2, hang@nvmlDeviceGetPowerUsage:0,3
 *
 * FAULT: hang, segv, abort, exit, print (garbage to stdout and stderr, then the answer), a number (NVML's
 * return code), huge (an impossible count or number), garbage (invalid text). FUNCTION is the symbol, GPU the
 * index; without it, the call goes wrong for every GPU. AFTER: for hang, segv, abort and exit, the number of
 * calls that succeed first, in each process.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };
enum { GPUS = 4, NONE = -1 };

typedef struct Gpu { unsigned index; } Gpu;
static Gpu gpus[GPUS] = {{0}, {1}, {2}, {3}};

static char kind[32];

/* Return whether the call is the faulty one; `kind` then holds its fault. */
static int is_faulty(const char *function, int gpu)
{
    const char *words = getenv("FAULTY_NVML");
    const char *at = words ? strchr(words, '@') : NULL;
    if (!at || (size_t)(at - words) >= sizeof kind)
        return 0;
    const char *colon = strchr(at, ':');
    size_t length = strcspn(at + 1, ":,");
    if (strlen(function) != length || strncmp(function, at + 1, length))
        return 0;
    if (colon && gpu != atoi(colon + 1))
        return 0;
    memcpy(kind, words, (size_t)(at - words));
    kind[at - words] = 0;
    return 1;
}

static int has_fault(const char *function, int gpu, const char *name)
{
    return is_faulty(function, gpu) && !strcmp(kind, name);
}

/* Perform the fault of a call. Returns the call's code, or SUCCESS if the call continues. */
static int begin(const char *function, int gpu)
{
    static long calls;
    if (!is_faulty(function, gpu))
        return SUCCESS;
    const char *after = strchr(getenv("FAULTY_NVML"), ',');
    if (after && calls++ < atol(after + 1))
        return SUCCESS;
    if (!strcmp(kind, "hang"))
        for (;;)
            pause();
    if (!strcmp(kind, "segv"))
        raise(SIGSEGV);
    if (!strcmp(kind, "abort"))
        abort();
    if (!strcmp(kind, "exit"))
        exit(3);
    if (!strcmp(kind, "print")) {
        printf("garbage\n\033[31mNVRM: garbage");
        fflush(stdout);
        fprintf(stderr, "garbage from the library\n");
    }
    return atoi(kind);
}

#define BEGIN(gpu)                           \
    do {                                     \
        int code = begin(__func__, (gpu));   \
        if (code)                            \
            return code;                     \
    } while (0)
#define HUGE_OR(gpu, value) (has_fault(__func__, (gpu), "huge") ? 0x7fffffffu : (value))

static int put_text(const char *function, int gpu, char *text, unsigned size, const char *value)
{
    if (has_fault(function, gpu, "garbage"))
        memset(text, 0xfe, size); /* not UTF-8, and not terminated */
    else if (has_fault(function, gpu, "escape"))
        snprintf(text, size, "\033[2J\033]0;x\007name\r\n| <b>\"`$(id)");
    else
        snprintf(text, size, "%s", value);
    return SUCCESS;
}

EXPORT int nvmlInitWithFlags(unsigned flags) { (void)flags; BEGIN(NONE); return SUCCESS; }
EXPORT int nvmlShutdown(void) { BEGIN(NONE); return SUCCESS; }
EXPORT const char *nvmlErrorString(int code) { (void)code; return "an error"; }

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    BEGIN(NONE);
    return put_text(__func__, NONE, text, size, "550.163.01");
}

EXPORT int nvmlSystemGetNVMLVersion(char *text, unsigned size)
{
    BEGIN(NONE);
    return put_text(__func__, NONE, text, size, "12.550.163.01");
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    BEGIN(NONE);
    *version = (int)HUGE_OR(NONE, 12040u);
    return SUCCESS;
}

EXPORT int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned size)
{
    (void)pid;
    BEGIN(NONE);
    return put_text(__func__, NONE, text, size, "/usr/bin/python3");
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    BEGIN(NONE);
    *count = has_fault(__func__, NONE, "twice") ? 2 * GPUS : HUGE_OR(NONE, GPUS);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu)
{
    BEGIN((int)index);
    if (index >= GPUS && !has_fault("nvmlDeviceGetCount_v2", NONE, "twice"))
        return INVALID_ARGUMENT;
    *gpu = &gpus[index % GPUS];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned size)
{
    BEGIN((int)gpu->index);
    return put_text(__func__, (int)gpu->index, text, size, "NVIDIA Test-100");
}

EXPORT int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned size)
{
    char uuid[80];
    BEGIN((int)gpu->index);
    snprintf(uuid, sizeof uuid, "GPU-00000004-0000-4000-8000-%012x", gpu->index);
    return put_text(__func__, (int)gpu->index, text, size, uuid);
}

typedef struct PciInfo {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} PciInfo;

EXPORT int nvmlDeviceGetPciInfo_v3(Gpu *gpu, PciInfo *info)
{
    BEGIN((int)gpu->index);
    memset(info, 0, sizeof *info);
    info->bus = 0x44 + gpu->index;
    info->device_id = 0x20b010de;
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus);
    snprintf(info->id, sizeof info->id, "00000000:%02X:00.0", info->bus);
    if (has_fault(__func__, (int)gpu->index, "garbage"))
        memset(info, 0xfe, sizeof *info);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetClockInfo(Gpu *gpu, unsigned clock, unsigned *mhz)
{
    static const unsigned clocks[] = {1305, 1305, 1215, 1185};
    BEGIN((int)gpu->index);
    if (clock > 3)
        return INVALID_ARGUMENT;
    *mhz = HUGE_OR((int)gpu->index, clocks[clock]);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *mw)
{
    BEGIN((int)gpu->index);
    *mw = HUGE_OR((int)gpu->index, 61500u);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(Gpu *gpu, unsigned sensor, unsigned *celsius)
{
    (void)sensor;
    BEGIN((int)gpu->index);
    *celsius = HUGE_OR((int)gpu->index, 31u);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(Gpu *gpu, uint64_t *total_free_used)
{
    BEGIN((int)gpu->index);
    total_free_used[0] = (uint64_t)40 << 30;
    total_free_used[1] = (uint64_t)39 << 30;
    total_free_used[2] = (uint64_t)1 << 30;
    if (has_fault(__func__, (int)gpu->index, "huge"))
        memset(total_free_used, 0xff, 3 * sizeof(uint64_t));
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(Gpu *gpu, unsigned *rates)
{
    BEGIN((int)gpu->index);
    rates[0] = HUGE_OR((int)gpu->index, 0u);
    rates[1] = 0;
    return SUCCESS;
}

typedef struct Process {
    unsigned pid;
    uint64_t bytes;
    unsigned gpu_instance, compute_instance;
} Process;

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *processes)
{
    BEGIN((int)gpu->index);
    unsigned space = *count;
    if (has_fault(__func__, (int)gpu->index, "huge")) {
        *count = 200 * 1000 * 1000;
        return space ? SUCCESS : INSUFFICIENT_SIZE;
    }
    *count = 1;
    if (!space || !processes)
        return INSUFFICIENT_SIZE;
    processes[0] = (Process){.pid = 4001, .bytes = (uint64_t)1 << 30};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *active)
{
    (void)link; /* like some drivers, it answers for links that do not exist */
    BEGIN((int)gpu->index);
    *active = 0;
    return SUCCESS;
}

typedef struct Field {
    uint32_t id, scope;
    int64_t time, latency;
    unsigned type;
    int code;
    union { unsigned ui; uint64_t ull; } value;
} Field;

EXPORT int nvmlDeviceGetFieldValues(Gpu *gpu, int count, Field *fields)
{
    BEGIN((int)gpu->index);
    for (int place = 0; place < count; place++) {
        fields[place].code = fields[place].id == 91 ? SUCCESS : NOT_SUPPORTED;
        fields[place].type = has_fault(__func__, (int)gpu->index, "garbage") ? 77 : 1;
        fields[place].value.ull = HUGE_OR((int)gpu->index, 0u);
    }
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(Gpu *a, Gpu *b, unsigned *level)
{
    (void)b;
    BEGIN((int)a->index);
    *level = HUGE_OR((int)a->index, 10u);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetP2PStatus(Gpu *a, Gpu *b, unsigned what, unsigned *status)
{
    (void)b;
    (void)what;
    BEGIN((int)a->index);
    *status = HUGE_OR((int)a->index, 0u);
    return SUCCESS;
}
