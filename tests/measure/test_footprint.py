"""What a process tells about its memory; asked in processes of their own, because a peak never falls."""

import subprocess
import sys

HOLD = """
import subprocess, sys
from paceline.measure.footprint import peak_rss, pss
held = bytearray(SIZE)
for place in range(0, len(held), 4096):
    held[place] = 1
"""


def said(code, size=128 << 20):
    done = subprocess.run(
        [sys.executable, "-c", HOLD.replace("SIZE", str(size)) + code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_the_peak_keeps_what_was_freed_before_anybody_looked():
    share, peak = said("del held; print(pss(), peak_rss())")
    assert share < 128 << 20 <= peak


def test_the_peak_is_not_that_of_the_process_that_started_this_one():
    child = "'from paceline.measure.footprint import peak_rss; print(peak_rss())'"
    [peak] = said(f"subprocess.run([sys.executable, '-c', {child}], check=True)")
    assert 1 << 20 < peak < 128 << 20


def test_no_share_is_larger_than_the_peak():
    share, peak = said("print(pss(), peak_rss())", size=1 << 20)
    assert 1 << 20 <= share <= peak
