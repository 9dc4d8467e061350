"""The service on real embedded models: known values, cases of real users, bad input.

The figures for 苹果 come from an independent run of the same weights in plain transformers.
"""

import json
import pickle
import threading
import wave
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Wav2Vec2FeatureExtractor

from core import (
    CancelledError,
    CaptureRequest,
    HeadscopeError,
    MapRequest,
    ModelRequest,
    OverviewRequest,
)
from core import service as service_module
from core.cache import ByteCache, FairQueue
from core.models.loading import wrap_module
from core.models.tokens import encode
from core.results import CaptureResult, Progress
from core.service import HeadscopeService
from tests.capture.families import FAMILIES, Family
from tests.models.conftest import word_tokenizer

E5, MINILM, SMOLLM2, WHISPER = (
    ModelRequest(name)
    for name in ("e5-small-multilingual", "minilm-en", "smollm2-135m", "whisper-tiny-en")
)
APPLE = "我吃了一个苹果"
SPEECH = Path(__file__).parent / "data" / "ask_not.wav"
HEARD = CaptureRequest(WHISPER, (), audio=str(SPEECH))
TEXT_FAMILIES = [
    f for f in FAMILIES if f.backend != "refused" and f.build().main_input_name == "input_ids"
]


@pytest.fixture(scope="module")
def service() -> HeadscopeService:
    return HeadscopeService()


@pytest.mark.models
def test_default_text_has_the_known_tokens(service: HeadscopeService) -> None:
    result = service.capture(CaptureRequest(E5, (APPLE,)))
    texts = [t.text for t in result.texts[0].query_tokens]
    assert texts == ["<s>", "▁我", "吃", "了一个", "苹果", "</s>"]
    assert result.texts[0].query_tokens[4].offset == (5, 7)
    assert result.backend == "interface"


@pytest.mark.models
def test_contextual_vectors_of_apple_have_the_known_cosines(service: HeadscopeService) -> None:
    texts = (APPLE, "她削了一个苹果", "苹果公司发布了新手机")
    request = CaptureRequest(E5, texts, hold_hidden=True)
    result = service.capture(request)
    vectors = []
    for entry in result.texts:
        held = service._captures.get(request)
        assert held is not None
        hidden = held.records["encoder", entry.text_index].hidden
        assert hidden is not None
        where = [t.text for t in entry.query_tokens].index("苹果")
        vectors.append(hidden[:, where])
    similar = [torch.cosine_similarity(vectors[0], v, dim=-1) for v in vectors[1:]]
    known = {(0, 12): 0.954, (0, 11): 0.949, (1, 12): 0.890, (1, 11): 0.783}
    for (pair, layer), value in known.items():
        assert float(similar[pair][layer]) == pytest.approx(value, abs=0.01)


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "text"),
    [(E5, APPLE), (MINILM, "An apple fell from the old tree."), (SMOLLM2, "An apple fell, 苹果")],
)
def test_maps_equal_eager_on_real_text(
    service: HeadscopeService, model: ModelRequest, text: str
) -> None:
    request = CaptureRequest(model, (text,))
    result = service.capture(request)
    module = service._model(model, None).module
    ids = torch.tensor([[t.id for t in result.texts[0].query_tokens]])
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    with torch.no_grad():
        maps = module(input_ids=ids, output_attentions=True).attentions
    module.set_attn_implementation(before)
    assert len(maps) == result.texts[0].n_layers
    for layer in range(len(maps)):
        for head in range(result.texts[0].n_heads):
            shown = service.head_map(MapRequest(request, layer=layer, head=head)).weights
            assert np.abs(shown - maps[layer][0, head].numpy()).max() <= 1e-5


@pytest.mark.models
def test_several_texts_never_count_padding(service: HeadscopeService) -> None:
    longer = "苹果公司发布了新手机，股价上涨了百分之三"
    together = service.capture(CaptureRequest(E5, (APPLE, longer), blocks=True))
    alone = service.capture(CaptureRequest(E5, (APPLE,), blocks=True))
    assert [len(t.query_tokens) for t in together.texts] == [6, 14]
    entropy = together.texts[0].metrics["entropy_over_ln_n"][5].mean()
    assert entropy == pytest.approx(0.3723, abs=0.001)
    for name, value in alone.texts[0].metrics.items():
        np.testing.assert_allclose(value, together.texts[0].metrics[name], atol=1e-5)


@pytest.mark.models
def test_byte_pieces_are_shown_as_parts_of_characters(service: HeadscopeService) -> None:
    result = service.capture(CaptureRequest(SMOLLM2, (APPLE,)))
    labels = [t.text for t in result.texts[0].query_tokens]
    assert len(labels) == 10
    assert labels[-4:] == ["苹 1/3", "苹 2/3", "苹 3/3", "果"]
    assert not set("".join(labels)) & set("æåäèçĲĳĥľŁĶĮ\ufffd")


@pytest.mark.models
def test_repeated_tokens_keep_their_places(service: HeadscopeService) -> None:
    request = CaptureRequest(E5, ("苹果 苹果 苹果 apple apple apple",))
    n = len(service.capture(request).texts[0].query_tokens)
    shown = service.head_map(MapRequest(request, layer=3, head=2))
    assert shown.weights.shape == (n, n)
    assert shown.key_index == tuple(range(n))


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "text", "number"), [(E5, "苹果" * 600, "512"), (SMOLLM2, "apple " * 9000, "8192")]
)
def test_too_long_text_names_count_and_limit(
    service: HeadscopeService, model: ModelRequest, text: str, number: str
) -> None:
    with pytest.raises(HeadscopeError, match=number) as caught:
        service.capture(CaptureRequest(model, (text,)))
    assert caught.value.kind == "too-large"
    assert "10000000000" not in str(caught.value)


@pytest.mark.models
def test_text_is_cut_on_request(service: HeadscopeService) -> None:
    result = service.capture(CaptureRequest(MINILM, ("apple " * 700,), truncate=True))
    assert len(result.texts[0].query_tokens) == 512
    assert result.texts[0].query_tokens[-1].text == "[SEP]"
    assert "702" in result.notes[0]
    assert "512" in result.notes[0]


@pytest.mark.models
def test_hidden_specials_leave_rows_that_sum_to_one(service: HeadscopeService) -> None:
    request = CaptureRequest(E5, (APPLE,))
    shown = service.head_map(MapRequest(request, layer=2, head=3, hide_special=True))
    assert shown.key_index == (1, 2, 3, 4)
    np.testing.assert_allclose(shown.weights.sum(1), 1, atol=1e-6)


@pytest.mark.models
def test_mean_map_is_the_mean_of_the_heads(service: HeadscopeService) -> None:
    request = CaptureRequest(E5, (APPLE,))
    single = [service.head_map(MapRequest(request, layer=4, head=h)).weights for h in range(12)]
    mean = service.head_map(MapRequest(request, layer=4, head=None)).weights
    np.testing.assert_allclose(mean, np.mean(single, 0), atol=1e-6)


@pytest.mark.models
def test_overview_of_a_short_text_is_the_maps_themselves(service: HeadscopeService) -> None:
    request = CaptureRequest(E5, (APPLE,))
    small = service.overview(OverviewRequest(request)).weights
    exact = service.head_map(MapRequest(request, layer=7, head=1)).weights
    assert small.shape == (12, 12, 6, 6)
    np.testing.assert_allclose(small[7, 1], exact, atol=1e-3)


@pytest.mark.models
def test_equal_requests_run_the_model_once(service: HeadscopeService) -> None:
    request = CaptureRequest(MINILM, ("Only one of us should run the model.",))
    stages: list[str] = []
    results: list[CaptureResult] = []

    def ask() -> None:
        results.append(service.capture(request, progress=lambda p: stages.append(p.stage)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(r is results[0] for r in results)
    assert service.is_cached(request)


@pytest.mark.models
def test_a_stopped_capture_leaves_the_service_usable(service: HeadscopeService) -> None:
    class Stop(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.stage == "capture":
            raise Stop

    request = CaptureRequest(MINILM, ("This one is stopped on the way.",))
    with pytest.raises(Stop):
        service.capture(request, progress=stop)
    assert not service.is_cached(request)
    assert service.capture(request).texts[0].n_layers == 6


@pytest.mark.models
def test_results_are_picklable_and_become_strict_json(service: HeadscopeService) -> None:
    result = service.capture(CaptureRequest(E5, (APPLE, "一")))
    assert pickle.loads(pickle.dumps(result)).texts[0].n_heads == 12
    json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("model", "text", "kind"),
    [
        (E5.model, "", "bad-input"),
        (E5.model, " \n\t ", "bad-input"),
        (E5.model, "a" * 1_000_001, "too-large"),
        # A bare name may be a hub id (gpt2 is one), which cannot be looked up here.
        ("no-such-model", "hello", "no-network"),
        ("/no/such/folder", "hello", "unknown-model"),
        ("someone/some-model", "hello", "no-network"),
        ("", "hello", "bad-input"),
    ],
)
@pytest.mark.models
def test_bad_input_is_answered_in_words(
    service: HeadscopeService, model: str, text: str, kind: str
) -> None:
    with pytest.raises(HeadscopeError) as caught:
        service.capture(CaptureRequest(ModelRequest(model), (text,)))
    assert caught.value.kind == kind
    assert caught.value.message
    assert caught.value.hint


@pytest.mark.models
def test_a_module_in_memory_is_captured_and_left_as_it_came(service: HeadscopeService) -> None:
    loaded = service._model(MINILM, None)
    module = loaded.module.train()
    try:
        before = module.config._attn_implementation
        taken = service.capture(model=module, tokenizer=loaded.tokenizer, texts=["An apple."])
        assert all(m.training for m in module.modules())
        assert not any(m._forward_pre_hooks for m in module.modules())
        assert module.config._attn_implementation == before
    finally:
        module.eval()
    same = service.capture(CaptureRequest(MINILM, ("An apple.",)))
    for name, value in same.texts[0].metrics.items():
        np.testing.assert_allclose(taken.texts[0].metrics[name], value, atol=1e-6)


def test_a_folder_outside_the_roots_is_refused(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (allowed / "link").symlink_to(other)
    service = HeadscopeService((allowed,))
    for folder in (other, allowed / "link", allowed / ".." / "other"):
        with pytest.raises(HeadscopeError, match="outside") as caught:
            service.capture(CaptureRequest(ModelRequest(str(folder)), ("hello",)))
        assert caught.value.kind == "unsafe-files"


def test_cache_stays_within_its_budget() -> None:
    cache: ByteCache[bytes] = ByteCache(100, len)
    for i in range(5):
        cache.compute_once(i, lambda: b"x" * 40, lambda place: None)
    assert [cache.get(i) is not None for i in range(5)] == [False, False, False, True, True]


def test_queue_serves_in_order_and_tells_the_place() -> None:
    queue, order, places = FairQueue(), [], []
    holding, go = threading.Event(), threading.Event()

    def hold() -> None:
        holding.set()
        assert go.wait(10)
        order.append("first")

    first = threading.Thread(target=lambda: queue.run(hold, lambda place: None))
    first.start()
    assert holding.wait(10)

    def waiting(place: int) -> None:
        places.append(place)
        go.set()

    queue.run(lambda: order.append("second"), waiting)
    first.join()
    assert order == ["first", "second"]
    assert places[0] == 1


# --- sound -----------------------------------------------------------------------------------


@pytest.mark.models
def test_whisper_writes_down_what_was_said(service: HeadscopeService) -> None:
    result = service.capture(HEARD)
    assert [t.kind for t in result.texts] == ["encoder", "decoder", "cross"]
    decoder, cross = result.texts[1:]
    words = [t.text for t in decoder.query_tokens]
    assert words[:2] == ["<|startoftranscript|>", "<|notimestamps|>"]
    said = "".join(words[2:]).replace("▁", " ").strip()
    assert said == "Ask not what your country can do for you."
    assert cross.query_tokens == decoder.query_tokens
    assert cross.key_tokens == result.texts[0].query_tokens
    assert any("30 s" in note for note in result.notes)


@pytest.mark.models
@pytest.mark.parametrize("target", [None, "ask not what your country"])
def test_whisper_maps_equal_eager(service: HeadscopeService, target: str | None) -> None:
    request = CaptureRequest(WHISPER, (), audio=str(SPEECH), target=target)
    result = service.capture(request)
    loaded = service._model(WHISPER, None)
    module: Any = loaded.module
    with wave.open(str(SPEECH)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / np.float32(32768)
    heard = loaded.feature_extractor(samples, sampling_rate=16000, return_tensors="pt")
    ids = torch.tensor([[t.id for t in result.texts[1].query_tokens]])
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = module(**heard, decoder_input_ids=ids, output_attentions=True)
    module.set_attn_implementation(before)
    for kind in ("encoder", "decoder", "cross"):
        maps = outputs[f"{kind}_attentions"]
        assert len(maps) == 4
        for layer, weights in enumerate(maps):
            for head in range(6):
                asked = MapRequest(request, kind=kind, layer=layer, head=head)
                shown = service.head_map(asked).weights
                assert np.abs(shown - weights[0, head].numpy()).max() <= 1e-5


@pytest.mark.models
def test_a_sound_that_became_silence_under_its_name_is_heard_again(
    service: HeadscopeService, tmp_path: Path
) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(SPEECH.read_bytes())
    request = CaptureRequest(WHISPER, (), audio=str(path), target="ask not")
    spoken = service.capture(request)
    assert service.is_cached(request)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16000))
    assert not service.is_cached(request)
    silent = service.capture(request)
    one, other = (r.texts[2].metrics["max_weight"] for r in (spoken, silent))
    assert np.isfinite(other).all()
    assert np.abs(one - other).max() > 0.01


@pytest.mark.models
@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (CaptureRequest(WHISPER, ("hello",)), "listens to sound"),
        (CaptureRequest(WHISPER, ("hello",), audio=str(SPEECH)), "listens to sound"),
        (CaptureRequest(MINILM, (), audio=str(SPEECH)), "reads text"),
        (CaptureRequest(MINILM, ("hello",), audio=str(SPEECH)), "reads text"),
        (CaptureRequest(WHISPER, (), audio="/no/such.wav"), "no file"),
        (CaptureRequest(WHISPER, (), audio=str(Path(__file__))), "not a WAV"),
        (CaptureRequest(WHISPER, (), audio=str(SPEECH), target=" "), "only blanks"),
    ],
)
def test_sound_and_text_in_the_wrong_place_are_refused(
    service: HeadscopeService, request_: CaptureRequest, words: str
) -> None:
    with pytest.raises(HeadscopeError, match=words) as caught:
        service.capture(request_)
    assert caught.value.kind == "bad-input"
    assert caught.value.hint


def test_a_model_of_raw_waves_is_captured_too(tmp_path: Path) -> None:
    family = next(f for f in FAMILIES if f.name == "wav2vec2")
    module = family.build()
    module.save_pretrained(tmp_path)
    Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    path = tmp_path / "sound.wav"
    samples = (8000 * np.sin(np.arange(800) / 9)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    service = HeadscopeService()
    request = CaptureRequest(ModelRequest(str(tmp_path)), (), audio=str(path))
    result = service.capture(request)
    # Two convolutions of width 5 and 3 and stride 5 and 2: (800 / 5 - 3) / 2 + 1 positions.
    assert [t.text for t in result.texts[0].query_tokens][:3] == [
        "0.0000 s",
        "0.0006 s",
        "0.0013 s",
    ]
    wave_form = (samples - samples.mean()) / np.sqrt(samples.astype(np.float64).var() + 1e-7)
    with torch.no_grad():
        maps = module(
            torch.tensor(wave_form, dtype=torch.float32)[None], output_attentions=True
        ).attentions
    assert maps[0].shape[-1] == len(result.texts[0].query_tokens) == 79
    for layer, weights in enumerate(maps):
        shown = service.head_map(MapRequest(request, layer=layer, head=1)).weights
        np.testing.assert_allclose(shown, weights[0, 1].numpy(), atol=1e-4)


# --- several texts at once -------------------------------------------------------------------


@pytest.fixture
def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each run of a model took."""
    sizes: list[int] = []
    forward = service_module.capture_forward

    def spy(module: Any, inputs: Any, **options: Any) -> Any:
        sizes.append(len(inputs["input_ids"]))
        return forward(module, inputs, **options)

    monkeypatch.setattr(service_module, "capture_forward", spy)
    return sizes


def assert_same_as_alone(together: service_module._Held, alone: list[service_module._Held]) -> None:
    for index, single in enumerate(alone):
        entries = [t for t in together.result.texts if t.text_index == index]
        assert [t.kind for t in entries] == [t.kind for t in single.result.texts]
        for entry, own in zip(entries, single.result.texts, strict=True):
            assert entry.query_tokens == own.query_tokens
            for name, values in own.metrics.items():
                np.testing.assert_allclose(
                    entry.metrics[name], values, atol=1e-5, rtol=1e-5, err_msg=name
                )
            one, other = together.records[own.kind, index].store, single.records[own.kind, 0].store
            assert one is not None
            assert other is not None
            window = (0, len(own.query_tokens)), (0, len(own.key_tokens))
            for layer in range(own.n_layers):
                maps = [s.weights(layer, slice(None), *window) for s in (one, other)]
                assert float((maps[0] - maps[1]).abs().max()) <= 1e-5


@pytest.mark.parametrize("family", TEXT_FAMILIES, ids=lambda family: family.name)
def test_texts_of_a_batch_are_as_if_alone(
    service: HeadscopeService, batch_sizes: list[int], family: Family
) -> None:
    loaded = wrap_module(family.build(), word_tokenizer())
    if loaded.info.kind == "encoder-decoder":
        loaded.module.generation_config.eos_token_id = 3  # type: ignore[union-attr]
    texts = ("the apple 苹果 bank the apple apple", "bank", "apple the bank")
    asked = CaptureRequest(ModelRequest("tiny"), texts, blocks=True)
    together = service._run(asked, loaded, [encode(loaded, t) for t in texts], None)
    assert batch_sizes == [3]
    assert together.result.backend == family.backend
    alone = [service._run(asked, loaded, [encode(loaded, t)], None) for t in texts]
    assert_same_as_alone(together, alone)


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "texts"),
    [
        (E5, (APPLE, "苹果公司发布了新手机，股价上涨了百分之三", "An apple a day.")),
        (SMOLLM2, ("An apple fell.", "The stock of the company fell by three percent.", APPLE)),
    ],
)
def test_real_texts_of_a_batch_are_as_if_alone(
    service: HeadscopeService, batch_sizes: list[int], model: ModelRequest, texts: tuple[str, ...]
) -> None:
    loaded = service._model(model, None)
    asked = CaptureRequest(model, texts, blocks=True)
    together = service._run(asked, loaded, [encode(loaded, t) for t in texts], None)
    assert batch_sizes == [3]
    alone = [service._run(asked, loaded, [encode(loaded, t)], None) for t in texts]
    assert_same_as_alone(together, alone)


@pytest.mark.models
def test_batches_are_bounded_by_tokens_and_by_memory(
    service: HeadscopeService, batch_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("apple " * 100, "apple", "apple " * 101, "apple two")
    request = CaptureRequest(MINILM, texts)
    monkeypatch.setattr(service_module, "MAX_BATCH_TOKENS", 206)
    result = service.capture(request)
    # The two short ones came first: 102 tokens three times are too many.
    assert batch_sizes == [2, 2]
    assert [len(t.query_tokens) for t in result.texts] == [102, 3, 103, 4]
    loaded = service._model(MINILM, None)
    need = service_module.forecast_bytes(loaded, 103)
    monkeypatch.setattr(service_module, "_free_bytes", lambda loaded: need)
    batch_sizes.clear()
    service.capture(CaptureRequest(MINILM, texts, blocks=True))
    assert batch_sizes == [2, 1, 1]
    monkeypatch.setattr(service_module, "_free_bytes", lambda loaded: need - 1)
    with pytest.raises(HeadscopeError, match="103 tokens") as caught:
        service.capture(CaptureRequest(MINILM, (*texts, "more")))
    assert caught.value.kind == "out-of-memory"


@pytest.mark.models
def test_progress_of_batches_rises_to_the_end_and_can_stop_them(
    service: HeadscopeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "MAX_BATCH_TOKENS", 20)
    seen: list[Progress] = []
    request = CaptureRequest(MINILM, ("one", "two of us", "three", "four of them all"))
    service.capture(request, progress=seen.append)
    done = [p.done for p in seen if p.stage == "capture"]
    assert done == sorted(done)
    assert done[-1] == {p.total for p in seen if p.stage == "capture"}.pop() == 24

    def stop(progress: Progress) -> None:
        if progress.done > 12:
            raise CancelledError

    stopped = CaptureRequest(MINILM, ("five", "six of us", "seven", "eight of them all"))
    with pytest.raises(CancelledError):
        service.capture(stopped, progress=stop)
    assert not service.is_cached(stopped)


@pytest.mark.models
def test_next_tokens_are_those_of_each_text(service: HeadscopeService) -> None:
    texts = ("The capital of France is", "One, two, three,")
    result = service.capture(CaptureRequest(SMOLLM2, texts, top_tokens=3))
    loaded = service._model(SMOLLM2, None)
    for text, entry in zip(texts, result.texts, strict=True):
        with torch.no_grad():
            logits = loaded.module(torch.tensor([encode(loaded, text).ids])).logits[0, -1]
        best = logits.softmax(-1).max()
        assert entry.top_tokens[0][1] == pytest.approx(float(best), abs=1e-5)
    assert [t.top_tokens[0][0] for t in result.texts] == ["▁Paris", "▁four"]


# --- faults that must not come back ----------------------------------------------------------


@pytest.mark.models
def test_a_window_without_specials_is_a_window_of_the_whole(service: HeadscopeService) -> None:
    request = CaptureRequest(E5, (APPLE,))
    for head in (3, None):
        whole = service.head_map(MapRequest(request, layer=2, head=head, hide_special=True))
        part = service.head_map(
            MapRequest(request, layer=2, head=head, hide_special=True, rows=(2, 4), keys=(0, 3))
        )
        assert (part.query_index, part.key_index) == ((2, 3), (1, 2))
        np.testing.assert_allclose(part.weights, whole.weights[1:3, :2], atol=1e-6)
        plain = service.head_map(MapRequest(request, layer=2, head=head)).weights
        exact = plain[2, 1] / plain[2, 1:5].sum()
        assert part.weights[0, 0] == pytest.approx(exact, abs=1e-6)


@pytest.mark.models
@pytest.mark.parametrize("error", [RuntimeError("mine"), MemoryError("mine"), KeyError("mine")])
def test_what_the_callback_raises_comes_through_unchanged(
    service: HeadscopeService, error: Exception
) -> None:
    def fail(progress: Progress) -> None:
        if progress.stage == "capture":
            raise error

    with pytest.raises(type(error)) as caught:
        service.capture(CaptureRequest(MINILM, ("My own fault.",)), progress=fail)
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("bad kernel"), "internal"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out-of-memory"),
        (IndexError("bad index"), "internal"),
    ],
)
def test_what_the_model_raises_is_put_into_words(
    service: HeadscopeService, error: Exception, kind: str
) -> None:
    module = next(f for f in FAMILIES if f.name == "bert").build()

    def fail(*_: Any) -> None:
        raise error

    module.register_forward_pre_hook(fail)
    with pytest.raises(HeadscopeError) as caught:
        service.capture(model=module, tokenizer=word_tokenizer(), texts=["apple"])
    assert caught.value.kind == kind
    assert caught.value.__cause__ is error


def test_a_failed_computation_leaves_nothing_behind() -> None:
    cache: ByteCache[str] = ByteCache(10, len)

    def fail() -> str:
        raise ValueError

    for key in range(3):
        with pytest.raises(ValueError, match=r"^$"):
            cache.compute_once(key, fail, lambda place: None)
    assert cache._turns == {}
    assert cache.compute_once(0, lambda: "now", lambda place: None) == "now"
    assert cache._turns == {}


def test_who_waits_takes_over_when_the_first_fails() -> None:
    cache: ByteCache[str] = ByteCache(10, len)
    computing, others_wait = threading.Event(), threading.Event()
    made: list[str] = []
    answers: list[str] = []

    def fail() -> str:
        computing.set()
        assert others_wait.wait(10)
        raise ValueError

    def compute() -> str:
        made.append("once")
        return "value"

    def first() -> None:
        with pytest.raises(ValueError, match=r"^$"):
            cache.compute_once("key", fail, lambda place: None)

    def other() -> None:
        answers.append(cache.compute_once("key", compute, lambda place: others_wait.set()))

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert computing.wait(10)
    threads += [threading.Thread(target=other) for _ in range(3)]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert (made, answers) == (["once"], ["value"] * 3)
    assert cache._turns == {}


# --- captures that no longer fit into memory -------------------------------------------------


@pytest.fixture
def spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "spill"
    monkeypatch.setattr(service_module, "spill_folder", lambda: folder)
    return folder


@pytest.mark.models
def test_a_capture_over_the_budget_is_answered_from_disk(spills: Path) -> None:
    requests = [CaptureRequest(MINILM, (f"An apple of kind {i}.",)) for i in range(3)]
    probe = HeadscopeService()
    probe.capture(requests[0])
    held = probe._captures.get(requests[0])
    assert held is not None
    size = held.nbytes
    # One capture in memory, one on disk: the third of three lets the first go.
    service = HeadscopeService(
        capture_budget_bytes=int(1.5 * size), spill_budget_bytes=int(1.5 * size)
    )
    service._models = probe._models

    def shown() -> list[Any]:
        maps = [
            service.head_map(MapRequest(requests[0], layer=layer, head=head)).weights
            for layer in range(6)
            for head in (0, 11, None)
        ]
        return [*maps, service.overview(OverviewRequest(requests[0])).weights]

    before = shown()
    held = service._captures.get(requests[0])
    assert held is not None
    service.capture(requests[1])
    assert service.is_cached(requests[0])
    assert service._captures.get(requests[0]) is held
    store = held.records["encoder", 0].store
    assert store.spilled is not None  # type: ignore[union-attr]
    assert store.spilled.parent == spills  # type: ignore[union-attr]
    for one, other in zip(before, shown(), strict=True):
        np.testing.assert_array_equal(one, other)
    mapped = weakref.ref(store.layers[0].query)  # type: ignore[union-attr]
    assert mapped() is not None
    del held, store
    service.capture(requests[2])
    assert [service.is_cached(r) for r in requests] == [False, True, True]
    # Nothing holds the mapped bytes any more, and no file was left at any time.
    assert mapped() is None
    assert list(spills.iterdir()) == []


def test_whole_maps_and_hidden_states_are_moved_to_disk_too(
    service: HeadscopeService, spills: Path
) -> None:
    loaded = wrap_module(
        next(f for f in FAMILIES if f.name == "deberta-v2").build(), word_tokenizer()
    )
    asked = CaptureRequest(ModelRequest("tiny"), ("the apple", "bank"), hold_hidden=True)
    held = service._run(asked, loaded, [encode(loaded, t) for t in asked.texts], None)

    def kept() -> list[Any]:
        found: list[Any] = []
        for record in held.records.values():
            assert record.store is not None
            assert record.hidden is not None
            found += [record.store.weights(1, slice(None), (0, 3), (0, 3)), record.hidden]
            found += [torch.from_numpy(np.array(layer.overview)) for layer in record.layers]
        return [tensor.clone() for tensor in found]

    before, size = kept(), held.nbytes
    assert held.spill()
    assert held.nbytes == size
    assert all(torch.equal(a, b) for a, b in zip(before, kept(), strict=True))
    assert list(spills.iterdir()) == []


def test_a_capture_that_cannot_be_written_is_let_go(
    service: HeadscopeService, spills: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spills.write_text("a file where the folder should be")
    loaded = wrap_module(next(f for f in FAMILIES if f.name == "bert").build(), word_tokenizer())
    asked = CaptureRequest(ModelRequest("tiny"), ("the apple",))
    held = service._run(asked, loaded, [encode(loaded, "the apple")], None)
    assert not held.spill()
    assert "let go" in caplog.text
    cache: ByteCache[service_module._Held] = ByteCache(
        1, lambda held: 1, spill=service_module._Held.spill, spill_budget_bytes=10
    )
    for key in "ab":
        cache.compute_once(key, lambda: held, lambda place: None)
    assert [cache.get(key) is held for key in "ab"] == [False, True]
