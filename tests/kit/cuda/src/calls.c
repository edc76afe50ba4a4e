/* The calls that submit work to a GPU: streams, events, copies, fills, kernels. */
#include "double.h"
#include "calls.h"

#include <stdlib.h>
#include <string.h>

struct module {
    int gpu;
    char *text;
};

struct function {
    int gpu, index;
};

/* The stream of a handle; 0, 1 and 2 are the default streams of the context. NULL: unknown handle. */
static struct stream *stream_of(uintptr_t handle, int gpu)
{
    struct stream *stream = (struct stream *)handle;
    if (handle <= 2)
        return gpu < 0 ? NULL : stream_default(gpu);
    return stream_known(stream) ? stream : NULL;
}

/* Takes the lock and finds the stream. The code of a lost GPU takes precedence. */
static int enter_stream(uintptr_t handle, struct stream **stream)
{
    int gpu, code = enter_context(&gpu);
    if (code && !(code == INVALID_CONTEXT && handle > 2))
        return code;
    *stream = stream_of(handle, gpu);
    return *stream ? gpu_fails((*stream)->gpu) : INVALID_HANDLE;
}

CALL cuStreamCreate(struct stream **stream, unsigned flags)
{
    int gpu, code = enter_context(&gpu);
    if (!code && flags > 1)
        code = INVALID_VALUE;
    if (!code)
        *stream = stream_new(gpu);
    return leave(code);
}

CALL cuStreamDestroy_v2(struct stream *stream)
{
    int code = enter();
    if (!code && !stream_known(stream))
        code = INVALID_HANDLE;
    if (!code)
        stream->destroyed = true;
    return leave(code);
}

static int reported_error(struct stream *stream)
{
    int code = stream->error;
    stream->error = OK;
    return code;
}

CALL cuStreamQuery(uintptr_t handle)
{
    struct stream *stream;
    int code = enter_stream(handle, &stream);
    if (code)
        return leave(code);
    if (!stream_empty(stream)) {
        if (stream->polls++ >= box.polls)
            settle(stream_there, stream);
        else
            pass(POLL_S);
    }
    return leave(stream_empty(stream) ? reported_error(stream) : NOT_READY);
}

CALL cuStreamSynchronize(uintptr_t handle)
{
    struct stream *stream;
    int code = enter_stream(handle, &stream);
    code = code ? code : wait_for_stream(stream);
    return leave(code ? code : reported_error(stream));
}

CALL cuStreamWaitEvent(uintptr_t handle, struct event *event, unsigned flags)
{
    struct stream *stream;
    int code = enter_stream(handle, &stream);
    if (!code && (!event || flags))
        code = INVALID_VALUE;
    if (!code) {
        struct op *op = op_new(WAIT_EVENT);
        op->event = event;
        op->sequence = event->recorded;
        issue(stream, op);
    }
    return leave(code);
}

CALL cuStreamWaitValue32_v2(uintptr_t handle, uint64_t address, uint32_t value, unsigned flags)
{
    struct stream *stream;
    int code = enter_stream(handle, &stream);
    if (!code && box.memory_operations == REFUSED)
        code = NOT_SUPPORTED;
    if (!code && (!within(address, 4) || address % 4))
        code = INVALID_VALUE;
    if (!code && box.memory_operations == WORK) {
        struct op *op = op_new(WAIT_VALUE);
        op->word = (volatile uint32_t *)(uintptr_t)address;
        op->value = value;
        op->how = flags;
        issue(stream, op);
    }
    return leave(code);
}

CALL cuEventCreate(struct event **event, unsigned flags)
{
    int gpu, code = enter_context(&gpu);
    struct event *made = code ? NULL : calloc(1, sizeof *made);
    if (made) {
        made->gpu = gpu;
        made->timing = !(flags & 2);
        *event = made;
    }
    return leave(code);
}

/* Running work may still refer to the event, so it is not freed. */
CALL cuEventDestroy_v2(struct event *event)
{
    int code = enter();
    return leave(code ? code : event ? OK : INVALID_HANDLE);
}

CALL cuEventRecord(struct event *event, uintptr_t handle)
{
    struct stream *stream;
    int code = enter_stream(handle, &stream);
    if (!code && (!event || event->gpu != stream->gpu))
        code = INVALID_HANDLE;
    if (!code) {
        struct op *op = op_new(RECORD);
        op->event = event;
        op->sequence = ++event->recorded;
        event->polls = 0;
        issue(stream, op);
    }
    return leave(code);
}

static int event_told(struct event *event)
{
    int code = gpu_fails(event->gpu);
    if (event->error && event->stream)
        event->stream->error = OK;
    return code ? code : event->error;
}

CALL cuEventQuery(struct event *event)
{
    int code = enter();
    if (code || !event)
        return leave(code ? code : INVALID_HANDLE);
    code = gpu_fails(event->gpu);
    if (code)
        return leave(code);
    if (!event_reached(event)) {
        if (event->polls++ >= box.polls)
            settle(event_there, event);
        else
            pass(POLL_S);
    }
    return leave(event_reached(event) ? event_told(event) : NOT_READY);
}

CALL cuEventSynchronize(struct event *event)
{
    int code = enter();
    if (!code)
        code = event ? gpu_fails(event->gpu) : INVALID_HANDLE;
    code = code ? code : wait_for_event(event);
    return leave(code ? code : event_told(event));
}

CALL cuEventElapsedTime(float *milliseconds, struct event *start, struct event *end)
{
    int code = enter();
    if (!code && (!start || !end || !start->timing || !end->timing || !start->recorded || !end->recorded))
        code = INVALID_HANDLE;
    if (!code && (!event_reached(start) || !event_reached(end)))
        code = NOT_READY;
    if (!code)
        code = start->error ? start->error : event_told(end);
    if (!code)
        *milliseconds = (float)((end->at - start->at) * 1e3);
    return leave(code);
}

static int give(struct stream *stream, struct op *op, int code)
{
    code = code ? code : begin_move(stream, op);
    if (code) {
        free(op);
        return code;
    }
    bool waits = op->what == COPY && (op->kind == H2D_PAGEABLE || op->kind == D2H_PAGEABLE);
    issue(stream, op);
    code = waits ? wait_for_stream(stream) : OK;
    return code || !waits ? code : reported_error(stream);
}

static int copied(uint64_t to, uint64_t from, size_t bytes, uintptr_t handle, bool to_gpu, bool from_gpu)
{
    struct stream *stream;
    int code = enter_stream(handle, &stream);
    if (code || !bytes)
        return leave(code);
    if ((place_of(to).gpu >= 0) != to_gpu || (place_of(from).gpu >= 0) != from_gpu)
        return leave(INVALID_VALUE);
    struct op *op = op_new(COPY);
    code = copy_kind(to, from, bytes, op);
    if (!code && op->kind == P2P && stream->gpu == op->b)
        op->kind = PULL; /* by the copy engine of the destination */
    return leave(give(stream, op, code));
}

CALL cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, uintptr_t stream)
{
    return copied(to, (uint64_t)(uintptr_t)from, bytes, stream, true, false);
}

CALL cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, uintptr_t stream)
{
    return copied((uint64_t)(uintptr_t)to, from, bytes, stream, false, true);
}

CALL cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, uintptr_t stream)
{
    return copied(to, from, bytes, stream, true, true);
}

CALL cuMemcpyPeerAsync(uint64_t to, struct context *to_context, uint64_t from, struct context *from_context,
                       size_t bytes, uintptr_t stream)
{
    pthread_mutex_lock(&lock);
    bool fit = gpu_of_context(to_context) == place_of(to).gpu &&
               gpu_of_context(from_context) == place_of(from).gpu;
    pthread_mutex_unlock(&lock);
    return fit ? copied(to, from, bytes, stream, true, true) : INVALID_VALUE;
}

static int set(uint64_t to, uint32_t value, size_t count, int unit, uintptr_t handle)
{
    struct stream *stream;
    int code = enter_stream(handle, &stream);
    if (code || !count)
        return leave(code);
    struct place place = place_of(to);
    if (!within(to, count * (size_t)unit) || place.gpu < 0 || to % (uint64_t)unit)
        return leave(INVALID_VALUE);
    struct op *op = op_new(SET);
    op->kind = MEMORY;
    op->a = place.gpu;
    op->to = (char *)(uintptr_t)to;
    op->value = value;
    op->unit = unit;
    op->bytes = count * (size_t)unit;
    op->flow.left = (double)op->bytes;
    return leave(give(stream, op, OK));
}

CALL cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, uintptr_t stream)
{
    return set(to, value, count, 1, stream);
}

CALL cuMemsetD32Async(uint64_t to, unsigned value, size_t count, uintptr_t stream)
{
    return set(to, value, count, 4, stream);
}

CALL cuModuleLoadData(struct module **module, const void *image)
{
    int gpu, code = enter_context(&gpu);
    if (!code && (!image || !strstr(image, ".version") || !strstr(image, ".address_size 64")))
        code = INVALID_IMAGE;
    if (!code) {
        *module = malloc(sizeof **module);
        **module = (struct module){gpu, strdup(image)};
    }
    return leave(code);
}

CALL cuModuleUnload(struct module *module)
{
    int code = enter();
    if (!code) {
        free(module->text);
        free(module);
    }
    return leave(code);
}

CALL cuModuleGetFunction(struct function **function, struct module *module, const char *name)
{
    static struct function functions[MAX_GPUS][8];
    int code = enter(), index = kernel_named(name);
    if (!code && (index < 0 || !strstr(module->text, name)))
        code = NOT_FOUND;
    if (!code) {
        *function = &functions[module->gpu][index];
        **function = (struct function){module->gpu, index};
    }
    return leave(code);
}

CALL cuLaunchKernel(struct function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, uintptr_t handle,
                    void **words, void **extra)
{
    struct stream *stream;
    int code = enter_stream(handle, &stream);
    (void)shared;
    if (!code && (!grid_x || !grid_y || !grid_z || !block_x || block_x * block_y * block_z > 1024 || extra || !words))
        code = INVALID_VALUE;
    if (!code && function->gpu != stream->gpu)
        code = INVALID_HANDLE;
    if (code)
        return leave(code);
    struct op *op = op_new(KERNEL);
    op->call.function = function->index;
    for (int index = 0; index < kernel_words(function->index); index++)
        op->call.word[index] = *(uint64_t *)words[index];
    if (kernel_holds(function->index)) {
        code = kernel_hold(stream, op);
        if (code)
            free(op);
        else
            issue(stream, op);
        return leave(code);
    }
    code = give(stream, op, kernel_plan(stream, op));
    return leave(code || !box.blocking ? code : wait_for_stream(stream));
}
