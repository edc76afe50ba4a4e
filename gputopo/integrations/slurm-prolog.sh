#!/bin/sh
# Slurm prolog: keep a job off a node whose GPUs have errors.
#
#   install -m 755 slurm-prolog.sh /etc/slurm/prolog.d/50-gputopo.sh
#   slurm.conf:  Prolog=/etc/slurm/prolog.d/*
#                PrologFlags=Alloc          # run it on all nodes of a job before the job starts
#                PrologEpilogTimeout=120
#
# If a prolog fails, Slurm drains the node and requeues the job. The job is held, unless SchedulerParameters
# has nohold_on_prolog_fail.
# The prolog fails only for a finding of severity error (1), a broken driver (3), or a node without GPUs.
# It does not fail if gputopo is missing, does not end in time, or has a bug.

PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin} # slurmd sets none
export PATH
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0 # a job without GPUs

GPUTOPO=${GPUTOPO:-/opt/gputopo/bin/gputopo}
[ -x "$GPUTOPO" ] || exit 0

report=$(timeout 90 "$GPUTOPO" inspect --fail-on error 2>&1)
code=$?
case $code:$report in
1:* | 3:* | "0:No NVIDIA device"*)
    printf '%s\n' "$report" | logger -t gputopo-prolog # journalctl -t gputopo-prolog
    exit 1
    ;;
esac
exit 0
