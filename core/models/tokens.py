"""Text to token ids, and tokens as people read them.

Display strings show specials as their text, blanks as ␣, newlines as ↵, and pieces of a character
as the character with its part ("苹 1/3"): never the letters a byte tokenizer uses for bytes.
"""

import json
from dataclasses import dataclass
from typing import Any

from core.errors import BadInputError, TooLargeError
from core.limits import MAX_TEXT_CHARS
from core.models.loading import LoadedModel
from core.results import Feed, Token

Offset = tuple[int, int]
VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "⇤", "\u00a0": "⍽", "\u3000": "□"}


@dataclass(frozen=True)
class EncodedText:
    """What the model reads.

    Attributes:
        note: a sentence people should read ("cut to 512 of 1200 tokens"), or "".
    """

    ids: tuple[int, ...]
    tokens: tuple[Token, ...]
    note: str = ""


def encode(
    loaded: LoadedModel, text: str, *, feed: Feed = "typed", truncate: bool = False
) -> EncodedText:
    """Returns ids and display tokens of a text.

    Raises:
        BadInputError: empty, only blanks, a feed the model lacks, ids beyond the embedding.
        TooLargeError: above the text cap or the model's limit and not to be cut.
    """
    if not text.strip():
        raise BadInputError(
            "The text is empty." if not text else "The text holds only blanks.",
            "Type a sentence, or pick an example.",
        )
    if len(text) > MAX_TEXT_CHARS:
        raise TooLargeError(
            f"The text has {len(text):,} characters; at most {MAX_TEXT_CHARS:,} are taken.",
            "Paste a shorter part of it.",
        )
    # A lone surrogate cannot be encoded as UTF-8; the tokenizer would raise deep inside.
    text = text.encode("utf-8", "replace").decode("utf-8")
    before, fed, specials = _feed(loaded, text, feed)
    tokenizer = loaded.tokenizer
    options: dict[str, Any] = {"add_special_tokens": specials, "verbose": False}
    offsets: list[Offset | None]
    if tokenizer.is_fast:
        found = tokenizer(fed, return_offsets_mapping=True, **options)
        offsets = [tuple(pair) for pair in found["offset_mapping"]]
    else:
        found = tokenizer(fed, **options)
        offsets = [None] * len(found["input_ids"])
    ids = list(found["input_ids"])
    ids, offsets, note = _fit(loaded, ids, offsets, truncate)
    _check_ids(loaded, ids)
    tokens = display_tokens(loaded, ids, offsets, fed)
    shifted = [_shift(token, before, len(text)) for token in tokens]
    return EncodedText(tuple(ids), tuple(shifted), note)


def _feed(loaded: LoadedModel, text: str, feed: Feed) -> tuple[int, str, bool]:
    """Returns (characters in front of the text, what is fed, whether specials are still due)."""
    info = loaded.info
    if feed == "prefix":
        if not info.prefix:
            raise BadInputError(f"{info.id} has no prefix of its own.", "Feed the text as typed.")
        return len(info.prefix), info.prefix + text, True
    if feed == "chat":
        if not info.has_chat_template:
            raise BadInputError(f"{info.id} has no chat template.", "Feed the text as typed.")
        fed = loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        return max(fed.find(text), 0), fed, False
    return 0, text, True


def _fit(
    loaded: LoadedModel, ids: list[int], offsets: list[Offset | None], truncate: bool
) -> tuple[list[int], list[Offset | None], str]:
    limit = loaded.info.max_tokens
    if limit is None or len(ids) <= limit:
        return ids, offsets, ""
    if not truncate:
        raise TooLargeError(
            f"The text has {len(ids):,} tokens; {loaded.info.id} reads at most {limit} "
            f"({loaded.info.max_tokens_source}).",
            "Shorten it, or let it be cut.",
        )
    # A closing special token stays: the model never saw a text without one.
    closing = ids[-1:] if ids[-1] in loaded.tokenizer.all_special_ids else []
    keep = limit - len(closing)
    last = offsets[-1:] if closing else []
    note = f"The text was cut to {limit} of {len(ids)} tokens."
    return ids[:keep] + closing, offsets[:keep] + last, note


def _check_ids(loaded: LoadedModel, ids: list[int]) -> None:
    beyond = sorted({i for i in ids if i >= loaded.n_embeddings})
    if beyond:
        names = ", ".join(f"{i} ({loaded.tokenizer.convert_ids_to_tokens(i)})" for i in beyond[:5])
        raise BadInputError(
            f"The tokenizer gives ids the model has no embedding for: {names}; it has "
            f"{loaded.n_embeddings} rows.",
            "Tokens were added without resizing the model; leave them out of the text.",
        )


def _shift(token: Token, before: int, length: int) -> Token:
    """Returns the token with its offset counted in the text as typed, None when outside it."""
    if token.offset is None:
        return token
    start, end = token.offset[0] - before, token.offset[1] - before
    if end <= 0 or start >= length:
        return Token(token.id, token.text, None, token.is_special)
    return Token(token.id, token.text, (max(start, 0), min(end, length)), token.is_special)


def tokens_of(loaded: LoadedModel, ids: list[int]) -> tuple[Token, ...]:
    """Returns display tokens of ids that no text stands behind (generated ones)."""
    return display_tokens(loaded, ids, [None] * len(ids), "")


def display_tokens(
    loaded: LoadedModel, ids: list[int], offsets: list[Offset | None], text: str
) -> tuple[Token, ...]:
    """Returns tokens with readable texts."""
    tokenizer = loaded.tokenizer
    pieces = [str(piece) for piece in tokenizer.convert_ids_to_tokens(ids)]
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    byte_level = is_byte_level(tokenizer)
    parts = _byte_parts(pieces) if byte_level else [piece_bytes(p) for p in pieces]
    tokens = []
    named = _join_pieces(pieces, parts)
    for id_, piece, shown, offset in zip(ids, pieces, named, offsets, strict=True):
        is_special = id_ in special
        if is_special or id_ == tokenizer.unk_token_id:
            shown = piece
        empty = offset is None or offset[0] == offset[1]
        tokens.append(Token(id_, shown, None if is_special or empty else offset, is_special))
    return tuple(tokens)


def is_byte_level(tokenizer: Any) -> bool:
    """Tells from the tokenizer's own parts whether its pieces are bytes in disguise."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return hasattr(tokenizer, "byte_decoder")
    state = json.loads(backend.to_str())
    return "ByteLevel" in json.dumps([state.get("decoder"), state.get("pre_tokenizer")])


def byte_alphabet() -> dict[str, int]:
    """Returns the byte behind each letter of the byte-level alphabet (GPT-2).

    Printable Latin-1 letters stand for themselves; the other bytes, in order, for U+0100 onwards.
    """
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(rest)}


ALPHABET = byte_alphabet()


def _byte_parts(pieces: list[str]) -> list[bytes | None]:
    return [
        bytes(ALPHABET[c] for c in piece) if all(c in ALPHABET for c in piece) else None
        for piece in pieces
    ]


def piece_bytes(piece: str) -> bytes | None:
    """Returns the byte of a SentencePiece byte token such as <0xE8>, else None."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            return None
    return None


def _join_pieces(pieces: list[str], parts: list[bytes | None]) -> list[str]:
    """Returns readable texts; bytes of one character are named after it: "苹 1/3"."""
    shown = [make_visible(piece.replace("▁", " ")) for piece in pieces]
    i = 0
    while i < len(pieces):
        own = parts[i]
        if own is None:
            i += 1
            continue
        text = _decode(own)
        if text is not None:
            shown[i] = make_visible(text)
            i += 1
            continue
        stop, joined = i + 1, own
        while stop < len(pieces) and stop - i < 8 and parts[stop] is not None:
            joined += parts[stop] or b""
            stop += 1
            if (text := _decode(joined)) is not None:
                break
        if text is None:
            shown[i] = " ".join(f"0x{byte:02X}" for byte in own)
            i += 1
            continue
        for n, j in enumerate(range(i, stop), 1):
            shown[j] = f"{make_visible(text)} {n}/{stop - i}"
        i = stop
    return shown


def _decode(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def make_visible(text: str) -> str:
    """Returns the text with blanks and control characters as visible marks."""
    out = []
    for character in text:
        if character in VISIBLE:
            out.append(VISIBLE[character])
        elif character.isprintable():
            out.append(character)
        else:
            out.append(f"U+{ord(character):04X}")
    return "".join(out) or "∅"
