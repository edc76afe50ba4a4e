/* One call that goes wrong whatever its arguments are; the environment selects it:
 *
 *   FAKE_CUDA_CALL=FAULT@NAME[:GPU][,AFTER]     hang@cuInit, segv@cuMemAlloc:1, hang@cuMemFree,5
 *
 * FAULT: hang, segv, abort, kill (as the kernel does if memory runs out), slow (each call takes 100 ms of
 * real time). NAME: as in cuGetProcAddress. GPU: only while this GPU is current, by CUDA's ordinal. AFTER: the
 * number of calls in this process that succeed first.
 */
#include "double.h"
#include "calls.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All parameters of the calls are integers or pointers, so additional ones do no harm. */
typedef int (*call)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                    uintptr_t, uintptr_t, uintptr_t);

static char kind[16];
static long good;
static int gpu;
static bool retains;
static call real;

static int faulty(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, uintptr_t g,
                  uintptr_t h, uintptr_t i, uintptr_t j, uintptr_t k)
{
    if ((gpu < 0 || gpu == (retains ? (int)b : current_gpu())) && good-- <= 0) {
        while (!strcmp(kind, "hang"))
            pause();
        if (!strcmp(kind, "segv"))
            raise(SIGSEGV);
        if (!strcmp(kind, "abort"))
            abort();
        if (!strcmp(kind, "kill"))
            raise(SIGKILL);
        if (!strcmp(kind, "slow"))
            usleep(100000);
    }
    return real(a, b, c, d, e, f, g, h, i, j, k);
}

/* The function to use for a call: the call itself, unless it is the faulty one. */
void *or_faulty(const char *name, void *function)
{
    const char *words = getenv("FAKE_CUDA_CALL");
    const char *at = words ? strchr(words, '@') : NULL;
    size_t length = at ? strcspn(at + 1, ":,") : 0;
    if (!at || (size_t)(at - words) >= sizeof kind || strlen(name) != length || strncmp(name, at + 1, length))
        return function;
    memcpy(kind, words, (size_t)(at - words));
    kind[at - words] = 0;
    const char *rest = at + 1 + length, *after = strchr(rest, ',');
    gpu = *rest == ':' ? atoi(rest + 1) : -1;
    good = after ? atol(after + 1) : 0;
    retains = !strcmp(name, "cuDevicePrimaryCtxRetain");
    real = (call)(uintptr_t)function;
    return (void *)(uintptr_t)faulty;
}
