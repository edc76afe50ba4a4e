/* The kernels that the double knows by name. They are implemented here; no PTX is read. */
#include "double.h"

#include <string.h>

enum function { FILL, CHECK, COPY_WORDS, CHASE, SPIN, FUNCTIONS };

static const struct {
    const char *name;
    int words;
} functions[FUNCTIONS] = {
    {"gputopo_fill", 3}, {"gputopo_check", 4}, {"gputopo_copy", 3}, {"gputopo_chase", 3},
    {"gputopo_hold", 3}};

#define PERIOD 32768

int kernel_named(const char *name)
{
    for (int index = 0; index < FUNCTIONS; index++)
        if (!strcmp(functions[index].name, name))
            return index;
    return -1;
}

bool kernel_holds(int function)
{
    return function == SPIN;
}

int kernel_words(int function)
{
    return functions[function].words;
}

/* The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators). */
static uint64_t splitmix64(uint64_t x)
{
    uint64_t z = x + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static const uint64_t *pattern(uint64_t seed)
{
    static uint64_t words[PERIOD], of;
    static bool made;
    if (!made || of != seed)
        for (uint64_t index = 0; index < PERIOD; index++)
            words[index] = splitmix64(seed + index);
    made = true;
    of = seed;
    return words;
}

/* Whether a kernel on a GPU may access the bytes: its own, a peer's with access, or pinned host memory. */
static bool allowed(int gpu, uint64_t address, uint64_t bytes)
{
    struct place place = place_of(address);
    if (!bytes)
        return true;
    return within(address, bytes) && (place.gpu < 0 || place.gpu == gpu || box.gpu[gpu].peer_open[place.gpu]);
}

static void reads(int gpu, struct place from, struct op *op)
{
    bool host = from.gpu < 0, own = from.gpu == gpu;
    op->kind = host ? H2D : own ? MEMORY : READ;
    op->a = host || own ? gpu : from.gpu;
    op->b = host ? from.node : own ? 0 : gpu;
}

static void writes(int gpu, struct place to, struct op *op)
{
    bool host = to.gpu < 0, own = to.gpu == gpu;
    op->kind = host ? D2H : own ? MEMORY : WRITE;
    op->a = gpu;
    op->b = host ? to.node : own ? 0 : to.gpu;
}

/* Sets the path of a kernel's traffic. An address without permission fails only when the kernel runs. */
int kernel_plan(struct stream *stream, struct op *op)
{
    const uint64_t *word = op->call.word;
    int gpu = stream->gpu;
    struct place first = place_of(word[0]);
    op->unit = gpu;
    op->steps = op->call.function == CHASE ? word[1] : 0;
    op->flow.left = op->call.function == CHASE ? 0 : 8 * (double)word[op->call.function == COPY_WORDS ? 2 : 1];
    op->bytes = op->call.function == CHASE ? 8 : (uint64_t)op->flow.left;
    op->to = op->call.function == COPY_WORDS || op->call.function == FILL ? (char *)(uintptr_t)word[0] : NULL;
    if (op->call.function == FILL) {
        writes(gpu, first, op);
    } else if (op->call.function == COPY_WORDS) {
        struct place from = place_of(word[1]);
        if (from.gpu == gpu && first.gpu == gpu)
            op->kind = LOCAL, op->a = gpu, op->b = 0;
        else if (first.gpu == gpu)
            reads(gpu, from, op);
        else
            writes(gpu, first, op);
    } else {
        reads(gpu, first, op);
    }
    return OK;
}

/* A kernel that waits for a word: the stream continues when it is written, or after a real time in ns. */
int kernel_hold(struct stream *stream, struct op *op)
{
    const uint64_t *word = op->call.word;
    if (!allowed(stream->gpu, word[0], 4) || place_of(word[0]).gpu >= 0)
        return ILLEGAL_ADDRESS;
    op->what = HOLD;
    op->word = (volatile uint32_t *)(uintptr_t)word[0];
    op->value = (uint32_t)word[1];
    op->until = -1;
    return OK;
}

static int fill(int gpu, const uint64_t *word)
{
    if (!allowed(gpu, word[0], 8 * word[1]))
        return ILLEGAL_ADDRESS;
    bytes_repeat(word[0], 8 * word[1], (const char *)pattern(word[2]));
    return OK;
}

static int check(int gpu, const uint64_t *word)
{
    if (!allowed(gpu, word[0], 8 * word[1]) || !allowed(gpu, word[3], 8))
        return ILLEGAL_ADDRESS;
    uint64_t count;
    bytes_out(word[3], &count, 8);
    count += words_differ(word[0], word[1], pattern(word[2]));
    bytes_in(word[3], &count, 8);
    return OK;
}

static int copy(int gpu, const uint64_t *word, bool wrong)
{
    uint64_t bytes = 8 * word[2];
    if (!allowed(gpu, word[0], bytes) || !allowed(gpu, word[1], bytes))
        return ILLEGAL_ADDRESS;
    bytes_copy(word[0], word[1], bytes);
    if (wrong && bytes)
        spoil(word[0] + bytes / 8 * 5);
    return OK;
}

static int chase(int gpu, const uint64_t *word)
{
    uint64_t at = word[0];
    for (uint64_t steps = 0; steps < word[1]; steps++) {
        if (!allowed(gpu, at, 8))
            return ILLEGAL_ADDRESS;
        bytes_out(at, &at, 8);
    }
    if (!allowed(gpu, word[2], 8))
        return ILLEGAL_ADDRESS;
    bytes_in(word[2], &at, 8);
    return OK;
}

int kernel_run(struct op *op)
{
    int gpu = op->unit, code;
    switch (op->call.function) {
    case FILL:
        code = fill(gpu, op->call.word);
        break;
    case CHECK:
        code = check(gpu, op->call.word);
        break;
    case COPY_WORDS:
        code = copy(gpu, op->call.word, op->wrong);
        break;
    default:
        code = chase(gpu, op->call.word);
    }
    /* As on a real card, a kernel's access without permission makes the whole context unusable. */
    if (code)
        box.gpu[gpu].sticky = code;
    return code;
}
