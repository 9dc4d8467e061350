"""A zoo of tiny models with random weights, one a family, for parity tests.

Every family has its own way of reaching attention, so each is built here once, small and seeded.
The weights are random: nothing in this file says anything about what a trained model does.
Query and key projections are enlarged because fresh weights give nearly uniform maps, on which a
wrong mask or a wrong scale would hardly show.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import transformers as hf
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

Padding = Literal["none", "right", "left"]
Backend = Literal["interface", "hook", "tap", "refused"]

LONG_TOKENS = 30
"""Longer than every window and chunk below, so that those masks matter."""
SHORT_TOKENS = 21
LONG_TARGET_TOKENS = 13
SHORT_TARGET_TOKENS = 9
SHARPEN = 6.0
VOCABULARY = 96
D_MODEL, N_HEADS, HEAD_DIM, N_LAYERS = 64, 4, 16, 2

ALL_PADDINGS: tuple[Padding, ...] = ("none", "right", "left")
ENCODER = ("encoder",)
DECODER = ("decoder",)
ENCODER_DECODER = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class Family:
    """One family as tests use it.

    Attributes:
        name: short name for test ids.
        build: makes the model: eager attention, eval mode, the same weights every time.
        inputs: a batch of two for that model; the two differ in length unless padding is "none".
        backend: how its attention is expected to be taken; "refused" has no N x N map.
        kinds: the kinds of attention it has, in the order encoder, decoder, cross.
        paddings: the paddings its inputs can have.
    """

    name: str
    build: Callable[[], PreTrainedModel]
    inputs: Callable[[PreTrainedModel, str], dict[str, Tensor]]
    backend: Backend
    kinds: tuple[str, ...]
    paddings: tuple[str, ...]


def valid_positions(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], kind: str
) -> tuple[Tensor, Tensor]:
    """Returns which queries and keys of a kind of attention are no padding, bool [batch, N] each.

    Lengths are those the attention layers see: frames for audio, patches for pictures.
    """
    encoder = _valid_encoder(model, inputs)
    if kind == "encoder" or "decoder_input_ids" not in inputs:
        return encoder, encoder
    target = inputs["decoder_input_ids"]
    decoder = inputs.get("decoder_attention_mask", torch.ones_like(target)).bool()
    return decoder, decoder if kind == "decoder" else encoder


def _valid_encoder(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    if "input_ids" in inputs:
        return inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    if "input_values" in inputs:
        audio = cast(Any, model)
        n_frames = int(audio._get_feat_extract_output_lengths(inputs["input_values"].shape[1]))
        if "attention_mask" not in inputs:
            return torch.ones(inputs["input_values"].shape[0], n_frames, dtype=torch.bool)
        mask = audio._get_feature_vector_attention_mask(n_frames, inputs["attention_mask"])
        return cast(Tensor, mask).bool()
    if "input_features" in inputs:
        n_batch, n_frames = (
            inputs["input_features"].shape[0],
            inputs["input_features"].shape[2] // 2,
        )
        return torch.ones(n_batch, n_frames, dtype=torch.bool)
    n_patches = (model.config.image_size // model.config.patch_size) ** 2
    return torch.ones(inputs["pixel_values"].shape[0], n_patches + 1, dtype=torch.bool)


def _family(
    name: str,
    model_class: type[PreTrainedModel],
    config: Callable[[], PreTrainedConfig],
    *,
    kinds: tuple[str, ...] = DECODER,
    backend: Backend = "interface",
    inputs: Callable[[PreTrainedModel, str], dict[str, Tensor]] | None = None,
    paddings: tuple[Padding, ...] = ALL_PADDINGS,
) -> Family:
    default_inputs = _text_pair_inputs if "cross" in kinds else _text_inputs
    return Family(
        name=name,
        build=lambda: _build(model_class, config()),
        inputs=inputs or default_inputs,
        backend=backend,
        kinds=kinds,
        paddings=paddings,
    )


def _build(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = cast(
            PreTrainedModel,
            cast(Any, model_class)._from_config(config, attn_implementation="eager"),
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                _perturb(name, parameter, config)
    return model.eval()


SEPARATE = (
    "query.weight", "key.weight",  # BERT and its kin
    "q_lin.weight", "k_lin.weight",  # DistilBERT
    "q_proj.weight", "k_proj.weight",  # most decoders, BART, CLIP, Wav2Vec2
    "query_proj.weight", "key_proj.weight",  # DeBERTa-v2
    ".q.weight", ".k.weight",  # T5, MPNet
    "rel_attn.q", "rel_attn.k",  # XLNet keeps bare parameters
    "q_b_proj.weight",  # MLA; its keys share a projection with the values
)  # fmt: skip


def _perturb(name: str, parameter: Tensor, config: PreTrainedConfig) -> None:
    """Enlarges query and key weights in place and gives biases and sinks something to do."""
    if name.endswith(SEPARATE):
        parameter.mul_(SHARPEN)
    elif name.endswith("c_attn.weight"):  # GPT-2's Conv1D: [in, q k v]
        parameter[:, : 2 * D_MODEL].mul_(SHARPEN)
    elif name.endswith(("Wqkv.weight", "qkv_proj.weight")):  # rows q k v
        n_kv = getattr(config, "num_key_value_heads", None) or N_HEADS
        parameter[: (N_HEADS + n_kv) * HEAD_DIM].mul_(SHARPEN)
    elif name.endswith("query_key_value.weight"):  # rows [head][q k v]
        parameter.view(N_HEADS, 3, HEAD_DIM, -1)[:, :2].mul_(SHARPEN)
    elif name.endswith("sinks"):
        parameter.normal_(0.0, 1.0)
    elif name.endswith("bias") and parameter.ndim == 1:
        parameter.normal_(0.0, 0.1)


def _draw(n_rows: int, n_tokens: int, seed: int) -> Tensor:
    """Returns ordinary token ids, [row, token]; the specials of the configs below are under 8."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(8, VOCABULARY, (n_rows, n_tokens), generator=generator)


def _pad(ids: Tensor, n_short: int, padding: str, pad_id: int) -> Tensor:
    """Pads the second row of `ids` down to `n_short` tokens in place; returns the mask."""
    mask = torch.ones_like(ids)
    n_pad = ids.shape[1] - n_short
    if padding == "right":
        mask[1, n_short:] = 0
    elif padding == "left":
        mask[1, :n_pad] = 0
    ids[mask == 0] = pad_id
    return mask


def _text_inputs(model: PreTrainedModel, padding: str) -> dict[str, Tensor]:
    ids = _draw(2, LONG_TOKENS, seed=1)
    if padding == "none":
        return {"input_ids": ids}
    pad_id = getattr(model.config, "pad_token_id", None) or 0
    return {"input_ids": ids, "attention_mask": _pad(ids, SHORT_TOKENS, padding, pad_id)}


def _target_inputs(model: PreTrainedModel, padding: str) -> dict[str, Tensor]:
    target = _draw(2, LONG_TARGET_TOKENS, seed=2)
    if padding == "none":
        return {"decoder_input_ids": target}
    pad_id = model.config.pad_token_id or 0
    mask = _pad(target, SHORT_TARGET_TOKENS, padding, pad_id)
    return {"decoder_input_ids": target, "decoder_attention_mask": mask}


def _text_pair_inputs(model: PreTrainedModel, padding: str) -> dict[str, Tensor]:
    return _text_inputs(model, padding) | _target_inputs(model, padding)


def _whisper_inputs(model: PreTrainedModel, padding: str) -> dict[str, Tensor]:
    n_frames = 2 * model.config.max_source_positions
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(2, model.config.num_mel_bins, n_frames, generator=generator)
    return {"input_features": features} | _target_inputs(model, padding)


def _picture_inputs(model: PreTrainedModel, padding: str) -> dict[str, Tensor]:
    size = model.config.image_size
    generator = torch.Generator().manual_seed(4)
    return {"pixel_values": torch.randn(2, 3, size, size, generator=generator)}


def _waveform_inputs(model: PreTrainedModel, padding: str) -> dict[str, Tensor]:
    values = torch.randn(2, 330, generator=torch.Generator().manual_seed(5))
    if padding == "none":
        return {"input_values": values}
    mask = torch.ones(values.shape, dtype=torch.long)
    mask[1, 240:] = 0
    return {"input_values": values * mask, "attention_mask": mask}


def _bert_sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": D_MODEL,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "intermediate_size": 96,
        "max_position_embeddings": 64,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": 1,
    } | more


def _llama_sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": D_MODEL,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "intermediate_size": 96,
        "max_position_embeddings": 64,
        "attention_dropout": 0.0,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | more


def _without(sizes: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in sizes.items() if name not in names}


def _t5_sizes() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": D_MODEL,
        "d_kv": HEAD_DIM,
        "d_ff": 96,
        "num_layers": N_LAYERS,
        "num_decoder_layers": N_LAYERS,
        "num_heads": N_HEADS,
        "dropout_rate": 0.0,
        "initializer_factor": 0.7,  # T5 does not scale its scores: 1.0 saturates every row
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 0,
    }


def _bart_sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": D_MODEL,
        "encoder_layers": N_LAYERS,
        "decoder_layers": N_LAYERS,
        "encoder_attention_heads": N_HEADS,
        "decoder_attention_heads": N_HEADS,
        "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96,
        "max_position_embeddings": 64,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    } | more


def _vision_sizes() -> dict[str, Any]:
    return {
        "hidden_size": D_MODEL,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "intermediate_size": 96,
        "image_size": 24,
        "patch_size": 6,
    }


def _gpt2_sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "n_embd": D_MODEL,
        "n_layer": N_LAYERS,
        "n_head": N_HEADS,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | more


def _falcon(alibi: bool) -> PreTrainedConfig:
    return hf.FalconConfig(
        vocab_size=VOCABULARY,
        hidden_size=D_MODEL,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        alibi=alibi,
        multi_query=False,
        new_decoder_architecture=False,
        bias=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


_INTERFACE_ENCODERS = (
    _family("bert", hf.BertModel, lambda: hf.BertConfig(**_bert_sizes()), kinds=ENCODER),
    _family("bert-mlm", hf.BertForMaskedLM, lambda: hf.BertConfig(**_bert_sizes()), kinds=ENCODER),
    _family(
        "distilbert",
        hf.DistilBertModel,
        lambda: hf.DistilBertConfig(
            vocab_size=VOCABULARY,
            dim=D_MODEL,
            n_layers=N_LAYERS,
            n_heads=N_HEADS,
            hidden_dim=96,
            max_position_embeddings=64,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        kinds=ENCODER,
    ),
    _family("roberta", hf.RobertaModel, lambda: hf.RobertaConfig(**_bert_sizes()), kinds=ENCODER),
    _family(
        "xlm-roberta",
        hf.XLMRobertaModel,
        lambda: hf.XLMRobertaConfig(**_bert_sizes()),
        kinds=ENCODER,
    ),
    _family(
        "albert",
        hf.AlbertModel,
        lambda: hf.AlbertConfig(**_bert_sizes(embedding_size=32, initializer_range=0.05)),
        kinds=ENCODER,
    ),
    _family(
        "electra",
        hf.ElectraModel,
        lambda: hf.ElectraConfig(**_bert_sizes(embedding_size=32, initializer_range=0.05)),
        kinds=ENCODER,
    ),
    _family(
        "modernbert",
        hf.ModernBertModel,
        lambda: hf.ModernBertConfig(
            vocab_size=VOCABULARY,
            hidden_size=D_MODEL,
            num_hidden_layers=4,
            num_attention_heads=N_HEADS,
            intermediate_size=96,
            max_position_embeddings=64,
            local_attention=16,
            global_attn_every_n_layers=3,
            attention_dropout=0.0,
            embedding_dropout=0.0,
            mlp_dropout=0.0,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
        ),
        kinds=ENCODER,
    ),
)

_INTERFACE_DECODERS = (
    _family(
        "gpt2", hf.GPT2LMHeadModel, lambda: hf.GPT2Config(**_gpt2_sizes(initializer_range=0.05))
    ),
    _family(
        "gpt-neox",
        hf.GPTNeoXForCausalLM,
        lambda: hf.GPTNeoXConfig(
            **_without(_llama_sizes(), "num_key_value_heads", "head_dim"),
            hidden_dropout=0.0,
            initializer_range=0.05,
        ),
    ),
    _family("gpt-j", hf.GPTJForCausalLM, lambda: hf.GPTJConfig(**_gpt2_sizes(rotary_dim=8))),
    _family(
        "opt",
        hf.OPTForCausalLM,
        lambda: hf.OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=D_MODEL,
            num_hidden_layers=N_LAYERS,
            num_attention_heads=N_HEADS,
            ffn_dim=96,
            max_position_embeddings=64,
            word_embed_proj_dim=D_MODEL,
            dropout=0.0,
            attention_dropout=0.0,
            pad_token_id=1,
            bos_token_id=2,
            eos_token_id=2,
        ),
    ),
    _family("llama", hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**_llama_sizes())),
    _family(
        "qwen2", hf.Qwen2ForCausalLM, lambda: hf.Qwen2Config(**_without(_llama_sizes(), "head_dim"))
    ),
    _family("qwen3", hf.Qwen3ForCausalLM, lambda: hf.Qwen3Config(**_llama_sizes())),
    _family(
        "phi3",
        hf.Phi3ForCausalLM,
        lambda: hf.Phi3Config(
            **_without(_llama_sizes(), "head_dim"), resid_pdrop=0.0, embd_pdrop=0.0
        ),
    ),
    _family(
        "smollm3",
        hf.SmolLM3ForCausalLM,
        lambda: hf.SmolLM3Config(
            **_without(_llama_sizes(num_hidden_layers=4), "head_dim"), no_rope_layer_interval=2
        ),
    ),
    _family(
        "mistral",
        hf.MistralForCausalLM,
        lambda: hf.MistralConfig(**_llama_sizes(), sliding_window=16),
    ),
    _family(
        "gemma2",
        hf.Gemma2ForCausalLM,
        lambda: hf.Gemma2Config(
            **_llama_sizes(),
            sliding_window=16,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=4.0,
            final_logit_softcapping=30.0,
        ),
    ),
    _family(
        "gemma3",
        hf.Gemma3ForCausalLM,
        lambda: hf.Gemma3TextConfig(
            **_llama_sizes(),
            sliding_window=16,
            query_pre_attn_scalar=20,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
    _family(
        "llama4",
        hf.Llama4ForCausalLM,
        lambda: hf.Llama4TextConfig(
            **_llama_sizes(num_hidden_layers=4),
            intermediate_size_mlp=96,
            num_local_experts=2,
            num_experts_per_tok=1,
            attention_chunk_size=8,
        ),
    ),
    _family(
        "gpt-oss",
        hf.GptOssForCausalLM,
        lambda: hf.GptOssConfig(
            **_llama_sizes(),
            num_local_experts=2,
            num_experts_per_tok=1,
            sliding_window=16,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
    ),
    _family(
        "deepseek-v3",
        hf.DeepseekV3ForCausalLM,
        lambda: hf.DeepseekV3Config(
            **_without(_llama_sizes(num_key_value_heads=N_HEADS), "head_dim"),
            moe_intermediate_size=32,
            initializer_range=0.05,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=32,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=16,
        ),
    ),
    _family(
        "mixtral",
        hf.MixtralForCausalLM,
        lambda: hf.MixtralConfig(**_llama_sizes(), num_local_experts=2, num_experts_per_tok=1),
    ),
    _family(
        "qwen3-moe",
        hf.Qwen3MoeForCausalLM,
        lambda: hf.Qwen3MoeConfig(
            **_llama_sizes(), num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32
        ),
    ),
)

_INTERFACE_PAIRS = (
    _family(
        "t5",
        hf.T5ForConditionalGeneration,
        lambda: hf.T5Config(**_t5_sizes()),
        kinds=ENCODER_DECODER,
    ),
    _family(
        "mt5",
        hf.MT5ForConditionalGeneration,
        lambda: hf.MT5Config(**_t5_sizes()),
        kinds=ENCODER_DECODER,
    ),
    _family(
        "bart",
        hf.BartForConditionalGeneration,
        lambda: hf.BartConfig(**_bart_sizes()),
        kinds=ENCODER_DECODER,
    ),
    _family(
        "marian",
        hf.MarianMTModel,
        lambda: hf.MarianConfig(**_bart_sizes(init_std=0.05)),
        kinds=ENCODER_DECODER,
    ),
    _family(
        "whisper",
        hf.WhisperForConditionalGeneration,
        lambda: hf.WhisperConfig(
            **_without(_bart_sizes(init_std=0.05), "max_position_embeddings"),
            num_mel_bins=8,
            max_source_positions=25,
            max_target_positions=32,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        ),
        kinds=ENCODER_DECODER,
        inputs=_whisper_inputs,
    ),
)

_INTERFACE_OTHERS = (
    _family(
        "vit",
        hf.ViTModel,
        lambda: hf.ViTConfig(
            **_vision_sizes(), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        ),
        kinds=ENCODER,
        inputs=_picture_inputs,
        paddings=("none",),
    ),
    # The text half of CLIP reads from left to right, so its attention is a decoder's.
    _family(
        "clip-text",
        hf.CLIPTextModel,
        lambda: hf.CLIPTextConfig(
            **_without(_vision_sizes(), "image_size", "patch_size"),
            vocab_size=VOCABULARY,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    _family(
        "clip-vision",
        hf.CLIPVisionModel,
        lambda: hf.CLIPVisionConfig(**_vision_sizes()),
        kinds=ENCODER,
        inputs=_picture_inputs,
        paddings=("none",),
    ),
    _family(
        "wav2vec2",
        hf.Wav2Vec2Model,
        lambda: hf.Wav2Vec2Config(
            vocab_size=VOCABULARY,
            hidden_size=D_MODEL,
            num_hidden_layers=N_LAYERS,
            num_attention_heads=N_HEADS,
            intermediate_size=96,
            conv_dim=(16, 16),
            conv_kernel=(5, 3),
            conv_stride=(5, 2),
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2,
            feat_extract_norm="layer",
            hidden_dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            feat_proj_dropout=0.0,
            layerdrop=0.0,
            mask_time_prob=0.0,
        ),
        kinds=ENCODER,
        inputs=_waveform_inputs,
        paddings=("none", "right"),
    ),
)

_FALLBACKS = (
    _family(
        "deberta-v2",
        hf.DebertaV2Model,
        lambda: hf.DebertaV2Config(
            **_bert_sizes(pad_token_id=0),
            relative_attention=True,
            position_buckets=8,
            pos_att_type=["p2c", "c2p"],
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        ),
        kinds=ENCODER,
        backend="hook",
    ),
    _family(
        "mpnet",
        hf.MPNetModel,
        # 32 buckets whatever the config says: the model asks its table for that many.
        lambda: hf.MPNetConfig(**_bert_sizes(), relative_attention_num_buckets=32),
        kinds=ENCODER,
        backend="hook",
    ),
    _family(
        "bloom",
        hf.BloomForCausalLM,
        lambda: hf.BloomConfig(
            vocab_size=VOCABULARY,
            hidden_size=D_MODEL,
            n_layer=N_LAYERS,
            n_head=N_HEADS,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            pad_token_id=3,
        ),
        backend="hook",
    ),
    _family(
        "mpt",
        hf.MptForCausalLM,
        lambda: hf.MptConfig(
            vocab_size=VOCABULARY,
            d_model=D_MODEL,
            n_layers=N_LAYERS,
            n_heads=N_HEADS,
            expansion_ratio=2,
            max_seq_len=64,
        ),
        backend="hook",
    ),
    _family(
        "xlnet",
        hf.XLNetModel,
        lambda: hf.XLNetConfig(
            vocab_size=VOCABULARY,
            d_model=D_MODEL,
            n_layer=N_LAYERS,
            n_head=N_HEADS,
            d_inner=96,
            initializer_range=0.1,
            dropout=0.0,
            pad_token_id=5,
        ),
        kinds=ENCODER,
        backend="tap",
    ),
    _family("falcon-rope", hf.FalconForCausalLM, lambda: _falcon(alibi=False), backend="hook"),
    _family("falcon-alibi", hf.FalconForCausalLM, lambda: _falcon(alibi=True), backend="hook"),
    _family(
        "gpt-neo",
        hf.GPTNeoForCausalLM,
        lambda: hf.GPTNeoConfig(
            vocab_size=VOCABULARY,
            hidden_size=D_MODEL,
            num_layers=N_LAYERS,
            num_heads=N_HEADS,
            attention_types=[[["global", "local"], 1]],
            window_size=16,
            max_position_embeddings=64,
            resid_dropout=0.0,
            embed_dropout=0.0,
            attention_dropout=0.0,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        backend="hook",
    ),
)

_REFUSED = (
    _family(
        "swin",
        hf.SwinModel,
        lambda: hf.SwinConfig(
            image_size=32,
            patch_size=2,
            embed_dim=32,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            drop_path_rate=0.0,
        ),
        kinds=ENCODER,
        backend="refused",
        inputs=_picture_inputs,
        paddings=("none",),
    ),
    _family(
        "longformer",
        hf.LongformerModel,
        lambda: hf.LongformerConfig(**_bert_sizes(), attention_window=8),
        kinds=ENCODER,
        backend="refused",
        paddings=("none", "right"),
    ),
)

FAMILIES: tuple[Family, ...] = (
    *_INTERFACE_ENCODERS,
    *_INTERFACE_DECODERS,
    *_INTERFACE_PAIRS,
    *_INTERFACE_OTHERS,
    *_FALLBACKS,
    *_REFUSED,
)
