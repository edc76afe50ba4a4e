/* The contents of device memory: tiles of 256 KiB. Equal tiles are shared until one is written to.
 *
 * All copied bytes are stored, but a gigabyte of a repeated pattern costs only one tile. Otherwise eight imitated
 * cards would need more memory than the real machine has. The period of gputopo_fill is one tile. Host memory is
 * plain memory.
 */
#include "double.h"

#include <stdlib.h>
#include <string.h>

struct tile {
    int users;
    char data[TILE];
};

static const char zeros[TILE];

/* The place of a run of bytes: in plain memory, or at an offset in a piece made of tiles. */
struct run {
    struct piece *piece;
    char *plain;
    uint64_t offset;
};

static struct run run_of(uint64_t address)
{
    struct piece *piece = piece_of(address);
    if (!piece || !piece->tiles)
        return (struct run){NULL, (char *)(uintptr_t)address, 0};
    return (struct run){piece, NULL, address - (uint64_t)(uintptr_t)piece->place.start};
}

static uint64_t in_one(const struct run *run, uint64_t bytes)
{
    uint64_t rest = run->piece ? TILE - run->offset % TILE : bytes;
    return rest < bytes ? rest : bytes;
}

static struct tile **slot_of(const struct run *run)
{
    return &run->piece->tiles[run->offset / TILE];
}

static const char *bytes_of(const struct run *run)
{
    if (!run->piece)
        return run->plain;
    struct tile *tile = *slot_of(run);
    return (tile ? tile->data : zeros) + run->offset % TILE;
}

static void go_on(struct run *run, uint64_t bytes)
{
    run->offset += bytes;
    run->plain = run->piece ? NULL : run->plain + bytes;
}

static void drop(struct tile *tile)
{
    if (tile && --tile->users == 0)
        free(tile);
}

static void share(struct tile **slot, struct tile *tile)
{
    if (tile)
        tile->users++;
    drop(*slot);
    *slot = tile;
}

static struct tile *tile_new(const char *data)
{
    struct tile *tile = malloc(sizeof *tile);
    if (!tile)
        abort();
    tile->users = 1;
    memcpy(tile->data, data, TILE);
    return tile;
}

static char *writable(const struct run *run)
{
    if (!run->piece)
        return run->plain;
    struct tile **slot = slot_of(run);
    if (!*slot || (*slot)->users > 1) {
        struct tile *own = tile_new(*slot ? (*slot)->data : zeros);
        drop(*slot);
        *slot = own;
    }
    return (*slot)->data + run->offset % TILE;
}

/* Writes the same tile, or its start, over all bytes of a run. */
void bytes_repeat(uint64_t address, uint64_t bytes, const char *data)
{
    struct run to = run_of(address);
    struct tile *tile = tile_new(data);
    for (uint64_t done = 0, here; done < bytes; done += here, go_on(&to, here)) {
        here = TILE - done % TILE;
        here = in_one(&to, here < bytes - done ? here : bytes - done);
        if (to.piece && here == TILE)
            share(slot_of(&to), tile);
        else
            memcpy(writable(&to), data + done % TILE, here);
    }
    drop(tile);
}

void bytes_copy(uint64_t to_address, uint64_t from_address, uint64_t bytes)
{
    struct run to = run_of(to_address), from = run_of(from_address);
    struct tile *last = NULL;
    if (!to.piece && !from.piece) {
        memmove(to.plain, from.plain, bytes);
        return;
    }
    for (uint64_t done = 0, here; done < bytes; done += here, go_on(&to, here), go_on(&from, here)) {
        here = in_one(&from, in_one(&to, bytes - done));
        if (!to.piece || here < TILE) {
            memmove(writable(&to), bytes_of(&from), here);
            continue;
        }
        if (from.piece) { /* a whole tile on both sides */
            share(slot_of(&to), *slot_of(&from));
            continue;
        }
        if (!last || memcmp(last->data, from.plain, TILE)) {
            drop(last);
            last = tile_new(from.plain);
        }
        share(slot_of(&to), last);
    }
    drop(last);
}

/* Counts the words that differ from a repeated tile. */
uint64_t words_differ(uint64_t address, uint64_t words, const uint64_t *wanted)
{
    struct run from = run_of(address);
    const char *last = NULL;
    uint64_t differ = 0, of_last = 0, bytes = 8 * words;
    for (uint64_t done = 0, here; done < bytes; done += here, go_on(&from, here)) {
        here = TILE - done % TILE;
        here = in_one(&from, here < bytes - done ? here : bytes - done);
        const char *data = bytes_of(&from), *right = (const char *)wanted + done % TILE;
        if (here != TILE || data != last) {
            of_last = 0;
            if (memcmp(data, right, here))
                for (uint64_t at = 0; at < here; at += 8)
                    of_last += memcmp(data + at, right + at, 8) != 0;
            last = here == TILE ? data : NULL;
        }
        differ += of_last;
    }
    return differ;
}

void bytes_in(uint64_t address, const void *from, uint64_t bytes)
{
    bytes_copy(address, (uint64_t)(uintptr_t)from, bytes);
}

void bytes_out(uint64_t address, void *to, uint64_t bytes)
{
    bytes_copy((uint64_t)(uintptr_t)to, address, bytes);
}

struct tile **tiles_new(uint64_t bytes)
{
    return calloc((bytes + TILE - 1) / TILE, sizeof(struct tile *));
}

void tiles_drop(struct piece *piece)
{
    for (uint64_t index = 0; piece->tiles && index < (piece->place.bytes + TILE - 1) / TILE; index++)
        drop(piece->tiles[index]);
    free(piece->tiles);
}
