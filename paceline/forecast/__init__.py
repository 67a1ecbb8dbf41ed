"""How a job would run on machines that are not here: fabric, timeline, calibration, certificate, advice."""
