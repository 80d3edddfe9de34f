"""LLM: prompts of three kinds, options, stop strings, errors."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest

from plait.framework.errors import ConfigError, LoadError, RequestError
from plait.pipelines.core import options_from
from plait.pipelines.llm import LLM
from plait.pipelines.sampling import SamplingParams

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "smollm2_golden.json").read_text(encoding="utf-8"))
BY_NAME: dict[str, dict[str, Any]] = {p["name"]: p for p in GOLDEN["prompts"]}
GREEDY = SamplingParams(temperature=0, max_tokens=16)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> LLM:
    return LLM(smollm2_path, max_length=256, max_batch_size=4)


@pytest.mark.slow
def test_text_ids_and_messages_are_prompts(llm: LLM) -> None:
    text, chat = BY_NAME["ascii_short"], BY_NAME["chat_single"]
    assert llm.encode(text["text"]) == text["ids"] and llm.encode(text["ids"]) == text["ids"]
    assert llm.encode(chat["messages"]) == chat["ids"]
    from_text, from_ids = llm.generate([text["text"], text["ids"]], GREEDY)
    assert from_text == from_ids and from_text.usage.prompt_tokens == 5
    (from_chat,) = llm.generate(chat["messages"], GREEDY)
    assert from_chat.usage.prompt_tokens == len(chat["ids"])


@pytest.mark.slow
@pytest.mark.system(51)
def test_answers_come_in_order_with_their_own_lengths(llm: LLM) -> None:
    prompts = [BY_NAME[name]["ids"] for name in ("ascii_story", "ascii_short", "code_python")]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 7, 5)]
    answers = llm.generate(prompts, params)
    assert [answer.usage.completion_tokens for answer in answers] == [3, 7, 5]
    assert {answer.finish_reason for answer in answers} == {"length"}
    for prompt, param, answer in zip(prompts, params, answers, strict=True):
        assert llm.generate([prompt], param) == [answer]
        assert answer.text == llm.tokenizer.decode(answer.token_ids, skip_special=True)
    assert llm.engine.scheduler.pool.num_free == llm.engine.runner.num_pages


@pytest.mark.slow
def test_a_stop_string_ends_the_answer_and_the_request(llm: LLM) -> None:
    whole = llm.generate("The capital of France is", GREEDY)[0]
    stop = whole.text[8:12]
    stopped = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=16, stop=(stop,)))[0]
    assert stopped.finish_reason == "stop" and stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.usage.completion_tokens < 16 and not llm.engine.has_work


@pytest.mark.slow
def test_streamed_pieces_join_to_the_answer(llm: LLM) -> None:
    prompt = BY_NAME["unicode_multilingual"]["text"]
    pieces = list(llm.stream(prompt, GREEDY))
    (whole,) = llm.generate(prompt, GREEDY)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [piece.token for piece in pieces] == whole.token_ids
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [whole.finish_reason]


@pytest.mark.slow
def test_closing_a_stream_drops_the_request(llm: LLM) -> None:
    stream = llm.stream("Once upon a time", SamplingParams(temperature=0, ignore_eos=True))
    next(stream)
    assert llm.engine.has_work
    stream.close()
    assert not llm.engine.has_work and llm.engine.scheduler.pool.num_free == llm.engine.runner.num_pages


@pytest.mark.slow
@pytest.mark.system(41)
def test_a_prompt_over_the_context_is_refused_with_both_numbers_and_none_is_answered(llm: LLM) -> None:
    with pytest.raises(RequestError, match="300 tokens.*256") as caught:
        llm.generate([[5, 6], [7] * 300], GREEDY)
    assert caught.value.code == "context_length_exceeded" and caught.value.status == 400
    assert not llm.engine.has_work
    assert len(llm.generate([[5, 6]], SamplingParams(temperature=0, max_tokens=2))[0].token_ids) == 2


@pytest.mark.slow
@pytest.mark.system(5)
@pytest.mark.case("S14")
def test_a_seed_gives_the_same_text_twice_beside_any_neighbour(llm: LLM) -> None:
    seeded = SamplingParams(temperature=0.8, seed=42, max_tokens=16)
    free = SamplingParams(temperature=0.8, max_tokens=16)
    prompt = "Once upon a time, in a village"
    (alone,) = llm.generate(prompt, seeded)
    for count in (1, 3):
        answers = llm.generate([prompt] * (count + 1), [free] * count + [seeded])
        assert answers[-1] == alone
    assert llm.generate(prompt, SamplingParams(temperature=0.8, seed=43, max_tokens=16))[0].token_ids != alone.token_ids


@pytest.mark.slow
def test_the_seed_option_fixes_requests_that_bring_none(smollm2_path: Path) -> None:
    free = SamplingParams(temperature=1.0, max_tokens=8)
    first, second = (LLM(smollm2_path, max_length=64, seed=7).generate(["A", "B"], free) for _ in range(2))
    assert first == second


@pytest.mark.slow
@pytest.mark.system(51)
def test_a_dropped_llm_releases_weights_and_cache(smollm2_path: Path) -> None:
    llm = LLM(smollm2_path, max_length=64)
    llm.generate("Hello", SamplingParams(temperature=0, max_tokens=2))
    held = [weakref.ref(llm.engine.runner), weakref.ref(llm.engine.runner.cache), weakref.ref(llm.engine.runner.model)]
    del llm
    gc.collect()
    assert [reference() for reference in held] == [None, None, None]


def test_an_unknown_option_is_a_type_error_with_the_nearest_name(smollm2_path: Path) -> None:
    with pytest.raises(TypeError, match="'max_lenght'.*did you mean 'max_length'"):
        LLM(smollm2_path, max_lenght=5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation_mode": "int4"}, "'int4'.*'exact' or 'int8'"),
        ({"threads": 0}, "threads: 0.*1 to 1024"),
        ({"threads": 5000}, "threads: 5000.*1 to 1024"),
        ({"max_length": 1}, "max_length: 1"),
        ({"max_batch_size": "4"}, "max_batch_size: '4'"),
        ({"kv_cache_page_size": 48}, "48.*multiple of 32"),
    ],
)
def test_impossible_options_are_refused_with_the_range(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        options_from(options)


def test_a_length_over_the_models_context_is_refused_with_both_numbers(smollm2_path: Path) -> None:
    with pytest.raises(ConfigError, match="9000.*8192"):
        LLM(smollm2_path, max_length=9000)


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(LoadError, match="did you mean smollm2"):
        LLM("smolm2")


@pytest.mark.slow
def test_prompts_of_no_known_kind_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="float"):
        llm.generate([3.5], GREEDY)
    with pytest.raises(RequestError, match="2 for 1 prompts"):
        llm.generate(["a"], [GREEDY, GREEDY])
