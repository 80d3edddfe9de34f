"""Streamed text equals the whole answer decoded at once, cut at the stop string."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.framework.errors import RequestError
from plait.pipelines.detokenizer import Detokenizer
from plait.pipelines.tokenizer import Tokenizer

SPECIAL = 0
PIECES = [
    b"<end>",
    *(bytes([byte]) for byte in range(256)),
    b"ab",
    b"abc",
    b"bca",
    "é".encode(),
    "日本".encode(),
    b"\xf0\x9f",
]


class ByteTokens:
    """A vocabulary of bytes, some longer pieces and one special token."""

    def token_bytes(self, token_id: int) -> bytes:
        return PIECES[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id == SPECIAL


def stream(ids: list[int], **options: object) -> tuple[list[str], Detokenizer]:
    detokenizer = Detokenizer(ByteTokens(), **options)  # type: ignore[arg-type]
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()], detokenizer


def spell(text: str | bytes) -> list[int]:
    return [byte + 1 for byte in (text.encode() if isinstance(text, str) else text)]


def whole(ids: list[int], skip_special: bool = True) -> str:
    return b"".join(PIECES[i] for i in ids if not (skip_special and i == SPECIAL)).decode("utf-8", "replace")


def first_stop(text: str, stop: list[str]) -> tuple[str, str] | None:
    """Try every ending in turn: the text before the first stop string to complete, and that string."""
    for end in range(len(text) + 1):
        hits = [s for s in stop if text[:end].endswith(s)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return None


# Few letters, so that stop strings and their beginnings turn up often.
COMMON = st.sampled_from([SPECIAL, *spell("abc\xff"), *spell("é"), *range(257, len(PIECES))])
IDS = st.lists(st.one_of(COMMON, st.integers(0, len(PIECES) - 1)), max_size=40)
STOPS = st.lists(st.text(alphabet="abcé\ufffd", min_size=1, max_size=5), max_size=4)


@pytest.mark.system(40)
@settings(max_examples=300, deadline=None)
@given(ids=IDS, skip_special=st.booleans())
def test_pieces_join_to_the_whole(ids: list[int], skip_special: bool) -> None:
    pieces, detokenizer = stream(ids, skip_special=skip_special)
    assert "".join(pieces) == whole(ids, skip_special)
    assert detokenizer.stopped is None


@pytest.mark.system(40)
@settings(max_examples=600, deadline=None)
@given(ids=IDS, stop=STOPS, include_stop=st.booleans())
def test_pieces_join_to_the_text_before_the_first_stop(ids: list[int], stop: list[str], include_stop: bool) -> None:
    pieces, detokenizer = stream(ids, stop=stop, include_stop=include_stop)
    found = first_stop(whole(ids), stop)
    if found is None:
        assert ("".join(pieces), detokenizer.stopped) == (whole(ids), None)
    else:
        before, match = found
        assert ("".join(pieces), detokenizer.stopped) == (before + match * include_stop, match)


@settings(max_examples=200, deadline=None)
@given(ids=IDS, stop=STOPS)
def test_no_piece_holds_back_more_than_it_must(ids: list[int], stop: list[str]) -> None:
    detokenizer = Detokenizer(ByteTokens(), stop)
    sent, certain = "", ""
    for count, token_id in enumerate(ids, 1):
        sent += detokenizer.push(token_id)
        if detokenizer.stopped is not None:
            break
        certain = b"".join(PIECES[i] for i in ids[:count] if i != SPECIAL).decode("utf-8", "replace")
        held = certain.removeprefix(sent)
        assert certain.startswith(sent)
        # What is held is the start of a stop string, then at most one unfinished character.
        assert any(s.startswith(held) or s.startswith(held.rstrip("\ufffd")) for s in stop) or held in ("", "\ufffd")


def test_a_character_comes_whole() -> None:
    pieces, _ = stream(spell("é🦙"))
    assert pieces == ["", "é", "", "", "", "🦙", ""]


def test_a_lone_first_byte_becomes_one_replacement_at_the_end() -> None:
    assert stream(spell(b"a\xf0"))[0] == ["a", "", "\ufffd"]
    assert stream(spell(b"\xf0\x9f\xa6a"))[0] == ["", "", "", "\ufffda", ""]


def test_a_stop_string_over_several_tokens_never_shows() -> None:
    pieces, detokenizer = stream(spell("go STOP on"), stop=["STOP"])
    assert "".join(pieces) == "go " and detokenizer.stopped == "STOP"
    assert pieces[:4] == ["g", "o", " ", ""]


def test_of_two_stop_strings_in_one_token_the_first_to_complete_counts() -> None:
    abc = PIECES.index(b"abc")
    for ids in ([abc], spell("abc")):
        pieces, detokenizer = stream(ids, stop=["abc", "b"])
        assert ("".join(pieces), detokenizer.stopped) == ("a", "b")
        pieces, detokenizer = stream(ids, stop=["c", "bc"])
        assert ("".join(pieces), detokenizer.stopped) == ("a", "bc")


def test_text_held_for_a_stop_string_is_sent_at_the_end() -> None:
    pieces, detokenizer = stream(spell("go STO"), stop=["STOP"])
    assert pieces[-1] == "STO" and detokenizer.stopped is None


def test_tokens_after_the_end_give_nothing() -> None:
    pieces, detokenizer = stream(spell("a.b"), stop=".")
    assert pieces == ["a", "", "", ""]
    assert detokenizer.push(spell("z")[0]) == detokenizer.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty stop string"):
        Detokenizer(ByteTokens(), ["a", ""])


@pytest.mark.system(40)
def test_the_demo_vocabulary_streams_multi_token_characters(smollm2_tokenizer: Tokenizer) -> None:
    text = "🦙龜é日🏳️\u200d🌈"
    detokenizer = Detokenizer(smollm2_tokenizer)
    pieces = [detokenizer.push(i) for i in smollm2_tokenizer.encode(text)]
    assert "".join(pieces) == text and detokenizer.finish() == ""
    assert "\ufffd" not in "".join(pieces) and "" in pieces
