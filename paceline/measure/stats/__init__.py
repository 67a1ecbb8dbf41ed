"""Intervals, ratios and steadiness of measured numbers."""
