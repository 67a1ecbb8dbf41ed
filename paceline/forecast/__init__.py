"""Forecasts of jobs on machines that are not at hand: fabric, timeline, calibration, certificate, advice."""
