"""`flashgp demo`: the commands a reader would type, on a small table that is made here."""

import csv
import math
import random
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flashgp.foundations.errors import DomainError

from .console import Console
from .fitting import run_fit
from .options import DemoArguments, FitArguments, PredictArguments
from .predicting import run_predict

NOISE = 20.0  # of a price, thousands
TARGET = "price"
INPUTS = ("area", "distance", "built", "district")
Row = tuple[float | int | str, ...]
DISTRICTS = {"centre": 90.0, "river": 60.0, "hill": 40.0, "station": 0.0}  # thousands


def flats(rows: int, seed: int) -> list[Row]:
    """Flats that nobody sells: inputs and price in thousands, the same for the same seed."""
    draw = random.Random(seed)
    found: list[Row] = []
    for _ in range(rows):
        area, distance, built = draw.uniform(25.0, 160.0), draw.uniform(0.2, 15.0), draw.randrange(1900, 2024)
        district = draw.choice([*DISTRICTS])
        age = 40.0 * math.cos((built - 1900) / 20.0)  # old and new are dear
        price = 2.5 * area + 120.0 * math.exp(-distance / 4.0) + age + DISTRICTS[district] + draw.gauss(0.0, NOISE)
        found.append((round(area, 1), round(distance, 2), built, district, round(price, 1)))
    return found


def run_demo(options: DemoArguments, console: Console) -> dict[str, Any]:
    """Write a table, fit, predict. Returns: results of both commands. Raises: FlashGPError, OSError."""
    folder = Path(options.folder)
    if folder.exists() and not folder.is_dir():
        raise DomainError(f"`FOLDER` must be a folder, got the file {options.folder!r}; name another")
    folder.mkdir(parents=True, exist_ok=True)
    table, new, model = (str(folder / name) for name in ("flats.csv", "new_flats.csv", "model.safetensors"))
    page = str(folder / "report.html") if find_spec("matplotlib") else None
    sold, offered = flats(240, 1), flats(12, 2)
    _write(table, (*INPUTS, TARGET), sold)
    _write(new, INPUTS, [row[:-1] for row in offered])
    fit = ["fit", table, "--target", TARGET, "--out", model, *([] if page is None else ["--report", page])]
    _say(console, fit)
    fitted = run_fit(FitArguments(table=table, target=TARGET, out=model, report=page), console)
    predictions = str(folder / "predictions.csv")
    console.say()
    _say(console, ["predict", model, new, "--out", predictions, "--interval", "0.95"])
    predicted = run_predict(PredictArguments(model=model, table=new, out=predictions, interval=0.95), console)
    if page is None:
        console.note("matplotlib is not installed, so that there is no report; pip install 'flashgp[plot]'")
    return {"command": "demo", "folder": options.folder, "fit": fitted, "predict": predicted}


def _write(path: str, head: tuple[str, ...], rows: list[Row]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])


def _say(console: Console, words: list[str]) -> None:
    console.say(f"$ flashgp {shlex.join(words)}")
