"""Devices by name: "cpu", "cuda:0", "hip:0". Only the host is driven here; the others say what is missing."""

from __future__ import annotations

from dataclasses import dataclass

from plait.framework.errors import DeviceError

_KINDS = ("cpu", "cuda", "hip")


@dataclass(frozen=True)
class Device:
    """One place where tensors live."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    @property
    def is_host_unified(self) -> bool:
        """Whether the host reads this device's memory directly."""
        return self.kind == "cpu"


CPU = Device("cpu")


def as_device(value: Device | str | None) -> Device:
    """Read a device.

    Raises: DeviceError for a name that is no device, or a device that this build does not drive.
    """
    if value is None:
        return CPU
    device = value if isinstance(value, Device) else _parse(value)
    if device.kind != "cpu":
        raise DeviceError(f"device: {device} is not available here; this build runs on 'cpu'.")
    return device


def _parse(text: str) -> Device:
    kind, _, index = text.partition(":")
    if kind not in _KINDS or (index and not index.isdigit()):
        raise DeviceError(f"device: {text!r} is not a device; expected 'cpu', 'cuda:N' or 'hip:N'.")
    return Device(kind, int(index or 0))
