"""Collectives over TCP sockets of our own: tokened, framed, stamped with a generation, and abortable."""
