#!/bin/sh
# Nagios, Icinga or NRPE plugin: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN, as monitoring plugins do.
#
#   nrpe.cfg:  command[check_gputopo]=/usr/lib/nagios/plugins/check_gputopo.sh

GPUTOPO=${GPUTOPO:-/opt/gputopo/bin/gputopo}
if [ ! -x "$GPUTOPO" ]; then
    echo "GPUTOPO UNKNOWN: there is no program $GPUTOPO"
    exit 3
fi

recording=$(mktemp) || exit 3
trap 'rm -f "$recording"' EXIT

report=$(timeout 50 "$GPUTOPO" inspect --record "$recording" --fail-on error 2>&1)
code=$?
case $code in
0)
    # The machine is read once: warnings are looked for in the recording.
    report=$("$GPUTOPO" inspect --from "$recording" --fail-on warning 2>&1)
    [ $? -eq 1 ] && code=4
    ;;
esac
first=$(printf '%s\n' "$report" | head -n 1)
case $first in "No NVIDIA device"*) code=3 ;; esac # this plugin is for hosts with GPUs
case $code in
0) echo "GPUTOPO OK: $first" && exit 0 ;;
4) echo "GPUTOPO WARNING: $first" && exit 1 ;;
1 | 3) echo "GPUTOPO CRITICAL: $first" && exit 2 ;;
124) echo "GPUTOPO UNKNOWN: no answer within 50 s" && exit 3 ;;
*) echo "GPUTOPO UNKNOWN: $first" && exit 3 ;;
esac
