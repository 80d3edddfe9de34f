"""What a server is told at its start, checked. Knows no sockets, models or routes."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.framework.errors import ConfigError

MAX_BODY_BYTES = 100 * 2**20
WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True)
class ServeSettings:
    """One server.

    model            alias, .gguf file or folder
    options          options of the engine by name, as `LLM` takes them
    model_name       what clients call the model; None: the alias, or the file's name without its ending
    max_queue_size   requests that may wait beyond those in the batch
    max_body_bytes   larger request bodies are refused with 413
    drain_timeout_s  seconds that running requests get after SIGTERM
    api_keys         any of them opens the server; none: no key is asked for
    allowed_hosts    Host headers accepted besides the loopback ones; "*" accepts any
    cors_origins     foreign web pages that may call; "*" allows any
    insecure         listen beyond this machine without a key
    version          what /version says
    ping_s           a silent stream sends a comment this often

    Raises: ConfigError for what does not go together.
    """

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    options: Mapping[str, Any] = field(default_factory=dict)
    model_name: str | None = None
    max_queue_size: int = 256
    max_body_bytes: int = MAX_BODY_BYTES
    drain_timeout_s: float = 30.0
    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    insecure: bool = False
    version: str = "unknown"
    ping_s: float = 15.0

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name}: {getattr(self, name)}; expected {low:g} to {high:g}.")
        for key in self.api_keys:
            if not key.strip() or not key.isascii() or not key.isprintable():
                raise ConfigError("api_key: empty or not printable ASCII; expected a word without line breaks.")
        if not is_loopback(self.host) and not self.api_keys and not self.insecure:
            raise ConfigError(
                f"host: {self.host!r} lets other machines in and no key is asked for. "
                "give --api-key, or --insecure if that is meant."
            )

    @property
    def served_name(self) -> str:
        """The model's name in requests and answers."""
        name = Path(self.model).name.partition("?")[0].removesuffix(".gguf")
        return self.model_name or name or self.model

    @property
    def accepted_hosts(self) -> tuple[str, ...]:
        """Names that a Host header may say besides the loopback ones."""
        bound = () if self.host in WILDCARDS else (self.host.lower(),)
        return bound + tuple(name.lower() for name in self.allowed_hosts)


_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "max_queue_size": (0, 2**20),
    "max_body_bytes": (1, 2**40),
    "drain_timeout_s": (0, 24 * 3600),
    "ping_s": (0.01, 3600),
}


def is_loopback(host: str) -> bool:
    """Say whether a host name or address means this machine alone."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
