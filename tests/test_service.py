"""The service on real embedded models: known values, cases of real users, bad input.

The figures for 苹果 come from an independent run of the same weights in plain transformers.
"""

import json
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from core import CaptureRequest, HeadscopeError, MapRequest, ModelRequest, OverviewRequest
from core.cache import ByteCache, FairQueue
from core.results import CaptureResult, Progress
from core.service import HeadscopeService

E5, MINILM, SMOLLM2 = (
    ModelRequest(name) for name in ("e5-small-multilingual", "minilm-en", "smollm2-135m")
)
APPLE = "我吃了一个苹果"


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
        cache.compute_once(i, lambda: b"x" * 40, lambda: None)
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
