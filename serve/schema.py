"""Request bodies: bytes to checked models, or a RequestError that names the field.

A null equals the field's default. A field that the API knows and plait does not have yet is refused unless its value
asks for nothing (`tools: []`); an unknown field is refused.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from plait.framework.errors import RequestError
from plait.pipelines.sampling import MAX_STOP_STRINGS, SamplingParams
from plait.serve.errors import shown, unsupported

MAX_CHOICES = 128
LEGACY_MAX_TOKENS = 16


class Body(BaseModel):
    """A JSON object. `unbuilt` maps the fields that plait does not have yet to the values that ask for nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
    unbuilt: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {}
        for name, item in value.items():
            if name in cls.unbuilt:
                _refuse_unless_neutral(name, item, cls.unbuilt[name])
            elif item is not None:
                kept[name] = item
        return kept


def _refuse_unless_neutral(name: str, found: Any, neutral: tuple[Any, ...]) -> None:
    # NOTE: False == 0 and True == 1, which are not the same request.
    if found is not None and not any(
        found == value and isinstance(found, bool) == isinstance(value, bool) for value in neutral
    ):
        raise unsupported(name, found)


def _stop_strings(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOP_STRINGS), BeforeValidator(_stop_strings)
]


class StreamOptions(Body):
    """What a stream carries besides text."""

    unbuilt: ClassVar[Mapping[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}
    include_usage: bool = False


_UNBUILT: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "stop_token_ids": ([],),
    "response_format": ({"type": "text"},),
    "cache_salt": (),
    "target_endpoint": (),
    "dkv_cache_hint": (),
}


class GenerationRequest(Body):
    """What both text routes take."""

    model: str
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(-1, ge=-1)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stop = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    # Who asks, for the client's own books; it changes no answer.
    user: str | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options: given without stream: true. leave it out.", param="stream_options")
        return self

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, choice: int, max_tokens: int, vocab_size: int) -> SamplingParams:
        """The sampling of one choice. Choice 0 has the request's seed, the others seeds derived from it."""
        seed = self.seed
        if seed is not None and choice:
            seed = (seed + choice * 0x9E3779B97F4A7C15) % 2**63
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=min(self.top_k, vocab_size),
            top_p=self.top_p,
            seed=seed,
            stop=tuple(self.stop),
            ignore_eos=self.ignore_eos,
        )


def _text_of(content: Any) -> Any:
    """Join a message's text parts with line breaks, which is what chat templates without parts expect."""
    if not isinstance(content, list):
        return content
    if not content:
        raise RequestError("no parts; expected a text or a list of text parts.")
    return "\n".join(_part_text(part, str(index)) for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise RequestError(f"{shown(part)}; expected an object with a type.", param=where)
    if part["type"] != "text":
        raise unsupported(f"{where}.type", part["type"])
    if set(part) != {"type", "text"} or not isinstance(part["text"], str):
        raise RequestError(f"{shown(part)}; expected type and text, nothing else.", param=where)
    return part["text"]


def _known_role(role: Any) -> Any:
    if role in ("tool", "function"):
        raise unsupported("", role)
    return role


class Message(Body):
    """One message of a conversation."""

    unbuilt: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tool_calls": ([],),
        "tool_call_id": (),
        "function_call": (),
        "audio": (),
        "refusal": (),
        "annotations": ([],),
        "reasoning_content": (),
    }
    role: Annotated[Literal["system", "developer", "user", "assistant"], BeforeValidator(_known_role)]
    content: Annotated[str | None, BeforeValidator(_text_of)] = None
    name: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise RequestError(f"null; expected text, because the role is {self.role}.", param="content")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates read it; they know no developer."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.content or ""} | ({"name": self.name} if self.name else {})


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    unbuilt: ClassVar[Mapping[str, tuple[Any, ...]]] = _UNBUILT | {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "reasoning_effort": ("none",),
        "reasoning": (),
        "reasoning_split": (False,),
        "thinking": (),
        "thinking_temperature": (),
        "chat_template_kwargs": ({},),
        "prompt_tokens": (),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "verbosity": (),
        "moderation": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
    }
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    # For the client's own books, like `user`.
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise RequestError(
                f"max_completion_tokens: {new} beside max_tokens {old}; expected one limit. leave one out.",
                param="max_completion_tokens",
            )
        return self

    @property
    def limit(self) -> int | None:
        """Tokens of the answer; None: what the context leaves."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


_PROMPTS = "a text, a list of texts, a list of token ids, or a list of such lists"


def _prompts(value: Any) -> list[str | list[int]]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise RequestError(f"{shown(value)}; expected {_PROMPTS}.")
    if _are_ids(value):
        return [value]
    if all(isinstance(item, str) for item in value) or all(isinstance(item, list) and _are_ids(item) for item in value):
        return value
    raise RequestError(f"a list of mixed or unfit items; expected {_PROMPTS}.")


def _are_ids(items: Sequence[Any]) -> bool:
    return all(type(item) is int for item in items)


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    unbuilt: ClassVar[Mapping[str, tuple[Any, ...]]] = _UNBUILT | {
        "logprobs": (),
        "echo": (False,),
        "suffix": ("",),
        "best_of": (1,),
    }
    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts)]
    max_tokens: int = Field(LEGACY_MAX_TOKENS, ge=0)

    @property
    def limit(self) -> int:
        """Tokens of the answer."""
        return self.max_tokens


B = TypeVar("B", bound=Body)


def parse(kind: type[B], body: bytes) -> B:
    """Read a request body.

    Raises: RequestError for what is not JSON, not an object, or not a request of that kind.
    """
    value = read_json(body)
    if not isinstance(value, dict):
        raise RequestError(f"body: {shown(value)}; expected a JSON object.")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        _raise_first(kind, error)


def read_json(body: bytes) -> Any:
    """Read JSON as strictly as the standard has it: UTF-8, no NaN, no key twice.

    Raises: RequestError saying what is wrong.
    """
    if not body:
        raise RequestError("body: empty; expected a JSON object.")
    try:
        value = json.loads(body.decode(), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except RequestError:
        raise
    except UnicodeDecodeError as error:
        raise RequestError(f"body: byte {error.start} is not UTF-8; expected UTF-8 text.") from None
    except UnicodeEncodeError:
        raise RequestError("body: an escape is half of a surrogate pair; expected text that UTF-8 can spell.") from None
    except RecursionError:
        raise RequestError("body: nested too deeply; expected a request.") from None
    except ValueError as error:
        raise RequestError(f"body: not valid JSON ({error}).") from None
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise RequestError(f"body: the key {shown(twice)} stands twice in an object; expected each key once.")
    return found


def _no_constant(name: str) -> NoReturn:
    raise RequestError(f"body: {name} is not JSON; expected a finite number.")


def _raise_first(kind: type[Body], error: ValidationError) -> NoReturn:
    """Say the first thing that is wrong, with the dotted path of the field."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, RequestError):
        param = ".".join([*path, *([cause.param] if cause.param else [])])
        message = str(cause).removeprefix(f"{cause.param or ''}: ")
        raise RequestError(f"{param}: {message}", status=cause.status, param=param or None, code=cause.code) from None
    param = ".".join(path)
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path[-1], kind.model_fields, n=1)
        hint = f" did you mean {near[0]}?" if near else " leave it out."
        raise RequestError(f"{param}: not a field of this request.{hint}", param=param) from None
    if first["type"] == "missing":
        raise RequestError(f"{param}: missing; expected a value.", param=param) from None
    raise RequestError(f"{param}: {shown(first['input'])}; {_lower(first['msg'])}.", param=param) from None


def _lower(text: str) -> str:
    return (text[:1].lower() + text[1:]).removesuffix(".").replace("input should", "it should")
