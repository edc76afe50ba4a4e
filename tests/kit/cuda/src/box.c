/* Reads the scenario file that tests/kit/cuda/scenario.py writes: one item per line. */
#define _GNU_SOURCE
#include "double.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct box box;

static const char *const kind_names[KINDS] = {"h2d", "d2h", "h2d_pageable", "d2h_pageable", "p2p",
                                              "pull", "staged", "read", "write", "local", "memory"};

enum kind kind_named(const char *name)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (!strcmp(kind_names[kind], name))
            return (enum kind)kind;
    return KINDS;
}

static double number(const char *line, const char *key, double otherwise)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, " %s=", key);
    const char *found = strstr(line, wanted);
    return found ? strtod(found + strlen(wanted), NULL) : otherwise;
}

static void text(const char *line, const char *key, const char *ends, char *into, size_t size)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, " %s=", key);
    const char *found = strstr(line, wanted);
    if (!found)
        return;
    found += strlen(wanted);
    snprintf(into, size, "%.*s", (int)strcspn(found, ends), found);
}

static int read_gpu(const char *line)
{
    int index = atoi(line);
    if (index != box.gpus || index >= MAX_GPUS)
        return -1;
    struct gpu *gpu = &box.gpu[box.gpus++];
    text(line, "name", "\n", gpu->name, sizeof gpu->name);
    text(line, "address", " \n", gpu->address, sizeof gpu->address);
    gpu->memory = (uint64_t)number(line, "memory", 0);
    gpu->used = (uint64_t)number(line, "used", 0);
    gpu->refuse_above = (uint64_t)number(line, "refuse_above", 0);
    gpu->major = (int)number(line, "major", 7);
    gpu->minor = (int)number(line, "minor", 0);
    gpu->lost_code = (int)number(line, "lost_code", 0);
    gpu->lost_after = (int)number(line, "lost_after", 0);
    gpu->l2 = number(line, "l2", 0);
    return 0;
}

static int read_path(const char *line)
{
    char name[32];
    int a, b;
    if (sscanf(line, "%31s %d %d", name, &a, &b) != 3 || kind_named(name) == KINDS)
        return -1;
    if (a < 0 || a >= MAX_GPUS || b < 0 || b >= MAX_GPUS)
        return -1;
    struct path *path = calloc(1, sizeof *path);
    path->latency = number(line, "latency_us", 0) * 1e-6;
    path->chase = number(line, "chase_ns", 0) * 1e-9;
    path->alone = 1e30;
    const char *over = strstr(line, " over=");
    for (char *at = over ? (char *)over + 6 : NULL; at && *at >= '0' && *at <= '9';) {
        int resource = (int)strtol(at, &at, 10);
        double weight = *at == '*' ? strtod(at + 1, &at) : 1;
        if (resource >= box.resources || path->hops >= MAX_HOPS)
            return -1;
        path->resource[path->hops] = resource;
        path->weight[path->hops++] = weight;
        if (box.capacity[resource] / weight < path->alone)
            path->alone = box.capacity[resource] / weight;
        at += *at == ',';
    }
    box.path[kind_named(name)][a][b] = path;
    return 0;
}

static int read_fault(const char *line)
{
    static const char *const names[] = {"wrong", "once", "fail", "late", "hang"};
    char what[16], kind[32];
    struct fault fault;
    if (sscanf(line, "%15s %31s %d %d %d %d", what, kind, &fault.a, &fault.b, &fault.code, &fault.after) != 6)
        return -1;
    fault.kind = kind_named(kind);
    for (int index = 0; index < 5; index++)
        if (!strcmp(names[index], what) && fault.kind != KINDS && box.faults < MAX_FAULTS) {
            fault.what = (enum fault_kind)index;
            box.fault[box.faults++] = fault;
            return 0;
        }
    return -1;
}

static int read_node(const char *line)
{
    char *at;
    long node = strtol(line, &at, 10);
    if (node < 0 || node >= MAX_NODES)
        return -1;
    box.nodes = (int)node + 1 > box.nodes ? (int)node + 1 : box.nodes;
    while (*at == ' ' || *at == ',') {
        long first = strtol(at + 1, &at, 10), last = *at == '-' ? strtol(at + 1, &at, 10) : first;
        for (long cpu = first; cpu <= last && cpu < MAX_CPUS; cpu++)
            box.node_of_cpu[cpu] = (signed char)node;
    }
    return 0;
}

static int read_peer(const char *line)
{
    int a, b;
    if (sscanf(line, "%d %d", &a, &b) != 2 || a < 0 || b < 0 || a >= MAX_GPUS || b >= MAX_GPUS)
        return -1;
    box.can_peer[a][b] = true;
    return 0;
}

static int read_resource(const char *line)
{
    int index;
    double rate;
    if (sscanf(line, "%d %lf", &index, &rate) != 2 || index != box.resources || index >= MAX_RESOURCES)
        return -1;
    box.capacity[box.resources++] = rate;
    return 0;
}

static int read_setting(const char *word, const char *rest)
{
    if (!strcmp(word, "driver"))
        box.driver = atoi(rest);
    else if (!strcmp(word, "init"))
        box.init_code = atoi(rest);
    else if (!strcmp(word, "polls"))
        box.polls = atoi(rest);
    else if (!strcmp(word, "depth"))
        box.depth = atoi(rest);
    else if (!strcmp(word, "start_us"))
        box.start = atof(rest) * 1e-6;
    else if (!strcmp(word, "peer_limit"))
        box.peer_limit = atoi(rest);
    else if (!strcmp(word, "memory_on"))
        box.memory_on = atoi(rest);
    else if (!strcmp(word, "memory_operations"))
        box.memory_operations = !strncmp(rest, "refused", 7) ? REFUSED : !strncmp(rest, "ignored", 7) ? IGNORED : WORK;
    else if (!strcmp(word, "spare"))
        box.spare = strtoull(rest, NULL, 10);
    else if (!strcmp(word, "lacks"))
        snprintf(box.lacks, sizeof box.lacks, " %.*s ", (int)strcspn(rest, "\n"), rest);
    else
        return -1;
    return 0;
}

static int read_line(const char *line)
{
    char word[32];
    int length = 0;
    if (sscanf(line, "%31s %n", word, &length) != 1 || word[0] == '#')
        return 0;
    const char *rest = line + length;
    if (!strcmp(word, "resource"))
        return read_resource(rest);
    if (!strcmp(word, "gpu"))
        return read_gpu(rest);
    if (!strcmp(word, "path"))
        return read_path(rest);
    if (!strcmp(word, "fault"))
        return read_fault(rest);
    if (!strcmp(word, "node"))
        return read_node(rest);
    if (!strcmp(word, "peer"))
        return read_peer(rest);
    return read_setting(word, rest);
}

/* Reads it once, in the first call. */
int read_box(void)
{
    const char *file = getenv("FAKE_CUDA_SCENARIO");
    if (box.read)
        return 0;
    FILE *in = file ? fopen(file, "r") : NULL;
    if (!in) {
        fprintf(stderr, "libcuda double: no scenario file %s (FAKE_CUDA_SCENARIO)\n", file ? file : "");
        return -1;
    }
    memset(box.node_of_cpu, -1, sizeof box.node_of_cpu);
    box.memory_on = -1;
    static char line[8192];
    int bad = 0;
    while (!bad && fgets(line, sizeof line, in))
        if (read_line(line)) {
            fprintf(stderr, "libcuda double: a line of %s is not understood: %s", file, line);
            bad = -1;
        }
    fclose(in);
    box.read = !bad;
    return bad;
}
