"""Request bodies: what is read, and the status, code and field of everything that is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plait.framework.errors import RequestError
from plait.serve.schema import ChatRequest, CompletionRequest, parse, read_json

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps({"model": "m", "messages": HELLO} | fields).encode())


def legacy(**fields: Any) -> CompletionRequest:
    return parse(CompletionRequest, json.dumps({"model": "m", "prompt": "Hello"} | fields).encode())


def refusal(make: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        make(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.case("S35")
@pytest.mark.parametrize("make", [chat, legacy])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", 1e12),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("frequency_penalty", 2.5),
        ("presence_penalty", 2.5),
        ("seed", 2**63),
        ("seed", "1"),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("stream", "yes"),
        ("stop", [""]),
        ("stop", ""),
        ("stop", 7),
        ("stop", ["x"] * 17),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(make: Any, field: str, value: Any) -> None:
    error = refusal(make, **{field: value})
    assert error.param is not None and error.param.partition(".")[0] == field
    assert str(error).startswith(field)


@pytest.mark.case("S35")
@pytest.mark.parametrize("make", [chat, legacy])
def test_the_edges_of_the_ranges_are_taken(make: Any) -> None:
    for field, value in (("temperature", 0), ("temperature", 1e-6), ("temperature", 2), ("top_p", 0), ("top_p", 1)):
        assert getattr(make(**{field: value}), field) == value
    assert make(top_k=10**6).sampling(0, 5, 100).top_k == 100
    assert make(stop=["x"] * 16).stop == ["x"] * 16
    assert make(seed=-(2**63)).seed == -(2**63)


@pytest.mark.case("S35")
@pytest.mark.parametrize(("kind", "make"), [(ChatRequest, chat), (CompletionRequest, legacy)])
def test_null_equals_the_default_in_every_field(kind: Any, make: Any) -> None:
    optional = [name for name, field in kind.model_fields.items() if not field.is_required()]
    assert {"temperature", "stop", "seed", "n", "max_tokens", "stream_options", "user"} <= set(optional)
    assert make(**dict.fromkeys([*optional, *kind.unbuilt])) == make()
    assert make().temperature == 1 and make().top_p == 1 and make().top_k == -1 and make().n == 1


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (chat, "tools", [{"type": "function"}]),
        (chat, "tool_choice", "required"),
        (chat, "response_format", {"type": "json_object"}),
        (chat, "logprobs", True),
        (chat, "logprobs", 0),
        (chat, "top_logprobs", 3),
        (chat, "logit_bias", {"1": 2}),
        (chat, "frequency_penalty", 0.5),
        (chat, "frequency_penalty", False),
        (chat, "store", True),
        (legacy, "logprobs", 0),
        (legacy, "echo", True),
        (legacy, "suffix", "x"),
        (legacy, "best_of", 2),
        (legacy, "min_p", 0.1),
    ],
)
def test_what_is_not_built_yet_is_refused_by_name(make: Any, field: str, value: Any) -> None:
    error = refusal(make, **{field: value})
    assert (error.code, error.param) == ("unsupported_parameter", field)


def test_what_is_not_built_yet_passes_when_it_asks_for_nothing() -> None:
    neutral = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "logprobs": False}
    assert chat(**neutral, frequency_penalty=0.0, repetition_penalty=1, logit_bias={}, store=False) == chat()
    assert legacy(echo=False, best_of=1, min_p=0) == legacy()


@pytest.mark.case("S35")
def test_an_unknown_field_is_refused_with_the_nearest_one() -> None:
    error = refusal(chat, temprature=1)
    assert error.param == "temprature" and error.code is None and "did you mean temperature?" in str(error)
    assert refusal(chat, messages=[{"role": "user", "content": "x", "mood": 1}]).param == "messages.0.mood"


@pytest.mark.case("S42")
def test_limits_of_the_answer() -> None:
    assert chat().limit is None and legacy().limit == 16
    assert chat(max_tokens=5).limit == chat(max_completion_tokens=5).limit == 5
    assert chat(max_tokens=5, max_completion_tokens=5).limit == 5
    assert refusal(chat, max_tokens=5, max_completion_tokens=6).param == "max_completion_tokens"
    assert refusal(chat, max_tokens=0).param == "max_tokens"
    assert legacy(max_tokens=0).limit == 0
    for make in (chat, legacy):
        for value in (-1, 1.5, "5", True):
            assert refusal(make, max_tokens=value).param == "max_tokens"


@pytest.mark.case("S06")
def test_stream_options_need_a_stream() -> None:
    for make in (chat, legacy):
        assert refusal(make, stream_options={"include_usage": True}).param == "stream_options"
        assert make(stream=True, stream_options={"include_usage": True}).with_usage
        assert not make(stream=True, stream_options={}).with_usage
        assert refusal(make, stream=True, stream_options={"include_usage": 1}).param == "stream_options.include_usage"


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        ([], "messages", None),
        ("hi", "messages", None),
        ([7], "messages.0", None),
        ([{"content": "x"}], "messages.0.role", None),
        ([{"role": "user"}], "messages.0.content", None),
        ([{"role": "wizard", "content": "x"}], "messages.0.role", None),
        ([{"role": "tool", "content": "x"}], "messages.0.role", "unsupported_parameter"),
        ([{"role": "user", "content": []}], "messages.0.content", None),
        ([{"role": "user", "content": ["x"]}], "messages.0.content.0", None),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0", None),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages.0.content.0.type",
            "unsupported_parameter",
        ),
        ([*HELLO, {"role": "assistant", "tool_calls": [{}]}], "messages.1.tool_calls", "unsupported_parameter"),
    ],
)
def test_messages_are_checked_one_by_one(messages: Any, param: str, code: str | None) -> None:
    error = refusal(chat, messages=messages)
    assert (error.param, error.code) == (param, code)


def test_messages_as_the_template_reads_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
    ]
    assert [message.for_template() for message in chat(messages=said).messages] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb", "name": "Ann"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""])],
)
def test_the_four_kinds_of_prompt(prompt: Any, read: Any) -> None:
    assert legacy(prompt=prompt).prompt == read


@pytest.mark.parametrize("prompt", [[], 7, {}, ["a", 1], [[1], "a"], [1.5], [True], [[1, "a"]]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    assert refusal(legacy, prompt=prompt).param == "prompt"


def test_what_is_required_is_named() -> None:
    for kind, body, param in (
        (ChatRequest, {"messages": HELLO}, "model"),
        (CompletionRequest, {"model": "m"}, "prompt"),
    ):
        with pytest.raises(RequestError) as caught:
            parse(kind, json.dumps(body).encode())
        assert caught.value.param == param


@pytest.mark.case("S43")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"7",
        b'{"model": "m", "model": "m", "prompt": "x"}',
        b'{"model": "m", "prompt": "\xff"}',
        b'{"model": "m", "prompt": "\\ud800"}',
        b'{"model": "m", "prompt": "x", "temperature": NaN}',
        b'{"model": "m", "prompt": "x", "temperature": -Infinity}',
        b'{"model": "m", "prompt": "x", "temperature": 1e999}',
        b'{"model": "m", "prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xef\xbb\xbf{}",
        b'{"model": "m", "prompt": "x"} x',
    ],
)
def test_a_malformed_body_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse(CompletionRequest, body)
    assert caught.value.status == 400 and len(str(caught.value)) < 400


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert read_json(b'"\\ud83e\\udd99"') == "\N{LLAMA}"


def test_choices_draw_from_seeds_of_their_own_and_the_first_has_the_given_one() -> None:
    request = chat(seed=0, n=3)
    seeds = [request.sampling(choice, 5, 100).seed for choice in range(3)]
    assert seeds[0] == 0 and len(set(seeds)) == 3
    assert seeds == [chat(seed=0, n=3).sampling(choice, 5, 100).seed for choice in range(3)]
    assert chat(n=2).sampling(1, 5, 100).seed is None
