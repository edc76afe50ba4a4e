"""The flags of tf_cnn_benchmarks and tensorpack, and their options here: the tables of `aliases`.

Their meaning is that of tensorflow/benchmarks, scripts/tf_cnn_benchmarks/benchmark_cnn.py (--help), and of
tensorpack/benchmarks, other-wrappers and ResNet-MultiGPU/resnet-multigpu.py.
"""

# Flags that are another word for an option that takes a value.
RENAMED = {
    "--all-reduce-spec": "--all-reduce",
    "--init-learning-rate": "--learning-rate",
    "--fp16-loss-scale": "--loss-scale",
    "--train-dir": "--checkpoints",
    "--save-model-steps": "--checkpoint-steps",
    "--max-ckpts-to-keep": "--keep-checkpoints",
    "--datasets-prefetch-buffer-size": "--prefetch",
    "--per-gpu-batch-size": "--batch-size",
    "--batch": "--batch-size",
    "--tf-random-seed": "--seed",
    "--gpu": "--gpus",
    "--worker-hosts": "--hosts",
    "--task-index": "--node-rank",
    "--nnodes": "--num-hosts",
}
# Flags that are yes or no there, and the options here: for yes, for no.
SWITCHES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "--use-fp16": (("--precision", "fp16"), ()),
    "--fp16-enable-auto-loss-scale": (("--loss-scale", "auto"), ()),
    "--compact-gradient-transfer": (("--fp16-transfer",), ()),
    "--xla-compile": (("--xla",), ()),
    "--use-xla-compile": (("--xla",), ()),
    "--use-nccl": (("--all-reduce", "nccl"), ()),
    "--hierarchical-copy": (("--all-reduce", "hierarchical"), ()),
    "--datasets-use-caching": (("--cache", "raw"), ()),
    "--cross-replica-sync": ((), ("--async",)),
}
# Own flags that are short for an option with a value.
SHORT_FOR = {
    "--forward-only": ("--task", "forward"),
    "--eval": ("--task", "eval"),
    "--input-only": ("--task", "input"),
    "--json": ("--format", "json"),
}
# Where variables are, or with copies on every device where their gradients are added.
PARAMETER_DEVICE = "--local-parameter-device"
PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "parameter_server": {"cpu": ("--ps", "cpu"), "gpu": ("--ps", "gpu:spread")},
    "replicated": {"cpu": ("--all-reduce", "pscpu"), "gpu": ("--all-reduce", "copy")},
    "independent": {"cpu": (), "gpu": ()},
}
# Values of a flag with another name here.
VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    PARAMETER_DEVICE: PLACES["parameter_server"],
    "--fake-location": {
        "gpu": ("--data-source", "gpu"),
        "cpu": ("--data-source", "cpu"),
        "python": ("--data-source", "python", "--feed", "queue"),
        "python-queue": ("--data-source", "python", "--feed", "queue"),
        "python-dataset": ("--data-source", "python", "--feed", "dataset"),
    },
    "--job-name": {"worker": ()},
}
# Values of such a flag that gputopo does not have, and what to do instead.
REFUSED_VALUES = {
    ("--job-name", "ps"): "start no ps: the hosts that train store the variables",
    ("--job-name", "controller"): "start no controller: the host of rank 0 is",
}
# Flags that gputopo does not have, by the hint what to do instead.
_ELSEWHERE = {
    "give the steps to profile: --trace 10": ("trace_file", "use_chrome_trace_format", "tfprof_file"),
    "leave it out: events.jsonl holds every step's time, and any average can be taken of them": (
        "display_perf_ewma",
    ),
    "leave it out, or add --cpu for CPU devices (as many as --num-gpus says)": ("device", "horovod_device"),
    "leave it out: variables stay fp32; --precision fp16 computes in fp16": ("fp16_vars",),
    "leave it out: the hosts that train store the variables": ("ps_hosts",),
    "leave it out: the host of rank 0 is the controller": ("controller_host",),
    "leave it out: hosts are connected by gRPC": ("server_protocol",),
    "leave it out: hosts wait for one another in each step": ("use_python32_barrier",),
    "name all hosts by --hosts LIST, and this one by --node-rank N": ("job",),
    "leave it out: --all-reduce hierarchical gets its groups from the machine's links": ("network_topology",),
    "leave it out: examples come by tf.data, --prefetch N batches ahead of the step": (
        *("use_datasets", "datasets_use_prefetch", "batch_group_size", "input_preprocessor"),
        *("datasets_parallel_interleave_cycle_length", "datasets_parallel_interleave_prefetch"),
        *("datasets_sloppy_parallel_interleave", "multi_device_iterator_max_buffer_size"),
        *("fuse_decode_and_crop", "datasets_repeat_cached_sample"),
    ),
    "leave it out: a run takes the CPUs and memory near its GPUs unless --no-affinity is given": (
        "use_numa_affinity",
    ),
    "leave it out: colours are distorted without YIQ, which TensorFlow 2 lacks": ("distort_color_in_yiq",),
    "leave it out: it is always so in TensorFlow 2": ("use_resource_vars", "use_tf_layers"),
    "leave it out: TensorFlow optimizes the graph of a step by itself": (
        *("enable_optimizations", "rewriter_config", "allreduce_merge_scope", "compute_lr_on_cpu"),
        "freeze_when_forward_only",
    ),
    "leave it out: gputopo does not use TensorRT; --forward-only --xla compiles the forward pass": (
        *("trt_mode", "trt_max_workspace_size_bytes"),
    ),
    "leave it out: the loss shown is without weight decay, whose gradient is added beside it": (
        *("loss_type_to_report", "single_l2_loss_op"),
    ),
    "leave it out: it belongs to models or rules that gputopo does not have": (
        *("collect_eval_results_async", "sparse_to_dense_grads", "ml_perf", "ml_perf_compliance_logging"),
    ),
    "give the rate itself: --learning-rate X": ("resnet_base_lr",),
    "trace the ops of each device: --trace STEPS": (
        *("graph_file", "partitioned_graph_file_prefix", "debugger"),
    ),
    "time reductions alone: gputopo bench-reduction --model NAME": ("iters_per_step",),
    "leave it out: TensorFlow brings its own oneDNN; --num-intra-threads bounds its threads": (
        *("mkl", "kmp_blocktime", "kmp_affinity", "kmp_settings"),
    ),
    "leave it out: GPU memory is allocated as needed, up to --gpu-memory-limit": (
        *("allow_growth", "gpu_memory_frac_for_testing", "use_unified_memory", "force_gpu_compatible"),
        *("gpu_kt_max_interval", "gpu_kt_max_bytes", "gpu_kt_max_pending", "timestamped_allocator"),
    ),
    "give it in steps: --learning-rate-schedule piecewise:30=0.1,60=0.01": (
        *("piecewise_learning_rate_schedule", "num_epochs_per_decay", "learning_rate_decay_factor"),
        "minimum_learning_rate",
    ),
    "give it in steps: --learning-rate-warmup-steps N": ("num_learning_rate_warmup_epochs",),
    "give it in steps: --num-batches N": ("num_epochs", "num_eval_batches", "num_eval_epochs"),
    "give it in steps: --checkpoint-steps N": ("save_model_secs",),
    "leave it out: the scale doubles after 1000 good steps": ("fp16_inc_loss_scale_every_n",),
    "train with --checkpoints DIR, then judge them with --eval": (
        *("eval_interval_secs", "eval_dir", "eval_batch_size", "stop_at_top_1_accuracy"),
        *("eval_during_training_every_n_steps", "eval_during_training_every_n_epochs"),
        *("eval_during_training_at_specified_steps", "eval_during_training_at_specified_epochs"),
    ),
    "name a folder of checkpoints and go on from it: --checkpoints DIR --resume": (
        *("backbone_model_path", "load", "reset_optimizer_state"),
    ),
    "name a folder for TensorBoard: --tensorboard DIR": ("summary_verbosity", "save_summaries_steps"),
    "name the run's folder with --output DIR: it holds all results as JSON": (
        *("benchmark_log_dir", "benchmark_test_id", "result_storage"),
    ),
    "choose them with --gpus LIST": ("gpu_indices",),
    "set it in the environment: TF_ENABLE_WINOGRAD_NONFUSED=1": ("winograd_nonfused",),
    "set it in the environment: TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT=1": ("batchnorm_persistent",),
    "set it in the environment: TF_AUTOTUNE_THRESHOLD=N": ("autotune_threshold",),
    "set it in the environment: TF_SYNC_ON_FINISH=1": ("sync_on_finish",),
}
REFUSED = {f"--{flag.replace('_', '-')}": hint for hint, flags in _ELSEWHERE.items() for flag in flags}
