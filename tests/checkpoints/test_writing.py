import json

import pytest
import torch
from diffusers import VQModel
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast, T5Config, T5EncoderModel

from mmspec.checkpoints.writing import convert_llamagen
from mmspec.image.llamagen import LlamaGenTransformer


@pytest.fixture
def files(decoder_state, vq_state, tmp_path):
    torch.save({"model": decoder_state}, tmp_path / "decoder.pt")
    torch.save({"model": vq_state}, tmp_path / "vq.pt")
    return tmp_path / "decoder.pt", tmp_path / "vq.pt"


@pytest.fixture
def text_folder(tmp_path):
    folder = tmp_path / "text"
    T5EncoderModel(T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(
        folder
    )
    core = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>").save_pretrained(folder)
    return folder


def by_caption(state):
    return "cls_embedding.uncond_embedding" in state


def test_components_load_and_the_grid_follows_the_vq(files, decoder_state, text_folder, tmp_path):
    text = text_folder if by_caption(decoder_state) else None
    output = convert_llamagen(
        *files, tmp_path / "out", image_size=(6, 10), num_heads=2, text_encoder=text, components_only=True
    )
    transformer = LlamaGenTransformer.from_pretrained(output / "transformer")
    assert (transformer.config.grid_height, transformer.config.grid_width) == (3, 5)  # 2 pixels a code
    VQModel.from_pretrained(output / "vq")
    if text is not None:
        assert T5EncoderModel.from_pretrained(output / "text_encoder").config.d_model == 8
        assert len(AutoTokenizer.from_pretrained(output / "tokenizer")) == 2
    assert sorted(p.name for p in output.iterdir()) == sorted(
        ["transformer", "vq"] + ["text_encoder", "tokenizer"] * (text is not None)
    )


def test_pipeline_folder_names_its_parts(files, tmp_path):
    pytest.importorskip("mmspec.pipelines.llamagen", reason="the pipeline is not part of this tree")
    output = convert_llamagen(*files, tmp_path / "out", image_size=16, num_heads=2)
    index = json.loads((output / "model_index.json").read_text())
    assert index["_class_name"] == "LlamaGenPipeline"
    assert index["transformer"] == ["mmspec", "LlamaGenTransformer"]
    assert index["vq"] == ["diffusers", "VQModel"]


def test_text_encoder_must_fit(files, decoder_state, text_folder, tmp_path):
    config = json.loads((text_folder / "config.json").read_text()) | {"d_model": 12}
    (text_folder / "config.json").write_text(json.dumps(config))
    message = "features of width 8" if by_caption(decoder_state) else "no captions"
    with pytest.raises(ValueError, match=f"has width 12, but the decoder takes {message}"):
        convert_llamagen(*files, tmp_path / "out", image_size=16, num_heads=2, text_encoder=text_folder)
    assert not (tmp_path / "out").exists()


def test_codes_of_both_parts_must_agree(decoder_state, files, tmp_path):
    for name in ("tok_embeddings.weight", "output.weight"):
        decoder_state[name] = decoder_state[name][:-1]
    torch.save({"model": decoder_state}, files[0])
    with pytest.raises(ValueError, match="19 codes, the VQ tokenizer 20"):
        convert_llamagen(*files, tmp_path / "out", image_size=16, num_heads=2)
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(files, tmp_path):
    with pytest.raises(FileExistsError, match="not an empty folder"):
        convert_llamagen(*files, tmp_path, image_size=16, num_heads=2)
