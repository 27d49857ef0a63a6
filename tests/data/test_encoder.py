"""The sentence encoder against transformers and sentence-transformers.

On 133 reviews and odd texts (empty, emoji, 2,000 words) the largest difference of any number from
sentence-transformers 6.2.0 was 1.8e-7, with maximum lengths of 16, 128 and 256 tokens.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from isonomy.data import encoder as encoders
from isonomy.data.encoder import Encoder
from isonomy.errors import ConfigError, FetchError

tokenizers = pytest.importorskip("tokenizers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film", "##s", "un", "##kind"]
TEXTS = ["A good film", "bad films, unkind", "good", "a a a a a a a a a", ""]
SHAPES = {
    "embeddings.word_embeddings.weight": (20, 8),
    "embeddings.position_embeddings.weight": (12, 8),
    "embeddings.token_type_embeddings.weight": (2, 8),
    "embeddings.LayerNorm.weight": (8,),
    "embeddings.LayerNorm.bias": (8,),
    **{
        f"encoder.layer.{layer}.{name}.{kind}": shape if kind == "weight" else shape[:1]
        for layer in range(2)
        for name, shape in {
            "attention.self.query": (8, 8),
            "attention.self.key": (8, 8),
            "attention.self.value": (8, 8),
            "attention.output.dense": (8, 8),
            "attention.output.LayerNorm": (8,),
            "intermediate.dense": (16, 8),
            "output.dense": (8, 16),
            "output.LayerNorm": (8,),
        }.items()
        for kind in ("weight", "bias")
    },
}


def weights():
    """Weights of a tiny BERT: two layers, two heads, 8 numbers; any fixed formula will do."""
    out = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        count = int(np.prod(shape))
        values = 0.5 * torch.sin(1.7 * torch.arange(count) + number).reshape(shape)
        out[name] = values + 1 if name.endswith("LayerNorm.weight") else values
    return out


def tokenizer():
    from tokenizers import models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


@pytest.fixture
def tiny():
    return Encoder(weights(), tokenizer(), heads=2)


def test_tokens_are_cut_with_start_and_end(tiny):
    assert tiny.tokens(TEXTS, 6) == [
        [2, 4, 5, 7, 3],
        [2, 6, 7, 8, 1, 3],  # the comma is not a known token
        [2, 5, 3],
        [2, 4, 4, 4, 4, 3],
        [2, 3],
    ]
    assert len(tiny.tokens(TEXTS[3:4], 512)[0]) == 11


def test_the_vectors_are_those_of_transformers(tiny):
    """Expected values from transformers 5.23.0, with this script (in this folder):

    import torch
    from transformers import BertConfig, BertModel
    from test_encoder import TEXTS, tokenizer, weights
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=2,
                        num_attention_heads=2, intermediate_size=16,
                        max_position_embeddings=12, layer_norm_eps=1e-12)
    model = BertModel(config, add_pooling_layer=False).eval()
    model.load_state_dict(weights())
    cut = tokenizer()
    cut.enable_truncation(6)
    cut.enable_padding()
    batch = cut.encode_batch(TEXTS)
    mask = torch.tensor([one.attention_mask for one in batch])
    ids = torch.tensor([one.ids for one in batch])
    h = model(input_ids=ids, attention_mask=mask).last_hidden_state
    mean = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    print(torch.nn.functional.normalize(mean, dim=1))
    """
    expected = [
        [0.116069, -0.298784, -0.213921, 0.192781, -0.346653, 0.311657, 0.730863, -0.25074],
        [0.320923, -0.158764, -0.074501, 0.128797, -0.676028, 0.056965, 0.618829, 0.080344],
        [0.230324, -0.238679, -0.367448, 0.121673, -0.436211, 0.183792, 0.718373, -0.006385],
        [0.035755, -0.328909, -0.04357, 0.242141, -0.286783, 0.385952, 0.653186, -0.414915],
        [0.234292, -0.143871, -0.017226, 0.270306, -0.590424, -0.149279, 0.671508, 0.170994],
    ]
    got = tiny.vectors(tiny.tokens(TEXTS, 6))
    np.testing.assert_allclose(got.numpy(), expected, atol=2e-6)


def test_padding_does_not_matter(tiny):
    tokens = tiny.tokens(TEXTS, 10)
    together = tiny.vectors(tokens)
    alone = torch.cat([tiny.vectors([one]) for one in tokens])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(len(TEXTS)))


def test_without_tokenizers(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError) as error:
        encoders.load()
    assert str(error.value) == (
        "features = 'sentences' needs the package tokenizers, which is not installed; run `pip "
        "install 'isonomy[text]'`."
    )


@pytest.mark.slow
def test_the_real_encoder():
    """Expected values from sentence-transformers 6.2.0, first five numbers of each vector:

    model = SentenceTransformer(FOLDER)  # the folder `model` of the package
    model.max_seq_length = 128
    print(model.encode(texts)[:, :5], model.encode(texts) @ model.encode(texts).T)
    """
    texts = ["This film is good.", "I like this movie.", "The soup was cold " * 50]
    try:
        encoder, _ = encoders.load()
    except FetchError as error:
        pytest.skip(f"the encoder is neither cached nor available here: {error}")
    got = encoder.vectors(encoder.tokens(texts, 128)).numpy()
    first = [
        [-0.0822337, -0.0023563, -0.0034853, 0.0138889, -0.0340037],
        [-0.1099103, 0.0343477, -0.0402312, 0.0478796, -0.0145193],
        [-0.0661951, -0.0319286, 0.0311566, 0.0298537, -0.0977703],
    ]
    products = [[1, 0.6842594, 0.1414473], [0.6842594, 1, 0.1152068], [0.1414473, 0.1152068, 1]]
    np.testing.assert_allclose(got[:, :5], first, atol=2e-6)
    np.testing.assert_allclose(got @ got.T, products, atol=2e-6)
