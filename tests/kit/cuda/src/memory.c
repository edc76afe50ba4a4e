/* Where memory is: pinned host memory is a real mapping, device memory only an address range. */
#define _GNU_SOURCE
#include "double.h"

#include <stdlib.h>
#include <sys/mman.h>

static struct piece *pieces;

static char *map(uint64_t bytes, int protection)
{
    void *start =
        mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return start == MAP_FAILED ? NULL : start;
}

static int keep(int gpu, int node, uint64_t bytes, char **start)
{
    *start = map(bytes, gpu < 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
    struct piece *piece = *start ? calloc(1, sizeof *piece) : NULL;
    if (!piece)
        return OUT_OF_MEMORY;
    piece->place = (struct place){true, gpu, node, *start, bytes};
    piece->tiles = gpu < 0 ? NULL : tiles_new(bytes);
    piece->next = pieces;
    pieces = piece;
    return OK;
}

int place_gpu(int gpu, uint64_t bytes, uint64_t *address)
{
    struct gpu *card = &box.gpu[gpu];
    if (bytes == 0)
        return INVALID_VALUE;
    if ((card->refuse_above && bytes > card->refuse_above) || taken(gpu) + bytes > card->memory)
        return OUT_OF_MEMORY;
    char *start;
    int code = keep(gpu, -1, bytes, &start);
    if (code == OK)
        *address = (uint64_t)(uintptr_t)start;
    return code;
}

int place_host(uint64_t bytes, void **address)
{
    char *start;
    int code = bytes ? keep(-1, node_of_memory(), bytes, &start) : INVALID_VALUE;
    if (code == OK)
        *address = start;
    return code;
}

/* `leave`: running work may still access the memory, so its pages stay until the process ends. */
int unplace(uint64_t address, bool host, bool leave)
{
    for (struct piece **at = &pieces; *at; at = &(*at)->next) {
        struct piece *piece = *at;
        if ((uint64_t)(uintptr_t)piece->place.start != address || (piece->place.gpu < 0) != host || piece->gone)
            continue;
        piece->gone = true;
        if (leave)
            return OK;
        *at = piece->next;
        tiles_drop(piece);
        munmap(piece->place.start, piece->place.bytes);
        free(piece);
        return OK;
    }
    return INVALID_VALUE;
}

struct piece *piece_of(uint64_t address)
{
    for (struct piece *piece = pieces; piece; piece = piece->next) {
        uint64_t start = (uint64_t)(uintptr_t)piece->place.start;
        if (address >= start && address - start < piece->place.bytes)
            return piece;
    }
    return NULL;
}

struct place place_of(uint64_t address)
{
    struct piece *piece = piece_of(address);
    if (piece && !piece->gone)
        return piece->place;
    return (struct place){false, -1, node_of_memory(), NULL, 0};
}

/* Whether all of these bytes are within one allocation. */
bool within(uint64_t address, uint64_t bytes)
{
    struct place place = place_of(address);
    return place.known && bytes <= place.bytes - (address - (uint64_t)(uintptr_t)place.start);
}

uint64_t taken(int gpu)
{
    uint64_t bytes = box.gpu[gpu].used;
    for (struct piece *piece = pieces; piece; piece = piece->next)
        if (piece->place.gpu == gpu && !piece->gone)
            bytes += piece->place.bytes;
    return bytes;
}
