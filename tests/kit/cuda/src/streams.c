/* Streams, events and the virtual clock.
 *
 * Nothing happens by itself: each call of the host lets a little time pass, and a wait lets as much time pass as
 * it needs. The work of a stream is done in order; data are moved when the copy ends.
 */
#define _GNU_SOURCE
#include "double.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
double now;

static struct stream *streams;
static struct stream *defaults[MAX_GPUS];
static pthread_cond_t news = PTHREAD_COND_INITIALIZER; /* never signalled: for a pause of limited time */

struct stream *stream_new(int gpu)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        abort();
    stream->gpu = gpu;
    stream->next = streams;
    return streams = stream;
}

struct stream *stream_default(int gpu)
{
    if (!defaults[gpu])
        defaults[gpu] = stream_new(gpu);
    return defaults[gpu];
}

bool stream_known(const struct stream *stream)
{
    for (struct stream *one = streams; one; one = one->next)
        if (one == stream)
            return !one->destroyed;
    return false;
}

struct op *op_new(enum op_kind what)
{
    struct op *op = calloc(1, sizeof *op);
    if (!op)
        abort();
    op->what = what;
    return op;
}

static bool value_is_there(const struct op *op)
{
    uint32_t value = *op->word;
    switch (op->how & 3) { /* CUstreamWaitValue_flags: GEQ (cyclic), EQ, AND, NOR */
    case 0:
        return (int32_t)(value - op->value) >= 0;
    case 1:
        return value == op->value;
    case 2:
        return (value & op->value) != 0;
    default:
        return ~(value | op->value) != 0;
    }
}

static void reach(struct stream *stream, struct op *op)
{
    op->event->at = now;
    op->event->done = op->sequence;
    op->event->error = stream->error;
    op->event->stream = stream;
}

/* Processes the first work of a stream as far as possible now. Returns whether it ended. */
static bool step(struct stream *stream, struct op *op)
{
    bool begins = !op->begun;
    if (op->issued > now)
        return false;
    op->begun = true;
    switch (op->what) {
    case RECORD:
        reach(stream, op);
        return true;
    case WAIT_EVENT:
        stream->busy &= op->event->done >= op->sequence;
        return op->event->done >= op->sequence;
    case WAIT_VALUE:
        stream->busy &= value_is_there(op);
        return value_is_there(op);
    case HOLD:
        if (begins)
            op->until = real_seconds() + 1e-9 * (double)op->call.word[2];
        stream->busy &= *op->word >= op->value;
        return *op->word >= op->value || real_seconds() >= op->until;
    default:
        break;
    }
    if (op->hang)
        return false;
    if (begins)
        op->flows_at = now + op->delay + (stream->busy ? 0 : box.start);
    if (!op->flowing && now >= op->flows_at) {
        op->flowing = true;
        if (op->flow.left > 0) {
            set_limit(op);
            flow_start(&op->flow);
        }
    }
    if (!op->flowing || op->flow.left > 0)
        return false;
    flow_stop(&op->flow);
    stream->busy = true;
    end_move(op);
    if (op->error && !stream->error)
        stream->error = op->error;
    return true;
}

static bool step_all(void)
{
    bool moved = false;
    for (struct stream *stream = streams; stream; stream = stream->next)
        while (stream->first && step(stream, stream->first)) {
            struct op *op = stream->first;
            stream->first = op->next;
            if (!stream->first)
                stream->last = NULL;
            stream->length--;
            free(op);
            moved = true;
        }
    return moved;
}

static double next_change(void)
{
    double first = flows_end();
    for (struct stream *stream = streams; stream; stream = stream->next) {
        struct op *op = stream->first;
        if (!op)
            continue;
        if (op->issued > now && op->issued < first)
            first = op->issued;
        if ((op->what == COPY || op->what == KERNEL || op->what == SET) && op->begun && !op->flowing && !op->hang)
            first = op->flows_at < first ? op->flows_at : first;
    }
    return first;
}

/* Lets time pass until something changes, at most until `until`. Returns false if no work is running. */
static bool advance(double until)
{
    while (step_all())
        ;
    double change = next_change();
    if (isinf(change) && isinf(until))
        return false;
    bool changes = change <= until;
    double then = changes ? change : until;
    flows_pass(then > now ? then - now : 0);
    now = then > now ? then : now;
    while (step_all())
        ;
    return changes;
}

void pass(double seconds)
{
    double until = now + seconds;
    while (now < until && advance(until))
        ;
}

static bool has_room(const void *stream)
{
    return ((const struct stream *)stream)->length < box.depth;
}

static int wait_until(bool (*there)(const void *), const void *what);

/* Like a driver with a full queue: the call waits until an earlier command is done. */
void issue(struct stream *stream, struct op *op)
{
    if (box.depth)
        wait_until(has_room, stream);
    stream->length++;
    op->issued = now;
    if (stream->last)
        stream->last->next = op;
    else {
        stream->first = op;
        stream->busy = false;
    }
    stream->last = op;
    stream->polls = 0;
    pass(LAUNCH_S);
}

bool stream_empty(const struct stream *stream)
{
    return !stream->first;
}

bool event_reached(const struct event *event)
{
    return event->done >= event->recorded;
}

bool gpu_idle(int gpu)
{
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream->gpu == gpu && stream->first)
            return false;
    return true;
}

double real_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Releases the lock for a moment, so that another thread can write a word. */
static void rest(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_nsec += 200000;
    if (time.tv_nsec >= 1000000000) {
        time.tv_sec++;
        time.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&news, &lock, &time);
}

bool stream_there(const void *stream)
{
    return stream_empty(stream);
}

bool event_there(const void *event)
{
    return event_reached(event);
}

bool gpu_there(const void *gpu)
{
    return gpu_idle(*(const int *)gpu);
}

bool all_idle(const void *nothing)
{
    (void)nothing;
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream->first)
            return false;
    return true;
}

void settle(bool (*there)(const void *), const void *what)
{
    while (step_all())
        ;
    while (!there(what) && advance(INFINITY))
        ;
}

static int wait_until(bool (*there)(const void *), const void *what)
{
    double since = 0;
    for (;;) {
        while (step_all())
            ;
        if (there(what))
            return OK;
        if (advance(INFINITY)) {
            since = 0;
            continue;
        }
        if (since == 0)
            since = real_seconds();
        if (real_seconds() - since > BLOCK_S) {
            fprintf(stderr, "libcuda double: a call waits for work that never ends (behind a hold?)\n");
            return LAUNCH_TIMEOUT;
        }
        rest();
    }
}

int wait_for_stream(struct stream *stream)
{
    return wait_until(stream_there, stream);
}

int wait_for_event(struct event *event)
{
    return wait_until(event_there, event);
}

int wait_for_gpu(int gpu)
{
    return wait_until(gpu_there, &gpu);
}
