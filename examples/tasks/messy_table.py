"""A table as it comes: text, dates, currency, missing values, a German decimal comma."""

from pathlib import Path

import numpy as np

import flashgp as fgp

rng, lines = np.random.default_rng(0), ["Stadt;Datum;Preis;Miete"]
for day in range(60):
    city, price = ("Köln", "Ulm")[day % 2], 100.0 + 2.0 * day + 40.0 * (day % 2) + rng.normal()
    shown = f"{price:.2f}".replace(".", ",")
    lines.append(f"{city};{1 + day % 28}.{1 + day // 28}.2024;{shown};{'' if day == 7 else f'{price / 9:.0f} EUR'}")
Path("messy.csv").write_text("\n".join(lines), encoding="utf-8")

model = fgp.TableModel(missing="drop").fit("messy.csv", target="Preis", drop=["Miete"])
print(*model.notes, sep="\n")
print(model.verdict)
print(model.predict({"Stadt": ["Ulm"], "Datum": ["15.2.2024"]}))
