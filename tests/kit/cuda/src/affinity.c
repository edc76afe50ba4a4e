/* The NUMA node of a thread.
 *
 * The imitated machine has other CPUs than the real one. If the library is preloaded (LD_PRELOAD), its
 * sched_setaffinity accepts the CPUs of the scenario and remembers them; otherwise the kernel's answer about the
 * thread is used. FAKE_CUDA_NODE overrides both. Memory is on the node that the thread requested
 * (set_mempolicy), else on the node of its CPUs. If the process may use the memory of only one node, it is there.
 */
#define _GNU_SOURCE
#include "double.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SEEN __attribute__((visibility("default")))

static __thread bool bound;
static __thread cpu_set_t mask;
static bool process_bound; /* the mask of the first thread; threads that set none inherit it */
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

static bool allowed(int cpu)
{
    return box.node_of_cpu[cpu] >= 0;
}

SEEN int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *wanted)
{
    if (!imitated() || !own(pid))
        return (int)syscall(SYS_sched_setaffinity, pid, size, wanted);
    cpu_set_t asked;
    CPU_ZERO(&asked);
    memcpy(&asked, wanted, size < sizeof asked ? size : sizeof asked);
    for (int cpu = 0; cpu < MAX_CPUS; cpu++)
        if (!allowed(cpu))
            CPU_CLR(cpu, &asked);
    if (CPU_COUNT(&asked) == 0) {
        errno = EINVAL;
        return -1;
    }
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
        if (allowed(cpu))
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

/* The node of the thread's first CPU that has one. A thread that may run on all CPUs is on node 0. */
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

static __thread int bound_node = -1;

int node_of_memory(void)
{
    if (box.memory_on >= 0)
        return box.memory_on;
    return bound_node >= 0 ? bound_node : node_of_thread();
}

/* set_mempolicy(mode, mask, bits): MPOL_BIND of one node, or MPOL_DEFAULT. */
static int set_policy(const long *a)
{
    int node = -1;
    for (int bit = 0; a[0] == 2 && node < 0 && bit < MAX_NODES && bit < a[2] - 1; bit++)
        if (((const unsigned long *)a[1])[0] >> bit & 1)
            node = bit;
    if ((a[0] != 0 && node < 0) || node >= box.nodes || (node >= 0 && box.memory_on >= 0 && node != box.memory_on))
        return EINVAL;
    bound_node = node;
    return 0;
}

static int get_policy(const long *a)
{
    *(int *)a[0] = bound_node < 0 ? 0 : 2;
    memset((void *)a[1], 0, (size_t)a[2] / 8);
    if (bound_node >= 0)
        *(unsigned long *)a[1] = 1ul << bound_node;
    return 0;
}

/* move_pages(0, count, pages, NULL, status, 0): other memory than the double's is on the thread's node. */
static int ask_pages(const long *a)
{
    pthread_mutex_lock(&lock);
    for (long page = 0; page < a[1]; page++)
        ((int *)a[4])[page] = place_of(((const uint64_t *)a[2])[page]).node;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* System calls about the memory of a node, for the imitated machine; all others go to the kernel. */
SEEN long syscall(long number, ...)
{
    static long (*kernel)(long, ...);
    long a[6];
    va_list more;
    va_start(more, number);
    for (int place = 0; place < 6; place++)
        a[place] = va_arg(more, long);
    va_end(more);
    bool about_nodes = number == SYS_set_mempolicy || number == SYS_get_mempolicy || number == SYS_move_pages;
    if (about_nodes && imitated()) {
        int code = number == SYS_set_mempolicy ? set_policy(a) :
                   number == SYS_get_mempolicy ? get_policy(a) : ask_pages(a);
        errno = code;
        return code ? -1 : 0;
    }
    if (!kernel)
        kernel = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
