"""The state of a job as text, JSON and a page."""

import json
import threading
import urllib.error
import urllib.request

import pytest

from paceline.elastic.view import detail_lines, redrawn, server, sparkline

STATE = {
    "kind": "status",
    "folder": "/secret/place",
    "pid": 1,
    "generation": 2,
    "members": ["a", "b"],
    "waiting": 1,
    "steps": 40,
    "finished": False,
    "rate": [[1.0, 10.0, 2], [2.0, 20.0, 2]],
    "parts": {"steps": 10, "compute": 0.3, "wire": 0.05},
    "incidents": [
        {"at": 1.0, "what": "died", "member": "c", "rank": 2, "generation": 1, "how": "its connection ended",
         "seconds": 0.2, "detect": 0.01, "reconfigure": 0.09, "commit": 0.1, "shards": 3},
    ],
}  # fmt: skip


def test_a_terminal_shows_members_rate_parts_and_incidents():
    lines = detail_lines(STATE, 80)
    assert lines[0] == "generation 2, 2 members, 1 waiting, 40 steps committed"
    assert "rate 20.0 steps/s" in lines
    assert "ms per step: data 0.0, compute 30.0, pack 0.0, wire 5.0, vote 0.0, update 0.0, recover 0.0" in lines
    assert lines[-1].endswith("0.090 reconfigure, 0.100 commit), 3 shards computed again")


def test_bars_are_as_high_as_their_rate_and_fit_the_line():
    assert sparkline([0.0, 5.0, 10.0], 80) == " ▄█"
    assert len(sparkline([1.0] * 200, 78)) == 78
    assert sparkline([0.0], 10) == " "


def test_a_new_state_replaces_the_lines_of_the_last_one():
    assert redrawn(["abcdef"], 0, 3) == "abc\x1b[K\n\x1b[J"
    assert redrawn(["a", "b"], 5, 80).startswith("\x1b[5F")


@pytest.fixture
def page():
    states = [STATE]
    made = server(0, "secret", lambda: states[0])
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    made.states = states
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def get(page, path):
    address = f"http://127.0.0.1:{page.server_address[1]}{path}"
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode()


def test_the_state_goes_to_those_who_show_the_token(page):
    code, text = get(page, "/state?token=secret")
    state = json.loads(text)
    assert (code, state["steps"], state["line"]) == (200, 40, detail_lines(STATE)[0])
    assert "3 shards computed again" in state["incidents"][0]["line"]
    assert "/secret/place" not in text


@pytest.mark.parametrize("path", ["/state", "/state?token=", "/state?token=wrong", "/state?other=secret"])
def test_nobody_else_gets_it(page, path):
    code, text = get(page, path)
    assert (code, "40" in text) == (403, False)


def test_the_page_holds_no_state_and_other_addresses_nothing(page):
    code, text = get(page, "/")
    assert code == 200
    assert "secret" not in text
    assert get(page, "/etc/passwd")[0] == 404


def test_the_end_of_the_job_is_an_answer(page):
    page.states[0] = None
    assert get(page, "/state?token=secret")[0] == 410
