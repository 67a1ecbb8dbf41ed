import os
import socket
import subprocess
import sys
from inspect import Parameter, signature
from pathlib import Path

import pytest

from paceline.cluster.launchers import MENU
from paceline.cluster.launchers.local import Local, free_port, prepare
from paceline.errors import WrongCommand

START = ["argv", "workers", "folder", "environ", "prefix", "on_line", "servers", "seats"]


def start(folder, argv, workers=1, environ=os.environ):
    return Local().start(argv, workers=workers, folder=folder, environ=environ, prefix=True)


def test_the_menu_makes_what_it_lists():
    assert [str(MENU.make(name)) for name in MENU.names()] == list(MENU.names())


def test_the_folder_is_for_the_user_alone(tmp_path):
    folder = prepare(tmp_path / "a" / "b", 1)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "store").stat().st_mode & 0o777 == 0o700


def test_what_a_former_job_left_is_not_seen(tmp_path):
    prepare(tmp_path, 2)
    (tmp_path / "store" / "address.0").write_text("old")
    (tmp_path / "rank-1.failed.json").write_text("{}")
    (tmp_path / "rank-1.call").write_text("barrier")
    (tmp_path / "run.json").write_text("{}")
    prepare(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "store"]
    assert not list((tmp_path / "store").iterdir())


def test_a_free_port_can_be_listened_on():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()


def test_nothing_to_start_is_refused(tmp_path):
    with pytest.raises(WrongCommand, match="at least one worker"):
        start(tmp_path, ["true"], workers=0)
    with pytest.raises(WrongCommand, match="nothing to start"):
        start(tmp_path, [])


@pytest.mark.parametrize("name", MENU.names())
def test_every_launcher_has_the_protocol_and_is_in_its_concept_page(name):
    member = MENU.make(name)
    wanted = {"hosts": ["environ"], "check": ["seats"], "start": START}
    for method, parameters in wanted.items():
        known = signature(getattr(member, method)).parameters
        assert [*known][: len(parameters)] == parameters, method
        assert all(known[name].default is not Parameter.empty for name in [*known][len(parameters) :]), method
    page = Path(__file__).parents[3] / "docs" / "concepts" / "launcher.md"
    assert f"| `{name}` |" in page.read_text()


@pytest.mark.multi
def test_a_command_that_does_not_exist_is_refused(tmp_path):
    script = tmp_path / "script"
    script.write_text("echo no right to run")
    with pytest.raises(WrongCommand, match=r"no-such-command cannot be started: No such file"):
        start(tmp_path, ["no-such-command"], workers=2)
    with pytest.raises(WrongCommand, match="Permission denied"):
        start(tmp_path, [str(script)])


@pytest.mark.multi
def test_the_launcher_loads_no_torch():
    code = "import sys, paceline.cluster.launchers.local; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
