"""The command line's contract, on a service that answers from made-up numbers."""

import dataclasses
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core import cli
from core.errors import HeadscopeError, NoNetworkError, UnknownModelError
from core.results import (
    AttentionResult,
    CaptureRequest,
    CaptureResult,
    Kind,
    MapRequest,
    MapResult,
    ModelInfo,
    Progress,
    Token,
)

ROOT = Path(__file__).parents[1]

INFO = ModelInfo(
    id="tiny",
    family="bert",
    kind="encoder",
    n_layers=2,
    n_decoder_layers=0,
    n_heads=2,
    n_kv_heads=2,
    head_dim=4,
    d_model=8,
    vocab_size=10,
    parameters=1234,
    licence="MIT",
    languages="en",
    ready=True,
    dtype="fp32",
    device="cpu",
)


def entry(text_index: int, kind: Kind, n_tokens: int, value: float) -> AttentionResult:
    tokens = tuple(Token(i, f"t{i}", (i, i + 1)) for i in range(n_tokens))
    by_head = np.full((2, 2), value)
    undefined = np.full((2, 2), np.nan)
    return AttentionResult(
        text_index=text_index,
        kind=kind,
        n_layers=2,
        n_heads=2,
        n_kv_heads=2,
        query_tokens=tokens,
        key_tokens=tokens,
        metrics={
            "normalized_entropy": by_head,
            "max_weight": by_head,
            "first_token_mass": by_head,
            "mean_distance": undefined,
        },
        pairs={"cosine": np.ones((2, 2, 2))},
        js_rows=n_tokens,
        position_bias=np.full((2, 2, n_tokens), np.nan),
        special_mass={0: by_head},
        sink_rate=np.array([np.nan, 0.5]),
        patterns=(("sink", "mixed"), ("sink", "sink")),
    )


class FakeService:
    """Answers like the service, from made-up numbers, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.kinds: tuple[Kind, ...] = ("encoder",)
        self.n_tokens = 3
        self.failure: BaseException | None = None

    def models(self) -> tuple[ModelInfo, ...]:
        return (INFO,)

    def prepare(
        self, ids: tuple[str, ...], *, progress: Callable[[Progress], None] | None = None
    ) -> tuple[ModelInfo, ...]:
        self.requests.append(ids)
        return (INFO,)

    def capture(
        self, request: CaptureRequest, *, progress: Callable[[Progress], None] | None = None
    ) -> CaptureResult:
        sys.stdout.write("a library that likes to talk\n")
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        return CaptureResult(
            model=INFO,
            backend="interface",
            texts=tuple(
                entry(index, kind, self.n_tokens + index, 0.25 + index)
                for index in range(max(len(request.texts), 1))
                for kind in self.kinds
            ),
            seconds=0.5,
            peak_bytes=10,
            held_bytes=5,
            notes=("The text was cut.",),
        )

    def head_map(
        self, request: MapRequest, *, progress: Callable[[Progress], None] | None = None
    ) -> MapResult:
        self.requests.append(request)
        n = self.n_tokens + request.text_index
        weights = np.eye(n, dtype=np.float32)
        return MapResult(weights, tuple(range(n)), tuple(range(n)))


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    fake = FakeService()
    monkeypatch.setattr(cli, "_connect", lambda: fake)
    return fake


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Returns the exit code and the object, which must be all there is on stdout."""
    code = cli.main([*arguments, "--json"])
    out = capsys.readouterr().out
    answer = json.loads(out, parse_constant=refuse_constant)
    assert isinstance(answer, dict)
    assert out.count("\n") == 1
    return code, answer


def test_models_lists_the_contract_keys(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = run_json(capsys, "models")
    assert code == 0
    assert answer == {
        "models": [
            {
                "id": "tiny",
                "family": "bert",
                "n_layers": 2,
                "n_heads": 2,
                "n_kv_heads": 2,
                "head_dim": 4,
                "parameters": 1234,
                "licence": "MIT",
                "languages": "en",
                "ready": True,
            }
        ]
    }


def test_models_for_people_is_a_table(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "model",
        "family",
        "layers",
        "x",
        "heads",
        "parameters",
        "licence",
        "ready",
    ]
    assert lines[1].startswith("tiny")


def test_prepare_passes_ids_on(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run_json(capsys, "prepare", "tiny", "other")
    assert code == 0
    assert service.requests == [("tiny", "other")]
    assert answer["models"][0]["id"] == "tiny"


def test_capture_of_one_text_stands_at_top_level_too(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = run_json(capsys, "capture", "--model", "tiny", "--text", "a b c")
    assert code == 0
    text = answer["texts"][0]
    for key in ("metrics", "pairs", "js_rows", "position_bias", "special_mass", "patterns"):
        assert answer[key] == text[key], key
    assert answer["tokens"] == answer["query_tokens"] == ["t0", "t1", "t2"]
    assert answer["sink_rate"] == [None, 0.5]
    assert answer["metrics"]["mean_distance"] == [[None, None], [None, None]]
    assert answer["special_mass"] == {"0": [[0.25, 0.25], [0.25, 0.25]]}
    assert {"model", "revision", "backend", "dtype", "device", "seconds", "peak_bytes"} <= set(
        answer
    )
    assert "map" not in answer
    assert "over_texts" not in answer


def test_capture_asks_for_all_metrics_and_passes_options(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--target y --audio z.wav --revision r --dtype bf16 --device cpu --truncate".split()
    run_json(capsys, "capture", "--model", "tiny", "--text", "x", *options)
    request = service.requests[0]
    assert request.blocks
    assert (request.texts, request.target, request.audio) == (("x",), "y", "z.wav")
    assert request.truncate
    model = request.model
    assert (model.model, model.revision, model.dtype, model.device) == ("tiny", "r", "bf16", "cpu")


def test_capture_of_sound_needs_no_text(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = run_json(capsys, "capture", "--model", "tiny", "--audio", "z.wav")
    assert code == 0
    assert (service.requests[0].texts, service.requests[0].audio) == ((), "z.wav")


@pytest.mark.models
def test_capture_of_real_sound_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    sound = ["--audio", str(ROOT / "tests" / "data" / "ask_not.wav"), "--target", "ask not"]
    place = "--kind cross --layer 3 --head 1".split()
    code, answer = run_json(capsys, "capture", "--model", "whisper-tiny-en", *sound, *place)
    assert code == 0
    assert answer["tokens"] == ["<|startoftranscript|>", "<|notimestamps|>", "ask", "▁not"]
    assert answer["query_offsets"] == [None, None, [0, 3], [3, 7]]
    assert answer["key_tokens"][:2] == ["0.00 s", "0.02 s"]
    assert answer["key_offsets"] == [None] * 1500
    assert np.array(answer["map"]).shape == (4, 1500)
    np.testing.assert_allclose(np.array(answer["map"]).sum(1), 1, atol=1e-5)
    assert np.array(answer["metrics"]["max_weight"]).shape == (4, 6)


def test_capture_of_several_texts_has_mean_and_sd(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    _, answer = run_json(capsys, "capture", "--model", "tiny", "--text", "a", "--text", "b")
    assert [text["text_index"] for text in answer["texts"]] == [0, 1]
    assert answer["over_texts"]["mean"]["max_weight"] == [[0.75, 0.75], [0.75, 0.75]]
    assert answer["over_texts"]["sd"]["max_weight"] == [[0.5, 0.5], [0.5, 0.5]]
    assert answer["over_texts"]["mean"]["mean_distance"] == [[None, None], [None, None]]
    assert "metrics" not in answer


def test_capture_with_layer_and_head_has_the_map(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    _, answer = run_json(
        capsys, "capture", "--model", "tiny", "--text", "a", "--layer", "1", "--head", "0"
    )
    assert answer["map"] == answer["texts"][0]["map"] == np.eye(3).tolist()
    request = service.requests[1]
    assert (request.layer, request.head, request.kind, request.text_index) == (1, 0, "encoder", 0)
    assert request.capture == service.requests[0]


def test_capture_keeps_only_the_kind_that_was_asked_for(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.kinds = ("encoder", "decoder", "cross")
    _, answer = run_json(capsys, "capture", "--model", "tiny", "--text", "a")
    assert [text["kind"] for text in answer["texts"]] == ["encoder", "decoder", "cross"]
    assert "metrics" not in answer
    _, answer = run_json(capsys, "capture", "--model", "tiny", "--text", "a", "--kind", "cross")
    assert [text["kind"] for text in answer["texts"]] == ["cross"]
    assert answer["kind"] == "cross"


def test_capture_writes_arrays(
    service: FakeService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "maps.npz"
    arguments = ["capture", "--model", "tiny", "--text", "a", "--out", str(out)]
    run_json(capsys, *arguments, "--layer", "0", "--head", "1")
    with np.load(out, allow_pickle=False) as arrays:
        assert arrays["map"].tolist() == np.eye(3).tolist()
        assert arrays["metrics.max_weight"].shape == (2, 2)
        assert arrays["pairs.cosine"].shape == (2, 2, 2)
        assert arrays["query_tokens"].tolist() == ["t0", "t1", "t2"]
    assert [path.name for path in tmp_path.iterdir()] == ["maps.npz"]


def test_capture_of_several_entries_names_arrays_by_entry(
    service: FakeService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "maps.npz"
    run_json(capsys, "capture", "--model", "tiny", "--text", "a", "--text", "b", "--out", str(out))
    with np.load(out) as arrays:
        assert arrays["text1.encoder.metrics.max_weight"].tolist() == [[1.25, 1.25], [1.25, 1.25]]


def test_map_above_the_limit_needs_a_file(
    service: FakeService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    service.n_tokens = 2049
    arguments = ["capture", "--model", "tiny", "--text", "a", "--layer", "0", "--head", "0"]
    code, answer = run_json(capsys, *arguments)
    assert code == 2
    assert answer["error"]["kind"] == "bad-input"
    assert "2049" in answer["error"]["message"]
    assert "--out" in answer["error"]["hint"]
    out = tmp_path / "big.npz"
    code, answer = run_json(capsys, *arguments, "--out", str(out))
    assert code == 0
    assert "map" not in answer
    with np.load(out) as arrays:
        assert arrays["map"].shape == (2049, 2049)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "VERB"),
        ("capture --text a", "--model"),
        ("capture --model tiny", "No text"),
        ("capture --model tiny --text a --layer 1", "--head"),
        ("capture --model tiny --text a --head 1", "--layer"),
        ("capture --model tiny --text a --layer x --head 0", "'x'"),
        ("capture --model tiny --text a --layer 2 --head 0", "--layer 2"),
        ("capture --model tiny --text a --layer 0 --head -1", "--head -1"),
        ("capture --model tiny --text a --kind cross", "cross"),
        ("capture --model tiny --text a --kind sideways", "sideways"),
        ("capture --model tiny --text a --dtype int4", "int4"),
        ("capture --model tiny --text a --out maps.json", ".npz"),
        ("capture --model tiny --text a --out /no/such/folder/maps.npz", "folder"),
        ("capture --model tiny --text a --lay 1", "--lay"),
        ("dance", "dance"),
    ],
)
def test_bad_input_is_an_error_object_and_exit_code_2(
    service: FakeService, capsys: pytest.CaptureFixture[str], arguments: str, expected: str
) -> None:
    code, answer = run_json(capsys, *arguments.split())
    assert code == 2
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"kind", "message", "hint"}
    assert answer["error"]["kind"] == "bad-input"
    assert expected in f"{answer['error']['message']} {answer['error']['hint']}"


def test_text_that_is_no_unicode_is_refused(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = run_json(capsys, "capture", "--model", "tiny", "--text", "a\udcff")
    assert (code, answer["error"]["kind"]) == (2, "bad-input")
    assert service.requests == []


@pytest.mark.parametrize(
    "error",
    [UnknownModelError("No model 'x'.", "Choose tiny."), NoNetworkError("No network.", "")],
)
def test_errors_of_the_service_keep_their_kind(
    service: FakeService, capsys: pytest.CaptureFixture[str], error: HeadscopeError
) -> None:
    service.failure = error
    code, answer = run_json(capsys, "capture", "--model", "x", "--text", "a")
    assert code == 2
    assert answer == {"error": error.to_dict()}


def test_unexpected_faults_are_internal_with_the_traceback_in_the_log(
    service: FakeService,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    service.failure = ZeroDivisionError("a detail for us")
    code, answer = run_json(capsys, "capture", "--model", "x", "--text", "a")
    assert (code, answer["error"]["kind"]) == (2, "internal")
    assert "a detail for us" not in json.dumps(answer)
    assert "a detail for us" in caplog.text


def test_errors_for_people_go_to_standard_error(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.failure = UnknownModelError("No model 'x'.", "Choose tiny.")
    assert cli.main(["capture", "--model", "x", "--text", "a"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error: No model 'x'.\nChoose tiny.\n" in captured.err


def test_capture_for_people_is_short(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "capture --model tiny --text a --layer 0 --head 0".split()
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "tiny: 2 layers x 2 heads, fp32 on cpu, taken by interface, 0.50 s" in out
    assert "The text was cut." in out
    assert "2 sink" in out
    assert "t1 1.00" in out
    assert "library" not in out
    assert len(out.splitlines()) < 20


def test_interruption_is_quiet(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    service.failure = KeyboardInterrupt()
    assert cli.main(["capture", "--model", "x", "--text", "a"]) == 130
    assert capsys.readouterr().out == ""


def test_progress_is_shown_on_a_terminal_only(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with cli._progress_line() as progress:
        assert progress is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with cli._progress_line() as progress:
        assert progress is not None
        progress(Progress("capture", 3, 12))
    assert "Running 25 %" in capsys.readouterr().err


def test_help_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for verb in ("models", "prepare", "capture"):
        assert verb in out


def test_entry_point_is_the_same_program() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"headscope": "core.cli:main"}


def test_non_finite_numbers_never_reach_the_json(
    service: FakeService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = service.capture
    monkeypatch.setattr(
        service,
        "capture",
        lambda request, progress: dataclasses.replace(capture(request), seconds=float("inf")),
    )
    _, answer = run_json(capsys, "capture", "--model", "tiny", "--text", "a")
    assert answer["seconds"] is None
