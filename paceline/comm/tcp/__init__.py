"""Collectives over paceline's own TCP sockets. Connections are authenticated by a token and can be aborted."""
