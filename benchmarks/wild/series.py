"""Tables and time series: those that statsmodels ships, machines that hum, and ratings drawn from hidden tastes."""

import csv
from pathlib import Path

import numpy as np

SERIES = {"sunspots": ["SUNACTIVITY"], "nile": ["volume"], "co2": ["co2"]}
MONTHS = 12


def table(packages: Path, name: str) -> dict[str, np.ndarray]:
    """A data set of statsmodels as columns; empty cells are not a number."""
    path = packages / "statsmodels" / "datasets" / name / f"{name}.csv"
    with path.open(encoding="utf-8-sig") as lines:
        rows = list(csv.DictReader(lines))
    return {key: np.array([_number(row[key]) for row in rows]) for key in rows[0]}


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def standardized(packages: Path) -> list[np.ndarray]:
    """Each series with mean 0 and deviation 1, gaps filled in."""
    raw = [table(packages, name)[column] for name, columns in SERIES.items() for column in columns]
    warm = table(packages, "elnino")
    months = [key for key in warm if key != "YEAR"]
    raw.append(np.stack([warm[key] for key in months], 1).ravel())
    return [_standardized(_filled(series)) for series in raw]


def _filled(series: np.ndarray) -> np.ndarray:
    known = np.isfinite(series)
    return np.interp(np.arange(len(series)), np.flatnonzero(known), series[known])


def _standardized(series: np.ndarray) -> np.ndarray:
    return ((series - series.mean()) / series.std()).astype(np.float32)


def windows(packages: Path, past: int, future: int, unseen: float = 0.25) -> tuple[np.ndarray, np.ndarray]:
    """Stretches of all series (N, past + future), shuffled: of their beginnings, and of what comes later."""
    early, late = [], []
    for series in standardized(packages):
        stretches = np.lib.stride_tricks.sliding_window_view(series, past + future)
        last = int(len(stretches) * (1 - unseen))
        early.append(stretches[: last - past - future])
        late.append(stretches[last:])
    rng = np.random.default_rng(0)
    return rng.permutation(np.concatenate(early)), rng.permutation(np.concatenate(late))


def hums(count: int, bands: int, seed: int) -> np.ndarray:
    """Spectra in decibels of machines that turn at various speeds: (count, bands)."""
    rng = np.random.default_rng(seed)
    frequencies = np.arange(bands)
    speed = rng.uniform(4, 9, (count, 1, 1))
    harmonic = np.arange(1, 9)[None, :, None]
    strength = rng.uniform(0.3, 1, (count, 8, 1)) / harmonic
    power = (strength * np.exp(-0.5 * (frequencies - speed * harmonic) ** 2)).sum(1)
    return (10 * np.log10(power + 10 ** rng.normal(-2, 0.15, (count, bands)))).astype(np.float32)


def ratings(users: int, items: int, count: int) -> dict[str, np.ndarray]:
    """Who rated what how (1 to 5), popular items more often; tastes and items have eight hidden traits."""
    rng = np.random.default_rng(0)
    taste, traits = rng.normal(size=(users, 8)), rng.normal(size=(items, 8))
    kindness, quality = rng.normal(0, 0.4, users), rng.normal(0, 0.5, items)
    popularity = 1 / np.arange(1, items + 1) ** 0.8
    user, item = rng.integers(users, size=count), rng.choice(items, count, p=popularity / popularity.sum())
    like = (taste[user] * traits[item]).sum(1) / 3 + kindness[user] + quality[item] + rng.normal(0, 0.3, count)
    rating = np.clip(np.round(3 + like), 1, 5).astype(np.float32)
    age = (30 + 10 * taste[:, 0]).astype(np.float32)
    return {"user": user, "item": item, "rating": rating, "age": age[user]}
