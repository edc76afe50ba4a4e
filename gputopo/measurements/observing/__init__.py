"""Observations on a study, by theme: sentences with the numbers behind them."""
