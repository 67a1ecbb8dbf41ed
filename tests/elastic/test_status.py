"""Asking a coordinator for its state, and what a worker that joins needs of it."""

import threading

import pytest

from paceline.cli import main
from paceline.cluster.launchers.local import free_port
from paceline.elastic.coordinator import Coordinator
from paceline.elastic.launch import CHOICES, FOLDER
from paceline.elastic.protocol import Group, Registry
from paceline.elastic.status import TOKEN, _checked, ask, contact_of, environment_of, token_of
from paceline.elastic.view import summary_line
from paceline.errors import PeerLost, WrongCommand


class Job:
    """A coordinator that answers while somebody asks from another thread; its journal belongs to this thread."""

    def __init__(self, folder):
        self.folder = folder
        self.coordinator = Coordinator(folder, Registry(start=3))
        self.address, self.token = (folder / "address").read_text().strip(), (folder / "token").read_text()

    def ask(self, token):
        results = []

        def act():
            try:
                results.append(ask(self.address, token))
            except Exception as problem:
                results.append(problem)

        thread = threading.Thread(target=act)
        thread.start()
        while thread.is_alive():
            self.coordinator.turn(0.01)
        thread.join()
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0]


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path / "job")
    made.coordinator._registry.group = Group(2, ("a", "b"), 7)
    made.coordinator._registry.watermark = 9
    made.coordinator.journal.note({"at": 1.0, "what": "died", "member": "c", "generation": 1})
    yield made
    made.coordinator.close()


def test_the_state_of_a_job_goes_to_those_who_show_the_token(job):
    state = job.ask(job.token)
    assert (state["generation"], state["members"], state["steps"], state["start"]) == (2, ["a", "b"], 9, 3)
    assert [line["what"] for line in state["incidents"]] == ["died"]
    assert summary_line(state) == "generation 2, 2 members, 9 steps committed"
    assert job.token not in str(state)


def test_a_wrong_token_is_refused(job):
    with pytest.raises(WrongCommand, match="refused the token"):
        job.ask("wrong")
    assert job.coordinator.refused == 1


def test_a_joiner_gets_what_the_launcher_gives_its_workers(job):
    (job.folder / CHOICES).write_text('{"membership": "elastic"}')
    state = job.ask(job.token)
    contact = contact_of(state, "127.0.0.1:1", job.token)
    environ = environment_of(state, contact, job.token, {"PATH": "/bin", TOKEN: job.token})
    assert (environ[FOLDER], environ["RANK"], environ["WORLD_SIZE"]) == (str(job.folder), "5", "3")
    assert environ["PACELINE_CHOICES"] == '{"membership": "elastic"}'
    assert TOKEN not in environ


def test_a_folder_that_is_not_of_this_job_is_refused_unless_data_travels_over_tcp(tmp_path):
    state = {"folder": str(tmp_path / "elsewhere"), "rule": "shm", "start": 2, "members": [], "choices": "{}"}
    with pytest.raises(WrongCommand, match="cannot be read here"):
        contact_of(state, "192.0.2.1:80", "secret")
    contact = contact_of({**state, "rule": "tcp"}, "192.0.2.1:80", "secret")
    environ = environment_of(state, contact, "secret", {TOKEN: "another"})
    assert (environ[FOLDER], environ[TOKEN]) == ("tcp://192.0.2.1:80", "secret")


def test_the_token_comes_from_a_file_or_the_environment(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    assert token_of(tmp_path / "token", {}) == "secret"
    assert token_of(None, {TOKEN: "secret"}) == "secret"
    with pytest.raises(WrongCommand, match="no token"):
        token_of(None, {})


@pytest.mark.parametrize("odd", [{"start": 0}, {"start": None}, {"finished": 1}, {"finished": None}, {"rule": "x"}])
def test_an_answer_that_is_no_status_is_refused(job, odd):
    state = job.ask(job.token)
    assert _checked(state, job.address) is state
    with pytest.raises(WrongCommand, match="its answer is no status"):
        _checked({**state, **odd}, job.address)


def test_an_address_where_nobody_listens_is_refused():
    with pytest.raises(PeerLost, match="no job at"):
        ask(f"127.0.0.1:{free_port()}", "token")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["join", "127.0.0.1:80"], "nothing to start"),
        (["join", "127.0.0.1:80", "--", "no-such-program"], "there is no such program"),
        (["join", "nonsense", "--", "true"], "an address is HOST:PORT"),
        (["watch", "nonsense"], "an address is HOST:PORT"),
    ],
)
def test_a_wrong_command_is_refused(words, text, capsys, monkeypatch):
    monkeypatch.setenv(TOKEN, "secret")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert text in shown
    assert "secret" not in shown


def test_a_restarted_coordinator_keeps_its_address(tmp_path):
    first = Coordinator(tmp_path, Registry(start=1))
    address = (tmp_path / "address").read_text()
    first.close()
    second = Coordinator(tmp_path, Registry(start=1))
    assert (tmp_path / "address").read_text() == address
    second.close()
