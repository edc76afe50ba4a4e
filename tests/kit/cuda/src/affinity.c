/* On which NUMA node a thread is.
 *
 * The machine that is imitated has other CPUs than the one that imitates it. Where the library is preloaded
 * (LD_PRELOAD), its sched_setaffinity accepts the CPUs of the scenario and remembers them; where it is not,
 * what the kernel reports of the thread counts. FAKE_CUDA_NODE overrides both.
 */
#define _GNU_SOURCE
#include "double.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SEEN __attribute__((visibility("default")))

static __thread bool bound;
static __thread cpu_set_t mask;
static bool process_bound; /* the mask of the first thread: others that set none inherit it */
static cpu_set_t process_mask;

static bool imitated(void)
{
    if (!box.read && getenv("FAKE_CUDA_SCENARIO")) {
        pthread_mutex_lock(&lock);
        if (read_box())
            exit(2);
        pthread_mutex_unlock(&lock);
    }
    return box.nodes > 0;
}

static bool own(pid_t pid)
{
    return pid == 0 || pid == (pid_t)syscall(SYS_gettid);
}

SEEN int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *wanted)
{
    if (!imitated() || !own(pid))
        return (int)syscall(SYS_sched_setaffinity, pid, size, wanted);
    cpu_set_t asked;
    CPU_ZERO(&asked);
    memcpy(&asked, wanted, size < sizeof asked ? size : sizeof asked);
    mask = asked;
    bound = true;
    if (getpid() == (pid_t)syscall(SYS_gettid)) {
        process_mask = asked;
        process_bound = true;
    }
    return 0;
}

SEEN int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *given)
{
    if (!imitated() || !own(pid)) {
        long filled = syscall(SYS_sched_getaffinity, pid, size, given);
        if (filled < 0)
            return -1;
        memset((char *)given + filled, 0, size - (size_t)filled);
        return 0;
    }
    cpu_set_t answer;
    CPU_ZERO(&answer);
    for (int cpu = 0; cpu < MAX_CPUS; cpu++)
        if (box.node_of_cpu[cpu] >= 0)
            CPU_SET(cpu, &answer);
    if (bound || process_bound)
        answer = bound ? mask : process_mask;
    memset(given, 0, size);
    memcpy(given, &answer, size < sizeof answer ? size : sizeof answer);
    return 0;
}

static bool preloaded(void)
{
    const char *names = getenv("LD_PRELOAD");
    return names && strstr(names, "libcuda.so.1");
}

/* The node of the thread's first CPU that belongs to one; a thread that may run everywhere is on node 0. */
int node_of_thread(void)
{
    const char *fixed = getenv("FAKE_CUDA_NODE");
    if (fixed)
        return atoi(fixed) < box.nodes ? atoi(fixed) : 0;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    if (preloaded())
        sched_getaffinity(0, sizeof cpus, &cpus);
    else if (syscall(SYS_sched_getaffinity, 0, sizeof cpus, &cpus) < 0)
        return 0;
    for (int cpu = 0; cpu < MAX_CPUS && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus) && box.node_of_cpu[cpu] >= 0)
            return box.node_of_cpu[cpu];
    return 0;
}
