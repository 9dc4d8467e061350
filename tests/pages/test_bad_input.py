"""Wrong input on the pages, with the real service: a sentence, and the app works on after it."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import streamlit as st
import torch
from streamlit.testing.v1 import AppTest

from pages.ui import session
from tests.pages.tiny import tiny_model

ROOT = Path(__file__).parents[2]


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"never opened")


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def bad_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")


def points_outside(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"embeddings.word_embeddings.weight": "../../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def remote_code(folder: Path) -> None:
    change_config(folder, model_type="own-code", auto_map={"AutoModel": "own.Model"})


def adapter_only(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    adapter = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": "org/base"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("token*"):
        path.unlink()


def symlink_out(folder: Path) -> None:
    path = folder / "model.safetensors"
    target = folder.parents[1] / "elsewhere.safetensors"
    path.rename(target)
    path.symlink_to(target)


# What breaks a good folder, and words the error must hold.
FOLDERS: list[tuple[Callable[[Path], None], tuple[str, ...]]] = [
    (pickle_only, ("safety", "safetensors")),
    (truncated, ("model.safetensors",)),
    (bad_header, ("model.safetensors",)),
    (points_outside, ("safety", "outside")),
    (missing_shard, ("missing", "model-00001-of-00002.safetensors")),
    (remote_code, ("code",)),
    (adapter_only, ("adapter", "org/base", "8")),
    (no_tokenizer, ("tokenizer",)),
    (symlink_out, ("model.safetensors",)),
    (lambda f: change_config(f, model_type="no-such-family"), ("no-such-family",)),
    (lambda f: change_config(f, vocab_size=2_000_000_000), ("vocab_size",)),
    (lambda f: (f / "config.json").unlink(), ("config.json",)),
    (lambda f: (f / "config.json").write_text("{"), ("config.json", "JSON")),
]


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "roots"
    monkeypatch.setenv("HEADSCOPE_MODEL_ROOTS", str(root))
    monkeypatch.setenv("HEADSCOPE_HOME", str(tmp_path / "home"))
    # Each test has its own home; the default model would be unpacked into every one of them.
    monkeypatch.setattr(session, "_warm_up", lambda opened: None)
    st.cache_resource.clear()
    yield tiny_model(root / "good", ("one", "two"))
    st.cache_resource.clear()


def open_app(model: str, page: str = "", text: str = "one two") -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    app.query_params["model"] = model
    app.query_params["text"] = text
    app.run()
    return app.switch_page(f"pages/{page}.py").run() if page else app


def error_text(app: AppTest) -> str:
    assert not app.exception
    text = " ".join(str(e.value) for e in app.error).replace("\\", "")
    assert "Traceback" not in text
    return text


def works_on(app: AppTest, folder: Path, page: str) -> None:
    """Opens the good folder in the same session and holds the page to showing it."""
    app.text_input(key="sidebar.folder").set_value(str(folder)).run()
    assert not app.exception
    assert not app.error
    if page:
        assert any("2 × 4" in str(c.value) for c in app.caption)
    else:
        spec = json.loads(app.get("plotly_chart")[0].proto.spec)
        assert spec["layout"]["title"]["text"].startswith("Layer 0, head 0")


@pytest.mark.parametrize("page", ["", "overview"])
@pytest.mark.parametrize(("spoil", "said"), FOLDERS)
def test_a_bad_folder_is_a_sentence_and_the_next_one_opens(
    good: Path, spoil: Callable[[Path], None], said: tuple[str, ...], page: str
) -> None:
    bad = Path(shutil.copytree(good, good.parent / "bad"))
    spoil(bad)
    app = open_app(str(bad), page)
    text = error_text(app)
    assert [word for word in said if word not in text] == []
    works_on(app, good, page)


def test_a_folder_outside_the_roots_is_refused(good: Path, tmp_path: Path) -> None:
    outside = shutil.copytree(good, tmp_path / "outside")
    for path in (outside, good.parent / ".." / "outside", Path("/etc")):
        app = open_app(str(path))
        assert str(good.parent) in error_text(app)
        works_on(app, good, "")


def test_an_unknown_id_without_network_says_so(good: Path) -> None:
    app = open_app("no-one/no-such-model")
    assert "no-one/no-such-model" in error_text(app)


@pytest.mark.parametrize("page", ["", "overview"])
@pytest.mark.parametrize("text", ["", " \n\t ", "one " * 300_000, "one " * 40])
def test_a_bad_text_is_a_sentence_and_the_next_one_runs(good: Path, text: str, page: str) -> None:
    app = open_app(str(good), page)
    app.text_area(key="sidebar.text").set_value(text)
    app.button(key="sidebar.run").click().run()
    assert not app.exception
    if text.strip():
        said = error_text(app).replace(",", "")
        limit = "1000000" if len(text) > 1_000_000 else "32"
        assert limit in said
    else:
        assert "There is no text yet" in app.info[0].value
    app.text_area(key="sidebar.text").set_value("two one")
    app.button(key="sidebar.run").click().run()
    assert not app.exception
    assert not app.error


def test_weights_that_are_not_numbers_do_not_break_a_page(good: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = good / "model.safetensors"
    tensors = load_file(path)
    name = next(n for n in tensors if "query.weight" in n)
    tensors[name] = torch.full_like(tensors[name], float("nan"))
    save_file(tensors, path, metadata={"format": "pt"})
    for page in ("", "overview"):
        app = open_app(str(good), page)
        assert not app.exception
        assert app.title
