"""Vision, audio and multimodal models of `transformers`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zoo_models.cases import Batch, Case, add, classes, lengths, no_dropout, own_loss, padded_words, without_dropout

VIT = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=4,
    num_labels=3,
)  # fmt: skip
SWIN = dict(image_size=16, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[2, 4], window_size=4, num_labels=3,
            drop_path_rate=0.0)  # fmt: skip
TOWER = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)

IMAGES: dict[str, dict[str, Any]] = {
    "vit": VIT,
    "deit": VIT,
    "beit": VIT | dict(use_relative_position_bias=True),
    "vit_msn": VIT,
    "dinov2": VIT | dict(mlp_ratio=2),
    "data2vec-vision": VIT,
    "swin": SWIN,
    "swinv2": SWIN,
    "convnext": dict(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=3, image_size=16),
    "convnextv2": dict(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=3, image_size=16),
    "poolformer": dict(hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, patch_sizes=[3, 3], strides=[2, 2],
                       padding=[1, 1], num_labels=3),
    "segformer": dict(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[3, 3],
                      strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], num_labels=3),
    "focalnet": dict(image_size=16, patch_size=2, embed_dim=8, hidden_sizes=[8, 16], depths=[1, 1],
                     focal_levels=[2, 2], focal_windows=[3, 3], num_labels=3),
    "siglip": dict(vision_config=TOWER | dict(image_size=16, patch_size=4), num_labels=3),
    "clip": dict(vision_config=TOWER | dict(image_size=16, patch_size=4), projection_dim=8, num_labels=3),
}  # fmt: skip


def pictures(size: int, generator: torch.Generator) -> Batch:
    return {"pixel_values": torch.randn(size, 3, 16, 16, generator=generator), "labels": classes(size, 3, generator)}


def image_case(kind: str) -> Case:
    import transformers

    config = without_dropout(transformers.AutoConfig.for_model(kind, **IMAGES[kind]))
    if kind == "deit":
        config.architectures = ["DeiTForImageClassification"]
    return Case(no_dropout(transformers.AutoModelForImageClassification.from_config(config)), pictures, own_loss)


def segmenter() -> Case:
    """Semantic segmentation, with group norm in the place of the decoder's batch norm."""
    import transformers

    config = transformers.SegformerConfig(**IMAGES["segformer"], decoder_hidden_size=8)
    model = transformers.SegformerForSemanticSegmentation(without_dropout(config))
    model.decode_head.batch_norm = nn.GroupNorm(2, 8)

    def batch(size: int, generator: torch.Generator) -> Batch:
        labels = torch.randint(0, 3, (size, 16, 16), generator=generator)
        return pictures(size, generator) | {"labels": labels}

    return Case(model, batch, own_loss)


def painter() -> Case:
    """A masked autoencoder, told which patches to hide by fixed noise for each example."""
    import transformers

    config = transformers.ViTMAEConfig(
        **{k: v for k, v in VIT.items() if k != "num_labels"}, decoder_num_attention_heads=2, decoder_hidden_size=8,
        decoder_num_hidden_layers=1, decoder_intermediate_size=12,
    )  # fmt: skip
    model = transformers.ViTMAEForPreTraining(without_dropout(config))

    def batch(size: int, generator: torch.Generator) -> Batch:
        pixels = torch.randn(size, 3, 16, 16, generator=generator)
        return {"pixel_values": pixels, "noise": torch.rand(size, 16, generator=generator)}

    return Case(model, batch, own_loss)


# -- audio -----------------------------------------------------------------------------------------------------------

SPEECH = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, conv_dim=[8, 8],
    conv_kernel=[4, 3], conv_stride=[2, 2], num_feat_extract_layers=2, num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2, vocab_size=12, num_labels=3, classifier_proj_size=8, feat_extract_norm="layer",
    do_stable_layer_norm=True, mask_time_prob=0.0, mask_feature_prob=0.0,
)  # fmt: skip


def recordings(size: int, generator: torch.Generator, words: bool = False) -> Batch:
    """Draw padded waveforms with their mask, and a class or, for CTC, a padded transcript."""
    mask = torch.arange(120)[None, :] < lengths(size, 120, 80, generator)[:, None]
    batch: Batch = {"input_values": torch.randn(size, 120, generator=generator) * mask, "attention_mask": mask.long()}
    if not words:
        return batch | {"labels": classes(size, 3, generator)}
    target = padded_words(size, generator, vocabulary=12, longest=5, shortest=2)
    return batch | {"labels": target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)}


def speech_case(kind: str, task: str, **options: Any) -> Case:
    import transformers

    config = without_dropout(transformers.AutoConfig.for_model(kind, **(SPEECH | options)))
    model = getattr(transformers, f"AutoModelFor{task}").from_config(config)
    reduction = options.get("ctc_loss_reduction", "mean")
    return Case(model, partial(recordings, words=task == "CTC"), own_loss, reduction=reduction)


def masked_speech() -> Case:
    """wav2vec2's time mask, given by the user: the model writes a parameter into the hidden states."""
    import transformers

    config = without_dropout(transformers.Wav2Vec2Config(**(SPEECH | dict(mask_time_prob=0.05))))
    model = transformers.Wav2Vec2Model(config)

    def batch(size: int, generator: torch.Generator) -> Batch:
        spans = torch.rand(size, 29, generator=generator) < 0.3
        return torch.randn(size, 120, generator=generator), spans

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        hidden = model(batch[0], mask_time_indices=batch[1]).last_hidden_state
        return hidden.square().flatten(1).mean(1).mean()

    return Case(model, batch, loss)


def whisper() -> Case:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=64, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=10,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip

    def batch(size: int, generator: torch.Generator) -> Batch:
        target = padded_words(size, generator, longest=8, shortest=4)
        labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
        return {"input_features": torch.randn(size, 8, 20, generator=generator), "labels": labels}

    return Case(transformers.WhisperForConditionalGeneration(without_dropout(config)), batch, own_loss)


def spectrogram() -> Case:
    import transformers

    config = transformers.ASTConfig(**TOWER, patch_size=4, num_mel_bins=8, max_length=16, frequency_stride=4,
                                    time_stride=4, num_labels=3)  # fmt: skip

    def batch(size: int, generator: torch.Generator) -> Batch:
        return {"input_values": torch.randn(size, 16, 8, generator=generator), "labels": classes(size, 3, generator)}

    return Case(transformers.ASTForAudioClassification(without_dropout(config)), batch, own_loss)


# -- multimodal and others -------------------------------------------------------------------------------------------


def captioned() -> Case:
    """A vision encoder with a text decoder."""
    import transformers

    text = dict(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=32, add_cross_attention=True)
    encoder = transformers.ViTConfig(**VIT)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        encoder, transformers.GPT2Config(**text)
    )
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    model = transformers.VisionEncoderDecoderModel(config=without_dropout(config))

    def batch(size: int, generator: torch.Generator) -> Batch:
        target = padded_words(size, generator, longest=8, shortest=4)
        labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
        return {"pixel_values": torch.randn(size, 3, 16, 16, generator=generator), "labels": labels}

    return Case(no_dropout(model), batch, own_loss)


def llava() -> Case:
    """Image features put in the place of image tokens (`masked_scatter`)."""
    import transformers

    text = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    vision = transformers.CLIPVisionConfig(**TOWER, image_size=16, patch_size=8, projection_dim=8)
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=3, image_token_id=3, image_seq_length=4,
        vision_feature_layer=-1,
    )  # fmt: skip
    model = transformers.LlavaForConditionalGeneration(without_dropout(config))

    def batch(size: int, generator: torch.Generator) -> Batch:
        batch = padded_words(size, generator)
        ids = torch.cat([torch.full((size, 4), 3), batch["input_ids"]], 1)
        mask = torch.cat([torch.ones(size, 4, dtype=torch.long), batch["attention_mask"]], 1)
        labels = ids.masked_fill((mask == 0) | (ids == 3), -100)
        pixels = torch.randn(size, 3, 16, 16, generator=generator)
        return {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels, "labels": labels}

    return Case(model, batch, own_loss)


def vilt() -> Case:
    import transformers

    config = transformers.ViltConfig(**VIT | dict(num_labels=3), vocab_size=64, max_position_embeddings=32,
                                     max_image_length=-1)  # fmt: skip
    model = transformers.ViltForQuestionAnswering(without_dropout(config))

    def batch(size: int, generator: torch.Generator) -> Batch:
        answers = torch.rand(size, 3, generator=generator)
        pixels = torch.randn(size, 3, 16, 16, generator=generator)
        return padded_words(size, generator) | {"pixel_values": pixels, "labels": answers}

    return Case(model, batch, own_loss)


def forecast() -> Case:
    """A forecasting transformer on patches of a series."""
    import transformers

    config = transformers.PatchTSTConfig(
        num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, prediction_length=4, d_model=16,
        num_hidden_layers=2, num_attention_heads=2, ffn_dim=24, norm_type="layernorm", scaling="std", loss="mse",
    )  # fmt: skip
    model = transformers.PatchTSTForPrediction(without_dropout(config))

    def batch(size: int, generator: torch.Generator) -> Batch:
        series = torch.randn(size, 20, 2, generator=generator)
        return {"past_values": series[:, :16], "future_values": series[:, 16:]}

    return Case(model, batch, own_loss)


def decisions() -> Case:
    import transformers

    config = transformers.DecisionTransformerConfig(
        state_dim=3, act_dim=2, hidden_size=16, max_ep_len=16, n_layer=2, n_head=2, n_positions=64
    )
    model = transformers.DecisionTransformerModel(without_dropout(config))

    def batch(size: int, generator: torch.Generator) -> Batch:
        draw = partial(torch.randn, generator=generator)
        mask = torch.arange(6)[None, :] < lengths(size, 6, 3, generator)[:, None]
        return {
            "states": draw(size, 6, 3), "actions": draw(size, 6, 2), "rewards": draw(size, 6, 1),
            "returns_to_go": draw(size, 6, 1), "timesteps": torch.arange(6).repeat(size, 1),
            "attention_mask": mask.long(),
        }  # fmt: skip

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        error = (model(**batch).action_preds - batch["actions"]).square().mean(2) * batch["attention_mask"]
        return (error.sum(1) / batch["attention_mask"].sum(1)).mean()

    return Case(model, batch, loss)


for each in IMAGES:
    add("vision", f"hf-{each}", partial(image_case, each))
add("vision", "hf-segformer-pixels", segmenter)
add("vision", "hf-vit-mae", painter)
for each in ("wav2vec2", "hubert", "wavlm", "unispeech-sat", "data2vec-audio"):
    add("audio", f"{each}-classify", partial(speech_case, each, "AudioClassification"))
add("audio", "wav2vec2-ctc", partial(speech_case, "wav2vec2", "CTC", ctc_loss_reduction="sum"))
add("audio", "wav2vec2-group-norm", partial(speech_case, "wav2vec2", "AudioClassification", feat_extract_norm="group",
                                            do_stable_layer_norm=False))  # fmt: skip
add("audio", "wav2vec2-time-mask", masked_speech)
add("audio", "whisper", whisper, token_mean=True)
add("audio", "ast", spectrogram)
add("multimodal", "vision-encoder-decoder", captioned, token_mean=True)
add("multimodal", "llava", llava, token_mean=True)
add("multimodal", "vilt", vilt)
add("multimodal", "patchtst", forecast)
add("multimodal", "decision-transformer", decisions)
