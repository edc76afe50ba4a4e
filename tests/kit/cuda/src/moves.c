/* Copies and fills: their paths, rates and faults, and the bytes themselves. */
#include "double.h"

#include <math.h>
#include <string.h>

static bool matches(const struct fault *fault, enum kind kind, int a, int b)
{
    bool host = kind == H2D || kind == D2H || kind == H2D_PAGEABLE || kind == D2H_PAGEABLE;
    return fault->kind == kind && (fault->a < 0 || fault->a == a) && (host || fault->b < 0 || fault->b == b);
}

int gpu_fails(int gpu)
{
    struct gpu *card = &box.gpu[gpu];
    if (card->sticky)
        return card->sticky;
    return card->lost_code && card->copies >= card->lost_after ? card->lost_code : OK;
}

static bool between_gpus(enum kind kind)
{
    return kind == P2P || kind == PULL || kind == STAGED || kind == READ || kind == WRITE;
}

void set_limit(struct op *op)
{
    op->flow.limit = op->flow.path->alone;
}

/* The factor for a local copy's time: less than 1 if the cache holds all or part of it (up to 4 times its size). */
static double through_cache(const struct gpu *gpu, const struct op *op)
{
    double bytes = (double)(op->bytes > gpu->before ? op->bytes : gpu->before);
    double held = (4 * gpu->l2 - bytes) / (3 * gpu->l2 + 1);
    held = held < 0 ? 0 : held > 1 ? 1 : held;
    return 1 - held * (1 - 1 / L2_TIMES);
}

/* Sets the path. Returns the code of a fault that the call itself reports. */
int begin_move(struct stream *stream, struct op *op)
{
    op->flow.path = box.path[op->kind][op->a][op->b];
    if (!op->flow.path)
        return NOT_SUPPORTED;
    if (op->kind == LOCAL)
        op->flow.left *= through_cache(&box.gpu[op->a], op);
    box.gpu[op->a].before = op->bytes;
    op->delay = op->flow.path->latency + (double)op->steps * op->flow.path->chase;
    int code = gpu_fails(stream->gpu);
    code = code ? code : gpu_fails(op->a);
    code = code || !between_gpus(op->kind) ? code : gpu_fails(op->b);
    if (code)
        return code;
    /* Kernels on their own memory are not copies: they do not wake a card up or count towards a fault. */
    if (op->kind == MEMORY)
        return OK;
    box.gpu[op->a].copies++;
    if (between_gpus(op->kind))
        box.gpu[op->b].copies++;
    for (int index = 0; index < box.faults && op->bytes >= box.spare; index++) {
        struct fault *fault = &box.fault[index];
        if (!matches(fault, op->kind, op->a, op->b) || fault->after < 0 || fault->after-- > 0)
            continue;
        fault->after = 0;
        if (fault->what == FAIL)
            return fault->code;
        if (fault->what == LATE)
            op->error = fault->code;
        op->wrong |= fault->what == WRONG || fault->what == ONCE;
        if (fault->what == ONCE)
            fault->after = -1;
        op->hang |= fault->what == HANG;
    }
    return OK;
}

void spoil(uint64_t address)
{
    char byte;
    bytes_out(address, &byte, 1);
    byte ^= 0x40;
    bytes_in(address, &byte, 1);
}

static void set_words(struct op *op)
{
    static uint32_t tile[TILE / 4];
    for (uint64_t index = 0; index < TILE / 4; index++)
        tile[index] = op->unit == 1 ? op->value * 0x01010101u : op->value;
    bytes_repeat((uint64_t)(uintptr_t)op->to, op->bytes, (const char *)tile);
}

void end_move(struct op *op)
{
    int lost = gpu_fails(op->a);
    lost = lost || !between_gpus(op->kind) ? lost : gpu_fails(op->b);
    if (lost && !op->error)
        op->error = lost;
    if (op->error)
        return;
    if (op->what == KERNEL) {
        op->error = kernel_run(op);
        return;
    }
    if (op->what == SET)
        set_words(op);
    else
        bytes_copy((uint64_t)(uintptr_t)op->to, (uint64_t)(uintptr_t)op->from, op->bytes);
    if (op->wrong && op->bytes)
        spoil((uint64_t)(uintptr_t)op->to + op->bytes / 8 * 5);
}

/* Sets the kind of the copy. Both ends were found by their addresses, as with unified addressing. */
int copy_kind(uint64_t to, uint64_t from, uint64_t bytes, struct op *op)
{
    struct place target = place_of(to), source = place_of(from);
    if ((target.known && !within(to, bytes)) || (source.known && !within(from, bytes)) || !bytes)
        return INVALID_VALUE;
    op->to = (char *)(uintptr_t)to;
    op->from = (char *)(uintptr_t)from;
    op->bytes = bytes;
    op->flow.left = (double)bytes;
    if (target.gpu >= 0 && source.gpu >= 0) {
        op->kind = target.gpu == source.gpu ? LOCAL : box.gpu[source.gpu].peer_open[target.gpu] ||
                   box.gpu[target.gpu].peer_open[source.gpu] ? P2P : STAGED;
        op->a = source.gpu;
        op->b = target.gpu == source.gpu ? 0 : target.gpu;
    } else if (target.gpu >= 0) {
        op->kind = source.known ? H2D : H2D_PAGEABLE;
        op->a = target.gpu;
        op->b = source.node;
    } else if (source.gpu >= 0) {
        op->kind = target.known ? D2H : D2H_PAGEABLE;
        op->a = source.gpu;
        op->b = target.node;
    } else {
        return NOT_SUPPORTED;
    }
    return OK;
}
