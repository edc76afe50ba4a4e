/* Shared by the two files of calls. */
#ifndef GPUTOPO_CUDA_CALLS_H
#define GPUTOPO_CUDA_CALLS_H

#define CALL __attribute__((visibility("default"))) int

struct context {
    int gpu;
    int retained;
};

int enter(void);
int enter_context(int *gpu);
int leave(int code);
int gpu_of_context(const struct context *context);
int current_gpu(void);
void *or_faulty(const char *name, void *function);

#endif
