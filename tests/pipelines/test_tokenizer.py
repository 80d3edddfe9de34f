"""Token ids against the reference ids of the demo model, and the rules on small vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from plait.framework.errors import FormatError, IndexingError, RequestError
from plait.pipelines.tokenizer import Tokenizer

NAMES = [
    p["name"] for p in json.loads((Path(__file__).parents[1] / "data" / "smollm2_tokens.json").read_text())["prompts"]
]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def metadata(**changes: Any) -> dict[str, Any]:
    """Describe a vocabulary of all bytes, four merges and four named tokens."""
    tokens = [*ALPHABET, "12", "123", "Ġa", "'T", "<s>", "</s>", "<tool>", "<|im_end|>"]
    types = [1] * (len(tokens) - 4) + [3, 3, 4, 3]
    fields: dict[str, Any] = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types}
    fields |= {"merges": ["1 2", "12 3", "Ġ a", "' T"], "bos_token_id": 260, "eos_token_id": 261, **changes}
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


BYTES = Tokenizer.from_gguf(metadata())


@pytest.mark.system(40)
@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_the_reference(name: str, smollm2_tokenizer: Tokenizer, smollm2_tokens: dict[str, Any]) -> None:
    prompt = next(p for p in smollm2_tokens["prompts"] if p["name"] == name)
    assert smollm2_tokenizer.encode(prompt["text"], parse_special=prompt["kind"] == "chat") == prompt["ids"]
    assert smollm2_tokenizer.decode(prompt["ids"]) == prompt["text"]


@pytest.mark.system(40)
def test_special_ids_equal_the_reference(smollm2_tokenizer: Tokenizer, smollm2_tokens: dict[str, Any]) -> None:
    expected = smollm2_tokens
    assert smollm2_tokenizer.vocab_size == expected["n_vocab"]
    assert (smollm2_tokenizer.bos_id, smollm2_tokenizer.eos_id) == (expected["bos"], expected["eos"])
    assert sorted(smollm2_tokenizer.eog_ids) == expected["eog"]


@pytest.mark.system(40)
@pytest.mark.parametrize("name", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
def test_special_names_in_plain_text_stay_text(name: str, smollm2_tokenizer: Tokenizer) -> None:
    text = f"say {name}!"
    plain = smollm2_tokenizer.encode(text)
    parsed = smollm2_tokenizer.encode(text, parse_special=True)
    assert not any(smollm2_tokenizer.is_special(i) for i in plain)
    assert [smollm2_tokenizer.token_name(i) for i in parsed if smollm2_tokenizer.is_special(i)] == [name]
    assert smollm2_tokenizer.decode(plain) == smollm2_tokenizer.decode(parsed) == text
    assert smollm2_tokenizer.decode(parsed, skip_special=True) == "say !"


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_survives_a_round_trip(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text
    assert BYTES.decode(BYTES.encode(text, parse_special=True)) == text


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, BYTES.vocab_size - 1), max_size=30))
def test_any_ids_decode_to_their_bytes(ids: list[int]) -> None:
    assert BYTES.decode(ids) == b"".join(map(BYTES.token_bytes, ids)).decode("utf-8", "replace")


def test_every_byte_has_its_stand_in() -> None:
    assert sorted(BYTES.token_bytes(i) for i in range(256)) == [bytes([byte]) for byte in range(256)]
    assert BYTES.token_bytes(258) == b" a"
    assert BYTES.token_bytes(260) == b"<s>"


@pytest.mark.parametrize(
    ("pre", "digits", "contraction"),
    [
        ("gpt-2", ["123", "4"], ["'", "T"]),
        ("smollm", ["1", "2", "3", "4"], ["'", "T"]),
        ("llama-bpe", ["123", "4"], ["'T"]),
        ("qwen2", ["1", "2", "3", "4"], ["'T"]),
    ],
)
def test_the_named_rules_split_digits_and_contractions(pre: str, digits: list[str], contraction: list[str]) -> None:
    tokenizer = Tokenizer.from_gguf(metadata(pre=pre, add_bos_token=False))
    names = [tokenizer.token_name(i) for i in tokenizer.encode("1234N'T")]
    assert names == [*digits, "N", *contraction]


def test_the_long_rules_cut_digits_in_threes_and_keep_newlines_with_signs() -> None:
    tokens = [*ALPHABET, "12", "!Ċ"]
    fields = {"tokens": tokens, "token_type": [1] * len(tokens), "merges": ["1 2", "! Ċ"], "eos_token_id": None}
    for pre, expected in (("llama-bpe", ["3", "3", "1", "2", "!Ċ"]), ("gpt-2", ["3", "3", "12", "!", "Ċ"])):
        tokenizer = Tokenizer.from_gguf(metadata(pre=pre, bos_token_id=None, **fields))
        assert [tokenizer.token_name(i) for i in tokenizer.encode("3312!\n")] == expected


def test_begin_and_end_tokens_follow_metadata_and_rules() -> None:
    assert BYTES.encode("") == []
    assert Tokenizer.from_gguf(metadata(add_bos_token=True, add_eos_token=True)).encode("") == [260, 261]
    assert Tokenizer.from_gguf(metadata(add_bos_token=True)).encode("", add_special=False) == []
    assert Tokenizer.from_gguf(metadata(pre="llama-bpe")).encode("") == [260]
    assert Tokenizer.from_gguf(metadata(pre="llama-bpe", add_bos_token=False)).encode("") == []


def test_user_defined_tokens_are_always_parsed_and_control_tokens_on_request() -> None:
    assert BYTES.encode("<tool>") == [262]
    assert len(BYTES.encode("<s>")) == 3
    assert BYTES.encode("<s><tool></s>", parse_special=True) == [260, 262, 261]


def test_of_two_names_the_longer_is_parsed() -> None:
    tokens = [*ALPHABET, "<a>", "<a><b>"]
    named = metadata(tokens=tokens, token_type=[1] * 256 + [3, 3], merges=["Ġ a"], bos_token_id=None, eos_token_id=None)
    named["tokenizer.ggml.tokens"].append("Ġa")
    named["tokenizer.ggml.token_type"].append(1)
    assert Tokenizer.from_gguf(named).encode("<a><b><a>", parse_special=True) == [257, 256]


def test_whole_words_need_no_merges_where_the_rules_say_so() -> None:
    fields = {"tokens": [*ALPHABET, "Ġa", "hey"], "token_type": [1] * 258, "merges": ["Ġ a"], "eos_token_id": None}
    whole, merged = (
        Tokenizer.from_gguf(metadata(pre=pre, bos_token_id=None, **fields)).encode("hey")
        for pre in ("llama-bpe", "qwen2")
    )
    assert whole == [257] and len(merged) == 3


def test_end_ids_come_from_metadata_and_from_known_names() -> None:
    assert BYTES.eog_ids == {261, 263}
    assert Tokenizer.from_gguf(metadata(eot_token_id=5)).eog_ids == {5, 261, 263}


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"pre": "klingon"}, "pre", "'klingon'"),
        ({"pre": None}, "pre", "None"),
        ({"model": "llama"}, "model", "'llama'"),
        ({"tokens": None}, "tokens", "NoneType"),
        ({"token_type": [1]}, "token_type", "1 entries"),
        ({"merges": ["12"]}, "merges", "no space"),
        ({"bos_token_id": 9999}, "bos_token_id", "9999"),
        ({"add_bos_token": 3}, "add_bos_token", "3"),
    ],
)
def test_a_bad_field_is_named_with_its_value(changes: dict[str, Any], field: str, value: str) -> None:
    with pytest.raises(FormatError) as caught:
        Tokenizer.from_gguf(metadata(**changes))
    assert f"tokenizer.ggml.{field}" in str(caught.value) and value in str(caught.value)


def test_a_vocabulary_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(FormatError, match="'a' stands twice"):
        Tokenizer.from_gguf(metadata(tokens=["a", "b", "a"], token_type=[1, 1, 1], bos_token_id=0, eos_token_id=0))
    with pytest.raises(FormatError, match="merges do not fit"):
        Tokenizer.from_gguf(metadata(merges=["nope nope"]))


def test_impossible_text_and_ids_are_refused() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        BYTES.encode("a\ud800")
    for token_id in (-1, BYTES.vocab_size):
        with pytest.raises(IndexingError, match=str(token_id)):
            BYTES.token_bytes(token_id)
