"""Readers of measured throughputs: logs of training programs, tables, folders. Text in, values out."""
