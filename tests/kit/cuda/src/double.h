/* A double of libcuda.so.1: declarations that its parts share. tests/kit/cuda/__init__.py describes it.
 *
 * All times are seconds of a virtual clock, all rates bytes per second. Everything is guarded by one lock.
 */
#ifndef GPUTOPO_CUDA_DOUBLE_H
#define GPUTOPO_CUDA_DOUBLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_GPUS 32
#define MAX_NODES 16
#define MAX_RESOURCES 1024
#define MAX_HOPS 32
#define MAX_FAULTS 64
#define MAX_CPUS 1024
#define TILE 262144
/* Virtual seconds of a call that submits work, of a poll, and of a change of peer access. */
#define LAUNCH_S 5e-6
#define POLL_S 1e-6
#define PEER_S 2e-3
#define BLOCK_S 5.0 /* seconds of real time until an endless wait is given up */
#define L2_TIMES 4.0 /* how much faster the cache is than the memory */

/* The result codes that the double returns without a fault (cuda.h, CUresult). */
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    PEER_UNSUPPORTED = 217,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_TIMEOUT = 702,
    PEER_ALREADY_ENABLED = 704,
    PEER_NOT_ENABLED = 705,
    TOO_MANY_PEERS = 711,
    NOT_SUPPORTED = 801,
};

/* What a path carries. `a`: a GPU. `b`: the node of the host memory, or the destination GPU. */
enum kind { H2D, D2H, H2D_PAGEABLE, D2H_PAGEABLE, P2P, PULL, STAGED, READ, WRITE, LOCAL, MEMORY, KINDS };

struct path {
    double latency; /* before the first byte */
    double chase;   /* one step of a chain of pointers */
    double alone;   /* the rate of a flow that does not share the path */
    int hops;
    int resource[MAX_HOPS];
    double weight[MAX_HOPS]; /* how often a byte crosses the resource */
};

enum fault_kind { WRONG, ONCE, FAIL, LATE, HANG };

struct fault {
    enum fault_kind what;
    enum kind kind;
    int a, b; /* -1: any */
    int code;
    int after; /* number of copies that succeed first */
};

struct gpu {
    char name[128];
    char address[32];
    uint64_t memory, used;
    uint64_t refuse_above; /* 0: no allocation is refused for its size */
    int major, minor;
    int lost_code, lost_after; /* lost_code 0: it is never lost */
    double l2; /* bytes of the cache */
    uint64_t before;     /* bytes of the previous copy or kernel, which the cache still holds */
    /* what happened so far */
    int copies;
    int sticky;
    bool peer_open[MAX_GPUS];
};

struct box {
    bool read;
    int gpus, nodes, resources, faults;
    int driver, init_code, polls;
    int depth; /* commands that a stream takes before the call that adds one waits; 0: any number */
    bool blocking; /* CUDA_LAUNCH_BLOCKING: a launch waits for the end of its kernel */
    uint64_t spare; /* faults of ways do not affect smaller copies */
    double start; /* for the first copy or kernel of a stream that was idle or waited */
    int peer_limit; /* devices that one device may reach; 0: any number */
    int memory_on; /* the only node whose memory this process may use; -1: all */
    enum memory_operations { WORK, REFUSED, IGNORED } memory_operations; /* of streams: cuStreamWaitValue32 */
    struct gpu gpu[MAX_GPUS];
    bool can_peer[MAX_GPUS][MAX_GPUS];
    double capacity[MAX_RESOURCES];
    struct path *path[KINDS][MAX_GPUS][MAX_GPUS];
    struct fault fault[MAX_FAULTS];
    signed char node_of_cpu[MAX_CPUS];
    char lacks[2048];
};

extern struct box box;
extern pthread_mutex_t lock;
extern double now;

/* box.c */
int read_box(void);
enum kind kind_named(const char *name);

/* affinity.c */
int node_of_thread(void);
int node_of_memory(void); /* the node of a thread's new memory */

/* memory.c: where an address is */
struct place {
    bool known; /* false: pageable host memory */
    int gpu;    /* -1: pinned host memory of `node` */
    int node;
    char *start;
    uint64_t bytes;
};
struct piece {
    struct place place;
    struct tile **tiles; /* of device memory */
    bool gone;           /* freed, but held work may still access it */
    struct piece *next;
};
struct piece *piece_of(uint64_t address); /* also of a freed one */
int place_gpu(int gpu, uint64_t bytes, uint64_t *address);
int place_host(uint64_t bytes, void **address);
int unplace(uint64_t address, bool host, bool leave);
struct place place_of(uint64_t address);
bool within(uint64_t address, uint64_t bytes);
uint64_t taken(int gpu);

/* tiles.c: its contents */
void bytes_copy(uint64_t to, uint64_t from, uint64_t bytes);
void bytes_in(uint64_t address, const void *from, uint64_t bytes);
void bytes_out(uint64_t address, void *to, uint64_t bytes);
void bytes_repeat(uint64_t address, uint64_t bytes, const char *data);
uint64_t words_differ(uint64_t address, uint64_t words, const uint64_t *wanted);
struct tile **tiles_new(uint64_t bytes);
void tiles_drop(struct piece *piece);

/* flows.c: copies as a fluid */
struct flow {
    const struct path *path;
    double left;  /* bytes */
    double limit; /* its own limit, in addition to the path's */
    double rate;
    struct flow *next;
};
void flow_start(struct flow *flow);
void flow_stop(struct flow *flow);
double flows_end(void);           /* when the first one ends, or infinity */
void flows_pass(double seconds);  /* lets time pass */

/* streams.c */
enum op_kind { COPY, RECORD, WAIT_EVENT, WAIT_VALUE, HOLD, KERNEL, SET };

struct event {
    int gpu;
    bool timing;
    uint64_t recorded, done; /* sequence numbers of records: requested, and reached */
    double at;
    int error;
    int polls;
    struct stream *stream;
};

struct kernel_call {
    int function;
    uint64_t word[4];
};

struct op {
    enum op_kind what;
    struct op *next;
    struct flow flow;
    double issued, delay, flows_at;
    bool begun, flowing;
    int error;
    enum kind kind;
    int a, b;
    bool wrong, hang;
    char *to, *from;
    uint64_t bytes;
    struct event *event;
    uint64_t sequence;
    volatile uint32_t *word;
    uint32_t value;
    unsigned how;
    double until;   /* a hold ends at this real time, whatever the value of the word */
    int unit;       /* bytes that are set at once; for a kernel, the GPU that runs it */
    uint64_t steps; /* of a chain of pointers */
    struct kernel_call call;
};

struct stream {
    int gpu;
    struct op *first, *last;
    struct stream *next;
    int length; /* commands that are not done */
    bool busy;  /* the previous work has just ended */
    int error;
    int polls;
    bool destroyed;
};

struct stream *stream_new(int gpu);
struct stream *stream_default(int gpu);
bool stream_known(const struct stream *stream);
struct op *op_new(enum op_kind what);
void issue(struct stream *stream, struct op *op); /* takes the virtual time of a call */
void pass(double seconds);                        /* the host is busy for this time */
bool stream_empty(const struct stream *stream);
bool event_reached(const struct event *event);
int wait_for_stream(struct stream *stream);
int wait_for_event(struct event *event);
int wait_for_gpu(int gpu);
bool gpu_idle(int gpu);
void settle(bool (*there)(const void *), const void *what); /* as far as possible without waiting */
bool stream_there(const void *stream);
bool event_there(const void *event);
double real_seconds(void);
bool gpu_there(const void *gpu);
bool all_idle(const void *nothing);

/* moves.c: copies and their faults */
int begin_move(struct stream *stream, struct op *op); /* faults of the call itself */
void end_move(struct op *op);
void spoil(uint64_t address); /* changes one byte */
void set_limit(struct op *op);
int copy_kind(uint64_t to, uint64_t from, uint64_t bytes, struct op *op);
int gpu_fails(int gpu); /* the code with which every call of a GPU fails, or 0 */

/* kernels.c */
int kernel_named(const char *name);
bool kernel_holds(int function);
int kernel_words(int function);
int kernel_hold(struct stream *stream, struct op *op); /* of gputopo_hold, which moves nothing */
int kernel_plan(struct stream *stream, struct op *op);
int kernel_run(struct op *op);

/* names.c */
const char *error_name(int code);
const char *error_says(int code);

#endif
