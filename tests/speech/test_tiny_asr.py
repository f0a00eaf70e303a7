"""The recogniser's parts: rows independent of their batch, the prompt's layout, strict loading."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmspec.speech.log_mel import LogMelFeatureExtractor
from mmspec.speech.tiny_asr import CTC_VOCABULARY, AudioProjector, TinyAsrModel


@pytest.fixture(scope="module")
def model() -> TinyAsrModel:
    model = TinyAsrModel.tiny()
    with torch.no_grad():  # as initialised, frames hardly influence one another
        for weight in model.encoder.parameters():
            if weight.ndim >= 2:
                weight.mul_(6)
    return model


@pytest.fixture(scope="module")
def waveforms() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [0.1 * torch.randn(n, generator=generator) for n in (16_000, 40_000, 3000, 1300)]


@torch.no_grad()
def test_a_row_is_what_it_is_alone(model, waveforms) -> None:
    states, log_probs, counts = model.encode(*model.feature_extractor(waveforms, 16_000))
    prompt, mask = model.prompt_embeddings(states, counts)
    for index, waveform in enumerate(waveforms):
        own_states, own_probs, (count,) = model.encode(*model.feature_extractor([waveform], 16_000))
        own_prompt, own_mask = model.prompt_embeddings(own_states, torch.tensor([count]))
        assert count == counts[index]
        torch.testing.assert_close(log_probs[index, :count], own_probs[0], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(states[index, :count], own_states[0], atol=2e-5, rtol=1e-4)
        assert own_mask.all()
        assert mask[index].sum() == own_prompt.shape[1]
        torch.testing.assert_close(prompt[index, mask[index]], own_prompt[0], atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_what_follows_a_row_would_matter_without_lengths(model, waveforms) -> None:
    """The control of the test above: it can fail."""
    features, _ = model.feature_extractor(waveforms[:1], 16_000)
    right = model.encode(features, torch.tensor([features.shape[1]]))[1]
    padded = torch.nn.functional.pad(features, (0, 0, 0, 40))
    wrong = model.encode(padded, torch.tensor([padded.shape[1]]))[1]
    assert (right[0] - wrong[0, : right.shape[1]]).abs().max() > 1e-3


@torch.no_grad()
def test_states_end_with_the_ctc_probabilities(model, waveforms) -> None:
    states, log_probs, _ = model.encode(*model.feature_extractor(waveforms[:1], 16_000))
    torch.testing.assert_close(states[..., -len(CTC_VOCABULARY) :], log_probs.exp())


@torch.no_grad()
def test_prompt_is_begin_audio_mark(model, waveforms) -> None:
    states, _, counts = model.encode(*model.feature_extractor(waveforms, 16_000))
    prompt, mask = model.prompt_embeddings(states, counts)
    audio, sizes = model.projector(states, counts)
    embedding = model.decoder.get_input_embeddings().weight
    for row, own, heard, size in zip(prompt, mask, audio, sizes, strict=True):
        torch.testing.assert_close(row[own][0], embedding[1])
        torch.testing.assert_close(row[own][1:-1], heard[:size])
        torch.testing.assert_close(row[own][-1], embedding[3])
    assert mask[:, -1].all()


def test_projector_counts_a_group_that_is_not_full() -> None:
    projector = AudioProjector(4, 6, stack=3, hidden_size=8)
    output, lengths = projector(torch.randn(3, 7, 4), torch.tensor([7, 6, 1]))
    assert output.shape == (3, 3, 6)
    assert lengths.tolist() == [3, 2, 1]


@pytest.mark.parametrize(
    ("labels", "text"),
    [([0, 3, 3, 0, 3, 5, 5], "aac"), ([1, 3, 1, 1, 0, 1, 4, 1], "a b"), ([0, 0], ""), ([3, 2, 3], "a'a")],
)
def test_ctc_labels_collapse(model, labels, text) -> None:
    assert model.ctc_text(torch.tensor(labels)) == text


@torch.no_grad()
def test_saved_model_is_the_same(model, waveforms, tmp_path) -> None:
    model.save_pretrained(tmp_path)
    loaded = TinyAsrModel.from_pretrained(tmp_path)
    features, lengths = model.feature_extractor(waveforms, 16_000)
    again, more = loaded.feature_extractor(waveforms, 16_000)
    assert torch.equal(features, again)
    assert torch.equal(model.encode(features, lengths)[1], loaded.encode(again, more)[1])
    assert loaded.ctc_vocabulary == CTC_VOCABULARY


@pytest.mark.parametrize("change", ["missing", "superfluous"])
def test_a_wrong_tensor_is_refused(model, tmp_path, change) -> None:
    model.save_pretrained(tmp_path)
    path = tmp_path / "projector" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    if change == "missing":
        del weights["up.bias"]
    else:
        weights["other"] = torch.zeros(1)
    save_file(weights, path)
    with pytest.raises(ValueError, match=r"up\.bias|other"):
        TinyAsrModel.from_pretrained(tmp_path)


def test_parts_that_do_not_fit_are_refused(model) -> None:
    wide = AudioProjector(model.projector.config.input_size, 64)
    with pytest.raises(ValueError, match="audio embeddings"):
        TinyAsrModel(model.encoder, wide, model.decoder, model.feature_extractor)
    with pytest.raises(ValueError, match="features"):
        TinyAsrModel(model.encoder, model.projector, model.decoder, LogMelFeatureExtractor(num_mels=20))
    with pytest.raises(ValueError, match="CTC labels"):
        TinyAsrModel(model.encoder, model.projector, model.decoder, model.feature_extractor, ("<blank>", "a"))
