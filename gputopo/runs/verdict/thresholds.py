"""Thresholds of the verdicts."""

# Chance that a window of an even run names any device, for all comparisons together.
FALSE_ALARM = 0.001
CONFIDENCE = 1 - FALSE_ALARM
# Half of the chance is for the run as a whole, half for its parts.
WHOLE_SHARE = 0.5
# Slow: at least so much is proven. GPUs of one model differ by one or two percent as they come from the
# factory: in the 7gforce table of six GTX 1070 one at 98.83 % of the reference counts as even, one at 94.54 %
# as slow. Ours, between the two.
SLOW_PERCENT = 3.0
# Even: more than so much is excluded.
EVEN_PERCENT = 5.0
# A difference of the resolution is named with this chance.
POWER = 0.95
# Towers that do the same work on idle CPU devices read steadily up to 0.14 ms apart: the clock is read where
# tower 0 computes, and threads of other towers must be scheduled in between.
MARKS_OFFSET_S = 0.15e-3
# Under load it is more. So in steps of a few milliseconds 5 % is thread scheduling.
MARKS_RESOLUTION_S = 0.5e-3
# A part at the begin that is slower, and not longer than this share of what comes after, is a warm-up of
# the device: clocks rise, caches fill. Ours.
WARMUP_SHARE = 0.25
