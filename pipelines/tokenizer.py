"""Text to token ids and back, for byte-level BPE vocabularies described by GGUF metadata.

Knows vocabularies, split rules and special tokens. Does not know chat formats, streams or models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as BPETokenizer

from plait.framework.errors import FormatError, IndexingError, RequestError

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class SplitRules(NamedTuple):
    """How text is cut before BPE merges, and what else the name of a pre-tokenizer implies.

    `pattern` None means the GPT-2 rules; `whole_words` takes a word that is itself a token without merging.
    """

    pattern: str | None = None
    single_digits: bool = False
    whole_words: bool = False
    add_bos: bool = False


SPLIT_RULES = {
    "gpt-2": SplitRules(),
    "smollm": SplitRules(single_digits=True),
    "llama-bpe": SplitRules(pattern=_WORDS % "{1,3}", whole_words=True, add_bos=True),
    "qwen2": SplitRules(pattern=_WORDS % ""),
}

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPECIAL_TYPES = (_UNKNOWN, _CONTROL)

# Names that end an answer whatever the metadata says, because chat tunes often keep the base model's end id. The second
# row opens another file of a code repository: nothing after it belongs to the answer.
END_NAMES = frozenset({
    "<|endoftext|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<EOT>",
    "<|repo_name|>", "<reponame>", "<|file_sep|>", "<|fim_pad|>",
})  # fmt: skip
_END_ID_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def _byte_alphabet() -> dict[str, int]:
    """Map the printable stand-in of each byte to the byte.

    Source: the GPT-2 byte-to-unicode table: printable Latin-1 stands for itself, the rest is numbered from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
# The stand-in of byte 0, of byte 1, ...
BYTE_NAMES = sorted(_BYTE_OF, key=_BYTE_OF.__getitem__)


class Tokenizer:
    """One model's vocabulary. Safe to share between threads: after it is built it only remembers what it worked out."""

    def __init__(
        self,
        tokens: Sequence[str],
        token_types: Sequence[int],
        merges: Iterable[tuple[str, str]],
        rules: SplitRules,
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        end_ids: Iterable[int] = (),
        add_bos: bool = False,
        add_eos: bool = False,
        chat_template: str | None = None,
    ) -> None:
        self._tokens, self._types = list(tokens), list(token_types)
        self._bytes: dict[int, bytes] = {}
        self._bpe = _build_bpe(self._tokens, merges, rules)
        self.bos_id, self.eos_id = bos_id, eos_id
        self.add_bos, self.add_eos = add_bos and bos_id is not None, add_eos and eos_id is not None
        self.chat_template = chat_template
        self.eog_ids = frozenset(end_ids) | _named_ends(self._tokens)
        plain = self._named_tokens((_USER_DEFINED,))
        self._named = {False: plain, True: self._named_tokens((_USER_DEFINED, *_SPECIAL_TYPES))}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build the tokenizer that the metadata of a GGUF file describes.

        Raises: FormatError naming the field if one is missing, contradictory or of a kind plait has no rules for.
        """
        fields = _Fields(metadata)
        fields.choice("model", {"gpt2": None})
        rules = fields.choice("pre", SPLIT_RULES)
        tokens = fields.strings("tokens")
        return cls(
            tokens,
            fields.token_types(len(tokens)),
            fields.merges(),
            rules,
            bos_id=fields.token_id("bos_token_id", len(tokens)),
            eos_id=fields.token_id("eos_token_id", len(tokens)),
            end_ids=fields.end_ids(len(tokens)),
            add_bos=fields.flag("add_bos_token", rules.add_bos),
            add_eos=fields.flag("add_eos_token", False),
            chat_template=metadata.get("tokenizer.chat_template"),
        )

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Turn text into ids; `add_special` adds the begin and end tokens the model asks for.

        With `parse_special` the names of control tokens in the text become those tokens, else they are plain text.
        NOTE: some vocabularies lack tokens for a few control characters; those characters are left out.
        Raises: RequestError if the text holds half of a surrogate pair.
        """
        ids = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        pattern, ids_by_name = self._named[parse_special]
        for index, part in enumerate(pattern.split(_checked(text)) if pattern else [_checked(text)]):
            # The pattern is one group, so every second part is a name.
            ids += [ids_by_name[part]] if index % 2 else self._bpe.encode(part, add_special_tokens=False).ids
        return [*ids, self.eos_id] if add_special and self.add_eos and self.eos_id is not None else ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Turn ids into text; bytes that are not UTF-8 become U+FFFD."""
        kept = (i for i in ids if not (skip_special and self.is_special(i)))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for; a control token stands for its own name.

        Raises: IndexingError for an id outside the vocabulary.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spelled(token_id)
        return known

    def _spelled(self, token_id: int) -> bytes:
        piece = self.token_name(token_id)
        if self._types[token_id] != _NORMAL:
            return piece.encode()
        try:
            return bytes([_BYTE_OF[char] for char in piece])
        except KeyError:
            return piece.encode()

    def token_name(self, token_id: int) -> str:
        """Return the token as the vocabulary spells it."""
        if not 0 <= token_id < len(self._tokens):
            raise IndexingError(f"tokenizer: id {token_id} is not a token; expected 0 to {len(self._tokens) - 1}.")
        return self._tokens[token_id]

    def is_special(self, token_id: int) -> bool:
        """Say whether a token steers the model and is no part of the text."""
        self.token_name(token_id)
        return self._types[token_id] in _SPECIAL_TYPES

    def _named_tokens(self, kinds: tuple[int, ...]) -> tuple[re.Pattern[str] | None, dict[str, int]]:
        ids = {self._tokens[i]: i for i, kind in enumerate(self._types) if kind in kinds and self._tokens[i]}
        longest_first = sorted(ids, key=len, reverse=True)
        return (re.compile(f"({'|'.join(map(re.escape, longest_first))})") if ids else None), ids


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"tokenizer: character {error.start} is {text[error.start]!r}, half of a surrogate pair; "
                           "expected text that UTF-8 can spell.") from None  # fmt: skip
    return text


def _build_bpe(tokens: list[str], merges: Iterable[tuple[str, str]], rules: SplitRules) -> BPETokenizer:
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise FormatError(f"tokenizer: token {twice!r} stands twice in the vocabulary; tokens must be unique.")
    try:
        bpe = BPETokenizer(models.BPE(ids, list(merges), ignore_merges=rules.whole_words))
    except Exception as error:  # the library raises bare Exception
        raise FormatError(f"tokenizer: the merges do not fit the vocabulary ({error}).") from None
    bpe.pre_tokenizer = pre_tokenizers.Sequence(_split_steps(rules))
    return bpe


def _split_steps(rules: SplitRules) -> list[Any]:
    digits = [pre_tokenizers.Digits(individual_digits=True)] if rules.single_digits else []
    words = [pre_tokenizers.Split(Regex(rules.pattern), "isolated")] if rules.pattern else []
    return [*digits, *words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not words)]


def end_ids_of(metadata: Mapping[str, Any]) -> frozenset[int]:
    """The ids after which an answer is complete: the tokenizer's `eog_ids`, without the cost of a tokenizer.

    Raises: FormatError naming the field that is missing or impossible.
    """
    fields = _Fields(metadata)
    tokens = fields.strings("tokens")
    return fields.end_ids(len(tokens)) | _named_ends(tokens)


def _named_ends(tokens: Sequence[str]) -> frozenset[int]:
    return frozenset(i for i, name in enumerate(tokens) if name in END_NAMES)


class _Fields:
    """The `tokenizer.ggml.*` fields of the metadata, each checked as it is read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata

    def fail(self, field: str, found: str) -> NoReturn:
        raise FormatError(f"metadata 'tokenizer.ggml.{field}': {found}")

    def get(self, field: str) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{field}")

    def choice(self, field: str, table: Mapping[str, Any]) -> Any:
        value = self.get(field)
        if not isinstance(value, str) or value not in table:
            self.fail(field, f"{value!r}; plait knows {', '.join(table)}.")
        return table[value]

    def strings(self, field: str) -> list[str]:
        value = self.get(field)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            self.fail(field, f"{type(value).__name__}; expected a list of strings.")
        return value

    def merges(self) -> list[tuple[str, str]]:
        if self.get("merges") == []:
            return []  # a vocabulary of bytes
        # A merge is "left right"; the left half may itself start with a space, never the right one.
        pairs = [(merge[:cut], merge[cut + 1 :]) for merge in self.strings("merges") if (cut := merge.find(" ", 1)) > 0]
        if len(pairs) != len(self.get("merges")):
            self.fail("merges", "an entry has no space; expected two tokens with a space between them.")
        return pairs

    def token_types(self, num_tokens: int) -> list[int]:
        value = self.get("token_type")
        if value is None:
            return [_NORMAL] * num_tokens
        types = [int(kind) for kind in value]
        if len(types) != num_tokens:
            self.fail("token_type", f"{len(types)} entries; expected one for each of {num_tokens} tokens.")
        return types

    def token_id(self, field: str, num_tokens: int) -> int | None:
        value = self.get(field)
        if value is not None and not (type(value) is int and 0 <= value < num_tokens):
            self.fail(field, f"{value!r}; expected an id from 0 to {num_tokens - 1}.")
        return value

    def end_ids(self, num_tokens: int) -> frozenset[int]:
        ids = (self.token_id(key, num_tokens) for key in _END_ID_KEYS)
        return frozenset(i for i in ids if i is not None)

    def flag(self, field: str, default: bool) -> bool:
        value = self.get(field)
        if value is not None and type(value) is not bool:
            self.fail(field, f"{value!r}; expected a boolean.")
        return default if value is None else value
