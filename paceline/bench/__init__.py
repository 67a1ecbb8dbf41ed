"""Measuring: clocks, statistics, breakdown, environment. No torch, no other family."""
