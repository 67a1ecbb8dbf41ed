"""Where a member finds its coordinator: a folder of this host, or an address of another host with the job's token."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.elastic.frames import FINISHED, parse_address
from paceline.errors import PeerLost, WrongCommand

FAR = "tcp://"  # before an address, where a folder is expected


@dataclass(frozen=True)
class Contact:
    """`folder` holds address and token. Without one, `fixed` is the address; a restarted coordinator keeps its port."""

    token: str
    folder: Path | None = None
    fixed: str = ""

    @classmethod
    def in_folder(cls, folder: Path) -> Contact:
        return cls((folder / "token").read_text(), folder)

    @classmethod
    def parse(cls, text: str, environ: Mapping[str, str]) -> Contact:
        """Parse a folder, or tcp://HOST:PORT with the token in PACELINE_TOKEN."""
        if not text.startswith(FAR):
            return cls.in_folder(Path(text))
        parse_address(text.removeprefix(FAR))
        if not environ.get("PACELINE_TOKEN"):
            raise WrongCommand(f"the job at {text}", why="PACELINE_TOKEN holds no token")
        return cls(environ["PACELINE_TOKEN"], None, text.removeprefix(FAR))

    @property
    def address(self) -> str:
        """Return HOST:PORT. Raises OSError while there is no coordinator in the folder."""
        return self.fixed if self.folder is None else (self.folder / "address").read_text()

    def host(self, seconds: float = 60.0) -> str:
        """Return the host of the coordinator; wait for its first start."""
        limit = time.monotonic() + seconds
        while True:
            try:
                return parse_address(self.address)[0]
            except OSError:
                if time.monotonic() > limit or self.gone:
                    raise PeerLost("the job has no coordinator", why=f"none began within {seconds:.0f} s") from None
                time.sleep(0.01)

    @property
    def finished(self) -> bool:
        return self.folder is not None and (self.folder / FINISHED).exists()

    @property
    def gone(self) -> bool:
        """Return whether the job has ended together with its folder."""
        return self.folder is not None and not self.folder.exists()
