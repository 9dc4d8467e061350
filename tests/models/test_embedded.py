"""The four embedded models with their real weights: tokens, vectors and facts as measured."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from core.errors import TooLargeError
from core.models.catalogue import CATALOGUE
from core.models.loading import LoadedModel, embedded_info
from core.models.prepare import prepare_model
from core.models.tokens import EncodedText, encode, encode_target

pytestmark = pytest.mark.models

Embedded = Callable[[str], LoadedModel]
E5, MINILM, SMOLLM2, WHISPER = CATALOGUE
FRUIT, OTHER_FRUIT, COMPANY = "我吃了一个苹果", "她削了一个苹果", "苹果公司发布了新手机"


def vector(loaded: LoadedModel, text: str, word: str, layer: int) -> torch.Tensor:
    made = encode(loaded, text)
    place = [token.text for token in made.tokens].index(word)
    with torch.inference_mode():
        out = loaded.module(torch.tensor([made.ids]), output_hidden_states=True)
    return out.hidden_states[layer][0, place]


def cosine(loaded: LoadedModel, a: str, b: str, word: str, layer: int) -> float:
    pair = vector(loaded, a, word, layer), vector(loaded, b, word, layer)
    return float(torch.nn.functional.cosine_similarity(*pair, dim=0))


@pytest.mark.parametrize("model_id", CATALOGUE)
def test_catalogue_says_what_loading_finds(embedded: Embedded, model_id: str) -> None:
    loaded = embedded(model_id)
    listed, found = vars(embedded_info(CATALOGUE[model_id])), vars(loaded.info)
    differing = {name for name in listed if listed[name] != found[name]}
    assert differing <= {"dtype", "device"}
    assert loaded.missing_keys == ()
    assert not loaded.info.random_weights


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FRUIT, "<s> ▁我 吃 了一个 苹果 </s>"),
        (COMPANY, "<s> ▁ 苹果 公司 发布了 新 手机 </s>"),
        ("青苹果", "<s> ▁ 青 苹果 </s>"),
        ("e\u0301clair 苹果", "<s> ▁\u00e9clair ▁ 苹果 </s>"),
    ],
)
def test_e5_tokens(embedded: Embedded, text: str, expected: str) -> None:
    assert " ".join(t.text for t in encode(embedded(E5), text).tokens) == expected


def test_e5_token_ids(embedded: Embedded) -> None:
    # As in the vocabulary that XLM-R models share.
    assert encode(embedded(E5), "Hello world").ids == (0, 35378, 8999, 2)


@pytest.mark.parametrize(
    ("text", "place", "offset"),
    [
        ("㍿苹果发布了…新手机", 3, (1, 3)),
        ("ＡＰＰＬＥ和苹果", 4, (6, 8)),
        ("e\u0301clair 苹果", 1, (0, 7)),
    ],
)
def test_e5_offsets_are_of_the_text_as_typed(
    embedded: Embedded, text: str, place: int, offset: tuple[int, int]
) -> None:
    assert encode(embedded(E5), text).tokens[place].offset == offset


@pytest.mark.parametrize(
    ("other", "layer", "expected"),
    [
        (OTHER_FRUIT, 12, 0.954),
        (OTHER_FRUIT, 11, 0.949),
        (COMPANY, 12, 0.890),
        (COMPANY, 11, 0.783),
        (COMPANY, 0, 0.958),
    ],
)
def test_e5_senses_of_the_word(embedded: Embedded, other: str, layer: int, expected: float) -> None:
    found = cosine(embedded(E5), FRUIT, other, "苹果", layer)
    assert found == pytest.approx(expected, abs=0.01)


def test_minilm_does_not_know_chinese_words(embedded: Embedded) -> None:
    tokens = encode(embedded(MINILM), "unaffable 苹果").tokens
    assert [t.text for t in tokens] == [
        "[CLS]", "una", "##ffa", "##ble", "[UNK]", "[UNK]", "[SEP]",
    ]  # fmt: skip
    assert tokens[4].offset == (10, 11)
    assert not tokens[4].is_special


def test_smollm2_knows_english(embedded: Embedded) -> None:
    text = (
        "The cat sat on the mat. The weather in London is often rainy, and people carry umbrellas."
    )
    ids = torch.tensor([encode(embedded(SMOLLM2), text).ids])
    with torch.inference_mode():
        loss = float(embedded(SMOLLM2).module(ids, labels=ids).loss)
    assert loss < 4


def test_smollm2_shows_parts_of_characters(embedded: Embedded) -> None:
    tokens = encode(embedded(SMOLLM2), FRUIT).tokens
    assert [t.text for t in tokens] == [
        "我 1/2", "我 2/2", "吃 1/2", "吃 2/2", "了", "一个", "苹 1/3", "苹 2/3", "苹 3/3", "果",
    ]  # fmt: skip
    assert not set("".join(t.text for t in tokens)) & set("æåäèçĲĳĥľŁĶĮ\ufffd")
    assert {t.offset for t in tokens[6:9]} == {(5, 6)}


def test_smollm2_chat_points_into_the_text(embedded: Embedded) -> None:
    made: EncodedText = encode(embedded(SMOLLM2), "Hi there", feed="chat")
    assert [t.offset for t in made.tokens if t.offset] == [(0, 2), (2, 8)]
    assert made.tokens[0].text == "<|im_start|>"


def test_whisper_target(embedded: Embedded) -> None:
    tokens = encode_target(embedded(WHISPER), "hello world").tokens
    assert [t.text for t in tokens] == [
        "<|startoftranscript|>", "<|notimestamps|>", "hello", "▁world",
    ]  # fmt: skip
    assert embedded(WHISPER).feature_extractor is not None


@pytest.mark.parametrize(
    ("model_id", "text", "limit"),
    [(E5, "苹果" * 600, "512"), (SMOLLM2, "apple " * 9000, "8192")],
)
def test_too_long_texts_name_the_limit(
    embedded: Embedded, model_id: str, text: str, limit: str
) -> None:
    with pytest.raises(TooLargeError, match=rf"at most {limit} \(max_position_embeddings"):
        encode(embedded(model_id), text)


@pytest.mark.parametrize("model_id", CATALOGUE)
def test_prepared_folders_hold_no_code_and_no_source(model_id: str) -> None:
    folder: Path = prepare_model(model_id)
    suffixes = {path.suffix for path in folder.iterdir()}
    assert suffixes <= {".json", ".txt", ".safetensors", ".jinja"}
    marker = json.loads((folder / "headscope.json").read_text())
    assert marker["source_sha256"] == CATALOGUE[model_id].wheel.sha256
