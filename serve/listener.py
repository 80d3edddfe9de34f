"""The listening socket. Imports nothing slow, so that a busy port is told before anything is loaded."""

from __future__ import annotations

import socket

from plait.framework.errors import ConfigError
from plait.serve.settings import WILDCARDS

BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """Take the port, before anything that is slow.

    Raises: ConfigError for a host that has no address; OSError naming host and port when it is taken.
    """
    try:
        family, _, _, _, where = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"host: {host!r} has no address ({error}); expected a name or address of this machine."
        ) from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(f"{host}:{port}: {error.strerror}. choose another with --port, 0 takes a free one.") from None
    listener.setblocking(False)
    return listener


def address(listener: socket.socket) -> str:
    """host:port as a client on this machine writes it."""
    host, port = listener.getsockname()[:2]
    host = "127.0.0.1" if host in WILDCARDS else f"[{host}]" if ":" in host else host
    return f"{host}:{port}"
