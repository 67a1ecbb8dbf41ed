"""The cause of a failure is found in a worker's output; its last line is seldom the cause."""

import subprocess
import sys

import pytest

from paceline.cluster.cause import KEPT, LONGEST, Tail, cause_in, shortened

RAISED = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
    ~~~~^^
  File "train.py", line 1, in step
    raise ValueError("a bad batch")
ValueError: a bad batch
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("loading\n", "\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace\n"),
        ("\r 10%|#    | 1/10\r 20%|##   | 2/10", "\r 20%|##   | 2/10 [00:01<00:04]\n"),
        ("\x1b[32mgreen\x1b[0m\n", "\x1b[31mgoodbye\x1b[0m\n"),
        (
            "",
            "Exception ignored in: <stdout>\nTraceback (most recent call last):\nBrokenPipeError: [Errno 32]\n",
        ),
    ],
    ids=["alone", "advice", "progress bar", "colors", "ignored at exit"],
)
def test_the_exception_of_the_last_traceback_is_the_cause(before, after):
    assert cause_in(before + RAISED + after) == "ValueError: a bad batch"


def test_a_bar_like_tqdm_does_not_hide_the_exception_of_a_real_program():
    code = """
import atexit, sys
def bar(n):
    sys.stderr.write(f"\\r{10 * n}%|{'#' * n:10}| {n}/10")
atexit.register(lambda: (bar(4), sys.stderr.write("\\n")))
for n in range(4):
    bar(n)
raise KeyError("label")
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("4/10")
    assert cause_in(done.stderr) == "KeyError: 'label'"


def test_of_chained_exceptions_the_last_one_counts():
    chained = "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
    first = 'Traceback (most recent call last):\n  File "a.py", line 1\n'
    assert cause_in(first + chained + RAISED) == "ValueError: a bad batch"


def test_an_exception_that_only_announces_takes_its_next_line_along():
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1\nexc.Failed: backend raised:\nNoCompiler: no g++\n'
    )
    assert cause_in(text) == "exc.Failed: backend raised: NoCompiler: no g++"


def test_an_exception_inside_a_group_is_found():
    text = """  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  |     raise ExceptionGroup("two", [ValueError("one")])
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError: one
    +------------------------------------
"""
    assert cause_in(text) == "ExceptionGroup: two (1 sub-exception)"


def test_an_uncaught_exception_of_native_code_is_named():
    text = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail] 4 vs 8\nbye\n"
    )
    assert cause_in(text) == "gloo::EnforceNotMet: [enforce fail] 4 vs 8"


def test_without_a_traceback_the_last_line_counts_as_a_terminal_shows_it():
    assert cause_in("usage: x\nx: error: no such flag\n\n") == "x: error: no such flag"
    assert cause_in("\r 10%\r 20%\n") == "20%"
    assert cause_in("") == ""


def test_a_traceback_on_stdout_counts_where_stderr_has_none():
    assert cause_in("bye\n", RAISED) == "ValueError: a bad batch"


def test_half_a_traceback_does_not_hide_the_one_before():
    assert cause_in(RAISED + 'Traceback (most recent call last):\n  File "a.py"') == "ValueError: a bad batch"


def test_a_cause_is_one_paragraph_of_some_length():
    assert shortened("Unsupported: x\n  detail\n\nSet TORCHDYNAMO_VERBOSE=1") == "Unsupported: x\n  detail"
    assert len(shortened("x" * 10_000)) == LONGEST + 4


def test_a_tail_keeps_the_end_and_no_more():
    tail = Tail()
    for _ in range(50):
        tail.add(b"x" * 10_000)
    tail.add(b"end")
    assert len(tail.text) == KEPT
    assert tail.text.endswith("xend")
