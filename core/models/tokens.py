"""Turns texts into token ids and readable tokens that point back into the text as typed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jinja2 import TemplateError

from core import limits
from core.errors import BadInputError, TooLargeError
from core.models.describe import embedding_table
from core.models.display import display_pieces, piece_reader
from core.models.loading import LoadedModel, quiet
from core.results import Feed, Token

# Stands for the text while the chat template is asked what it puts around it.
_PLACEHOLDER = "\ue000text\ue001"


@dataclass(frozen=True)
class EncodedText:
    """A text as the model reads it.

    Attributes:
        ids: token ids, special tokens included.
        tokens: one a token id.
        note: what people should know (cut, replaced characters); "" when nothing.
    """

    ids: tuple[int, ...]
    tokens: tuple[Token, ...]
    note: str = ""


@dataclass(frozen=True)
class _Fed:
    """What the tokenizer is given: the text and what stands around it.

    Attributes:
        start: where the text begins in `whole`; negative when its beginning was cut off.
    """

    whole: str
    start: int
    length: int
    add_special: bool
    is_located: bool = True


def encode(
    loaded: LoadedModel,
    text: str,
    feed: Feed = "typed",
    *,
    truncate: bool = False,
    beyond: bool = False,
) -> EncodedText:
    """Returns the ids and tokens of a text, all limits checked before any model runs.

    Args:
        truncate: cut to the model's limit instead of refusing.
        beyond: read past the limit where the model can (`ModelInfo.reads_beyond`).

    Raises:
        BadInputError: nothing to read, no chat template, or ids the model has no rows for.
        TooLargeError: more characters or tokens than are taken.
    """
    _check_text(text)
    tokenizer = _tokenizer_of(loaded)
    notes: list[str] = []
    clean = _without_surrogates(text)
    if clean != text:
        notes.append("Half characters (lone surrogates) were replaced before the model read them.")
    fed = _feed(loaded, tokenizer, clean, feed)
    ids, offsets, added = _tokenise(tokenizer, fed)
    limit = loaded.info.max_tokens
    if limit is not None and len(ids) > limit:
        can_go_on = loaded.info.reads_beyond
        if beyond and can_go_on:
            notes.append(
                f"The text has {len(ids):,} tokens, {loaded.info.id} was made for {limit:,}: past "
                "them it reads positions it was never trained on."
            )
        elif truncate:
            notes.append(f"The text has {len(ids):,} tokens; only the first {limit} were read.")
            ids, offsets, added = _cut(ids, offsets, added, limit)
        else:
            raise TooLargeError(
                f"The text has {len(ids):,} tokens; {loaded.info.id} reads at most {limit} "
                f"({loaded.info.max_tokens_source}).",
                "Shorten it, or have it cut to the limit (--truncate on the command line)"
                + (", or go on at your own risk (--beyond)." if can_go_on else "."),
            )
    if all(added):
        raise BadInputError(
            f"The tokenizer of {loaded.info.id} leaves nothing of this text.",
            "Type something with letters, signs or numbers in it.",
        )
    _check_rows(loaded, tokenizer, ids)
    tokens = _tokens(tokenizer, ids, offsets, added, fed)
    return EncodedText(tuple(ids), tokens, " ".join(notes))


def encode_target(loaded: LoadedModel, target: str) -> EncodedText:
    """Returns what the decoder of an encoder-decoder reads: start token and target, no end token.

    Raises:
        BadInputError, TooLargeError: as for `encode`.
    """
    _check_text(target)
    tokenizer = _tokenizer_of(loaded)
    clean = _without_surrogates(target)
    fed = _Fed(clean, 0, len(clean), add_special=True)
    ids, offsets, added = _tokenise(tokenizer, fed, as_target=True)
    if ids and ids[-1] == tokenizer.eos_token_id and added[-1]:
        ids, offsets, added = ids[:-1], offsets[:-1], added[:-1]
    start = start_token_id(loaded)
    if not ids or ids[0] != start:
        ids, offsets, added = [start, *ids], [None, *offsets], [True, *added]
    limit = _decoder_limit(loaded)
    if limit is not None and len(ids) > limit:
        raise TooLargeError(
            f"The target has {len(ids):,} tokens; the decoder of {loaded.info.id} reads at most "
            f"{limit}.",
            "Shorten it.",
        )
    _check_rows(loaded, tokenizer, ids)
    return EncodedText(tuple(ids), _tokens(tokenizer, ids, offsets, added, fed))


def generate_target(loaded: LoadedModel, source: torch.Tensor) -> EncodedText:
    """Returns what the decoder of an encoder-decoder says by itself, the likeliest at each step.

    Args:
        source: [1, ...], the main input of the model.
    """
    module: Any = loaded.module
    read: list[list[int]] = []

    def listen(_: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named.get("input_ids", positional[0] if positional else None)
        read.append([] if ids is None else ids[0].tolist())

    handle = module.get_decoder().register_forward_pre_hook(listen, with_kwargs=True)
    try:
        with torch.inference_mode(), quiet():
            made = module.generate(
                source, max_new_tokens=limits.MAX_GENERATED_TOKENS, do_sample=False, num_beams=1
            )
    finally:
        handle.remove()
    ids: list[int] = made[0].tolist()
    # Whisper answers without what its decoder was started with (start, language, task). Later steps
    # read one token each.
    start = max(read, key=len)
    if ids[: len(start)] != start:
        ids = start + ids
    return EncodedText(tuple(ids), tokens_of(loaded, ids))


def tokens_of(loaded: LoadedModel, ids: Sequence[int]) -> tuple[Token, ...]:
    """Returns readable tokens of generated ids; they point to no text."""
    tokenizer = _tokenizer_of(loaded)
    values = [int(i) for i in ids]
    nothing = _Fed("", 0, 0, add_special=False)
    return _tokens(tokenizer, values, [None] * len(values), [False] * len(values), nothing)


def padded(
    loaded: LoadedModel, texts: Sequence[EncodedText], prefix: str = ""
) -> dict[str, torch.Tensor]:
    """Returns `input_ids` [text, token] for the model's forward, filled up on the right.

    Several texts come with their `attention_mask`; the ids it hides may be any that exist.

    Args:
        prefix: in front of both names ("decoder_").
    """
    device = next(loaded.module.parameters()).device
    longest = max(len(text.ids) for text in texts)
    # Some families (RoBERTa) count positions by this id.
    filler = getattr(getattr(loaded.module, "config", None), "pad_token_id", None)
    if not isinstance(filler, int) or not 0 <= filler < embedding_table(loaded.module):
        filler = 0
    ids = torch.full((len(texts), longest), filler, device=device)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = torch.tensor(text.ids, device=device)
        mask[row, : len(text.ids)] = 1
    made = {f"{prefix}input_ids": ids}
    return made if len(texts) == 1 else made | {f"{prefix}attention_mask": mask}


def start_token_id(loaded: LoadedModel) -> int:
    """Returns the id a decoder of an encoder-decoder starts with.

    Raises:
        BadInputError: nothing in the checkpoint says it.
    """
    module = loaded.module
    for holder in (getattr(module, "generation_config", None), getattr(module, "config", None)):
        for name in ("decoder_start_token_id", "bos_token_id"):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value
    raise BadInputError(
        f"{loaded.info.id} does not say with which token its decoder starts.",
        "Add decoder_start_token_id to its config.json.",
    )


def _check_text(text: str) -> None:
    if len(text) > limits.MAX_TEXT_CHARS:
        raise TooLargeError(
            f"The text has {len(text):,} characters; at most {limits.MAX_TEXT_CHARS:,} are taken.",
            "Shorten it.",
        )
    if not text:
        raise BadInputError("The text is empty.", "Type a text, or choose an example.")
    if not text.strip():
        raise BadInputError(
            f"The text holds only blanks ({len(text)} of them).",
            "Type a text, or choose an example.",
        )


def _tokenizer_of(loaded: LoadedModel) -> Any:
    if loaded.tokenizer is None:
        raise BadInputError(
            f"{loaded.info.id} has no tokenizer, so it reads no text.",
            "Choose a model that reads text, or give the tokenizer too.",
        )
    return loaded.tokenizer


def _without_surrogates(text: str) -> str:
    """Returns the text with lone surrogates replaced, one for one, so that offsets stay right."""
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


def _feed(loaded: LoadedModel, tokenizer: Any, text: str, feed: Feed) -> _Fed:
    if feed == "prefix":
        prefix = loaded.info.prefix
        if not prefix:
            raise BadInputError(
                f"{loaded.info.id} has no prefix of its own.", "Feed the text as typed."
            )
        return _Fed(prefix + text, len(prefix), len(text), add_special=True)
    if feed == "chat":
        return _chat(loaded, tokenizer, text)
    return _Fed(text, 0, len(text), add_special=True)


def _chat(loaded: LoadedModel, tokenizer: Any, text: str) -> _Fed:
    if not getattr(tokenizer, "chat_template", None):
        raise BadInputError(f"{loaded.info.id} has no chat template.", "Feed the text as typed.")

    def render(content: str) -> str:
        return str(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": content}],
                tokenize=False,
                add_generation_prompt=True,
            )
        )

    try:
        whole, frame = render(text), render(_PLACEHOLDER)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise BadInputError(
            f"The chat template of {loaded.info.id} does not take this text: {error}.",
            "Feed the text as typed.",
        ) from error
    before, found, after = frame.partition(_PLACEHOLDER)
    # Templates may strip the text; anything further and it cannot be pointed back into.
    if found:
        for kept in (text, text.strip()):
            if whole == before + kept + after:
                start = len(before) - text.index(kept)
                return _Fed(whole, start, len(text), add_special=False)
    return _Fed(whole, 0, 0, add_special=False, is_located=False)


Offsets = list[tuple[int, int] | None]


def _tokenise(
    tokenizer: Any, fed: _Fed, *, as_target: bool = False
) -> tuple[list[int], Offsets, list[bool]]:
    """Returns ids, offsets into what was fed, and which tokens the tokenizer put in itself."""
    is_fast = bool(getattr(tokenizer, "is_fast", False))
    options: dict[str, Any] = {
        "add_special_tokens": fed.add_special,
        "return_attention_mask": False,
        "return_offsets_mapping": is_fast,
        "return_special_tokens_mask": is_fast,
        "verbose": False,
    }
    try:
        made = tokenizer(**{"text_target" if as_target else "text": fed.whole}, **options)
    except (ValueError, TypeError, OverflowError, UnicodeError) as error:
        raise BadInputError(
            f"The tokenizer does not take this text: {error}.", "Remove unusual characters."
        ) from error
    ids = [int(i) for i in made["input_ids"]]
    if is_fast:
        return ids, list(made["offset_mapping"]), [bool(m) for m in made["special_tokens_mask"]]
    special = _special_ids(tokenizer, getattr(tokenizer, "added_tokens_decoder", {}))
    return ids, [None] * len(ids), [i in special for i in ids]


def _cut(
    ids: list[int], offsets: Offsets, added: list[bool], limit: int
) -> tuple[list[int], Offsets, list[bool]]:
    """Keeps the first tokens, and the tokens the tokenizer puts at the end of every text."""
    n_tail = 0
    while n_tail < len(ids) and added[-1 - n_tail]:
        n_tail += 1
    n_tail = min(n_tail, limit - 1)
    keep = [*range(limit - n_tail), *range(len(ids) - n_tail, len(ids))]
    return [ids[i] for i in keep], [offsets[i] for i in keep], [added[i] for i in keep]


def _check_rows(loaded: LoadedModel, tokenizer: Any, ids: Sequence[int]) -> None:
    rows = embedding_table(loaded.module)
    beyond = sorted({i for i in ids if i >= rows or i < 0}) if rows else []
    if not beyond:
        return
    named = ", ".join(f"{i} ('{tokenizer.convert_ids_to_tokens(i)}')" for i in beyond[:8])
    raise BadInputError(
        f"The tokenizer does not match the model: token ids {named} have no row among the "
        f"{rows} of the embedding.",
        "Resize the embedding (model.resize_token_embeddings) and save both, or leave these "
        "tokens out of the text.",
    )


def _decoder_limit(loaded: LoadedModel) -> int | None:
    config = getattr(loaded.module, "config", None)
    for name in ("max_target_positions", "max_position_embeddings"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _tokens(
    tokenizer: Any, ids: Sequence[int], offsets: Offsets, added: Sequence[bool], fed: _Fed
) -> tuple[Token, ...]:
    pieces = [_piece(tokenizer, i) for i in ids]
    table = getattr(tokenizer, "added_tokens_decoder", {})
    special_ids = _special_ids(tokenizer, table)
    is_special = [was_added or i in special_ids for i, was_added in zip(ids, added, strict=True)]
    literal = [i in table or special for i, special in zip(ids, is_special, strict=True)]
    shown = display_pieces(pieces, literal, piece_reader(tokenizer))
    return tuple(
        Token(i, text, None if special else _place(offset, fed), special)
        for i, text, offset, special in zip(ids, shown, offsets, is_special, strict=True)
    )


def _special_ids(tokenizer: Any, table: Any) -> set[int]:
    """Returns the ids that mark up a text rather than carry it.

    The token for unknown words carries text, unless it doubles as start or end token (GPT-2,
    Whisper): such tokenizers know every byte and never say "unknown".
    """
    ids = set(getattr(tokenizer, "all_special_ids", ()))
    ids |= {i for i, token in table.items() if getattr(token, "special", False)}
    unknown = getattr(tokenizer, "unk_token_id", None)
    ends = (getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "eos_token_id", None))
    return ids if unknown is None or unknown in ends else ids - {unknown}


def _place(offset: tuple[int, int] | None, fed: _Fed) -> tuple[int, int] | None:
    """Returns [start, end) in the text as typed; None for what stands around it."""
    if offset is None or not fed.is_located:
        return None
    start = max(0, min(offset[0] - fed.start, fed.length))
    end = max(0, min(offset[1] - fed.start, fed.length))
    return (start, end) if start < end else None


def _piece(tokenizer: Any, token_id: int) -> str:
    piece = tokenizer.convert_ids_to_tokens(token_id)
    return str(piece) if piece is not None else f"[{token_id}]"
