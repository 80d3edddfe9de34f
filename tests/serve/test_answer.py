"""Answers without HTTP: tokens to text and usage, and what becomes of the engine's streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plait.framework.errors import RequestError
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.tokenizer import SPLIT_RULES, Tokenizer
from plait.serve import answer as answers
from plait.serve.answer import Answer, Limits, TextSide, Wanted, submitted
from tests.serve.servers import ECHO, Engine, Script, Stream, spelled

TEXT_SIDE = TextSide(ECHO)


def run(script: Any, *wanted: Wanted) -> tuple[list[str], Answer, Engine]:
    engine = Engine(script if callable(script) else lambda stream: script)

    async def main() -> tuple[list[str], Answer]:
        with submitted(engine, TEXT_SIDE, wanted, "r") as answer:
            return await answer.texts(), answer

    return *asyncio.run(main()), engine


@pytest.mark.case("S01")
def test_tokens_after_a_stop_string_are_neither_text_nor_usage() -> None:
    params = SamplingParams(stop=("cd",))
    texts, answer, engine = run(Script([list(b"abcdefgh")], ends=False), ([1], [params]))
    assert texts == ["ab"] and answer.num_completion == 4 and answer.choices[0].finish_reason == "stop"
    assert engine.running == 0


@pytest.mark.case("S02")
def test_a_tail_that_may_begin_a_stop_string_comes_at_the_end() -> None:
    params = SamplingParams(stop=("c~~",), max_tokens=3)
    texts, answer, _ = run(Script(spelled("abcdef")), ([1], [params]))
    assert texts == ["abc"] and answer.choices[0].finish_reason == "length"
    assert run(Script(spelled("abc")), ([1], [SamplingParams(stop=("c~~",))]))[0] == ["abc"]


def test_usage_counts_each_prompt_once_and_every_choice() -> None:
    once = SamplingParams()
    _, answer, _ = run(Script(spelled("four")), ([1, 2], [once, once]), ([3], [once, None]))
    assert answer.usage == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop", "stop", "length"]


def test_one_failing_choice_fails_the_answer_and_frees_all() -> None:
    def script(stream: Stream) -> Script:
        bad = stream.request_id == "r-1"
        error = RequestError("boom.", status=503) if bad else None
        return Script(spelled("ab"), error=error, gate=None if bad else gate)

    gate = asyncio.Event()
    engine = Engine(script)

    async def main() -> None:
        with submitted(engine, TEXT_SIDE, [([1], [SamplingParams()] * 3)], "r") as answer:
            await answer.texts()

    with pytest.raises(RequestError, match="boom"):
        asyncio.run(main())
    assert engine.running == 0 and all(stream.closed for stream in engine.streams)


def test_a_stream_that_ends_without_a_reason_is_an_error() -> None:
    with pytest.raises(RequestError) as caught:
        run(Script(spelled("ab"), ends=False), ([1], [SamplingParams()]))
    assert caught.value.status == 500


def test_pieces_carry_the_reason_only_at_the_end() -> None:
    async def main() -> list[Any]:
        engine = Engine(lambda stream: Script(spelled("abc")))
        with submitted(engine, TEXT_SIDE, [([1], [SamplingParams()] * 2)], "r") as answer:
            pieces = []
            async for piece in answer.pieces():
                await asyncio.sleep(0.001)  # a reader slower than the engine
                pieces.append(piece)
            return pieces

    pieces = asyncio.run(main())
    for choice in (0, 1):
        mine = [piece for piece in pieces if piece.choice == choice]
        assert "".join(piece.text for piece in mine) == "abc"
        assert [piece.finish_reason for piece in mine] == [None] * (len(mine) - 1) + ["stop"]


def test_prompts_that_the_engine_cannot_take() -> None:
    limits = Limits(max_length=4, vocab_size=10, max_requests=1)
    limits.check_prompt([0, 9, 5], "prompt")
    for prompt, code in (([], None), ([1] * 4, "context_length_exceeded"), ([10], None), ([1, -1], None)):
        with pytest.raises(RequestError) as caught:
            limits.check_prompt(prompt, "messages")
        assert caught.value.code == code and caught.value.param == "messages"


def test_the_template_and_its_absence() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert asyncio.run(TEXT_SIDE.encode_chat(messages)) == list(b"a\nb")
    bare = TextSide(Tokenizer(["a"], [1], [], SPLIT_RULES["gpt-2"]))
    with pytest.raises(RequestError, match="no chat template") as caught:
        asyncio.run(bare.encode_chat(messages))
    assert caught.value.param == "messages"


def test_a_long_text_is_tokenised_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[Any] = []
    beside = asyncio.to_thread

    async def counted(function: Any) -> Any:
        threads.append(function)
        return await beside(function)

    monkeypatch.setattr(answers.asyncio, "to_thread", counted)
    assert asyncio.run(TEXT_SIDE.encode(["short", [7]])) == [list(b"short"), [7]] and not threads
    text = "x" * (answers.MAX_INLINE_CHARACTERS + 1)
    assert asyncio.run(TEXT_SIDE.encode([text])) == [list(text.encode())] and len(threads) == 1
