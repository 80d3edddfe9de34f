"""The error envelope of the OpenAI API, and which status, type and header an error gets.

Knows RequestError and HTTP. Does not know routes or the web framework.
"""

from __future__ import annotations

import math
from typing import Any

from plait.framework.errors import RequestError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
RETRY_AFTER_S = {429: 1, 503: 2}


def envelope(error: RequestError) -> dict[str, Any]:
    """Return the body that tells a client about an error."""
    body = {"message": str(error), "type": error_type(error.status), "param": error.param, "code": error.code}
    return {"error": body}


def error_type(status: int) -> str:
    """Return the `type` of a status: what a client's exception class is chosen by."""
    return _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def error_headers(error: RequestError) -> dict[str, str]:
    """Return the headers that go with an error."""
    wait_s = RETRY_AFTER_S.get(error.status)
    return {} if wait_s is None else {"Retry-After": str(math.ceil(wait_s))}


def internal_error(request_id: str) -> RequestError:
    """What a client hears of an unexpected exception; the log has the rest under the same id."""
    return RequestError(
        f"internal error: the server failed on this request; the log of the server says why, under id {request_id}.",
        status=500,
    )


def unsupported(param: str, found: object, what: str = "is known but not available yet") -> RequestError:
    """The refusal of a field that the API knows and plait does not have."""
    return RequestError(f"{param}: {shown(found)} {what}. leave it out.", param=param, code="unsupported_parameter")


def shown(value: object) -> str:
    """Return a value as an error message shows it: on one line and not for pages."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
