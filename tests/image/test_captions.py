import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.testing import assert_close
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from mmspec.image.captions import clean_caption, encode_captions

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "apple", "on", "table", "the"]


@pytest.fixture(scope="module")
def tokenizer():
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", padding_side="left"
    )


@pytest.fixture(scope="module")
def text_encoder():
    torch.manual_seed(0)
    config = T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, dropout_rate=0.0)
    return T5EncoderModel(config).eval()


def test_features_lie_in_the_last_slots_and_padding_is_zero(tokenizer, text_encoder):
    captions = ["a red apple", "", "the red apple on the table"]
    features, mask = encode_captions(captions, tokenizer, text_encoder, max_length=7)
    assert features.shape == (3, 7, 8)
    assert mask.sum(1).tolist() == [4, 1, 7]
    for row, caption in enumerate(captions):
        ids = tokenizer(caption, return_tensors="pt").input_ids
        assert ids[0, -1] == tokenizer.eos_token_id
        alone = text_encoder(input_ids=ids).last_hidden_state[0]
        assert_close(features[row, -len(alone) :], alone, rtol=0, atol=1e-5)
        assert not features[row, : -len(alone)].any()
        assert mask[row].tolist() == [False] * (7 - len(alone)) + [True] * len(alone)


def test_row_equals_solo(tokenizer, text_encoder):
    both, _ = encode_captions(["a apple", "the red table"], tokenizer, text_encoder, max_length=6)
    solo, _ = encode_captions("a apple", tokenizer, text_encoder, max_length=6)
    assert_close(both[:1], solo, rtol=0, atol=1e-6)


def test_long_caption_is_refused_unless_cut(tokenizer, text_encoder):
    captions = ["a apple", "the red apple on the table"]
    with pytest.raises(ValueError, match=r"Caption 1 has 7 tokens.*limit is 5.*truncate=True"):
        encode_captions(captions, tokenizer, text_encoder, max_length=5)
    cut, mask = encode_captions(captions, tokenizer, text_encoder, max_length=5, truncate=True)
    same, _ = encode_captions("the red apple on", tokenizer, text_encoder, max_length=5)
    assert mask[1].all()
    assert_close(cut[1:], same, rtol=0, atol=1e-6)


def test_type_of_the_features(tokenizer, text_encoder):
    features, mask = encode_captions("a apple", tokenizer, text_encoder, device="cpu", dtype=torch.bfloat16)
    assert features.dtype == torch.bfloat16
    assert mask.dtype == torch.bool
    assert features.shape == (1, 120, 8)


def test_no_captions_is_an_error(tokenizer, text_encoder):
    with pytest.raises(ValueError, match="empty"):
        encode_captions([], tokenizer, text_encoder)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A Red Apple", "a red apple"),
        ("a red apple, on a table.", "a red apple, on a table."),
        ("", ""),
        ("apple https://example.com/a/b?c shop", "apple ?c shop"),
        ("see example.org for more", "see for more"),
        ("<b>bold</b> &amp; <i>red</i>", "bold red"),
        ("a <person> eats", "a person eats"),
        ("红苹果 apple ㍻", "apple"),
        ("a — b – c", "a - b - c"),
        ("“quoted” ‘text’ inside", "\"quoted\" 'text' inside"),
        ("***SALE*** (now) [here]", "sale now here"),
        ("photo.jpg of a cat png image", "of a cat"),
        ("this-is-my-cute-cat", "this is my cute cat"),
        ("blue-green sea", "blue-green sea"),
        ("host 192.168.0.1 and @nick #12 1234567", "host and"),
        ("item jc6640 free shipping, click for details", "item"),
        ("poster 30x40 page 12", "poster"),
        ("one,two/three", "one, two three"),
        ("wait... what", "wait what"),
        ("ﬁne ＡＢＣ cafe\u0301", "fine abc café"),
        ("a%20red+apple", "a red apple"),
        ('"all quoted"', "all quoted"),
        ("<script>alert(1)</script>apple", "apple"),
    ],
)
def test_caption_cleaning(caption, expected):
    assert clean_caption(caption) == expected


def test_unclosed_markup_does_not_swallow_the_caption():
    assert clean_caption("price < 5 and > 3") == "price < 5 and > 3"
