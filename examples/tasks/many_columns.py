"""Many columns and few rows."""

import numpy as np

import flashgp as fgp

rng = np.random.default_rng(0)
x = rng.normal(size=(150, 40))
y = 2.0 * x[:, 3] + np.sin(3.0 * x[:, 10]) + rng.normal(0.0, 0.1, 150)
table = {**{f"f{j:02d}": x[:, j] for j in range(40)}, "y": y}

model = fgp.TableModel(target_transform="none", starts=1).fit(table, target="y")
print(model.verdict)
importance = model.importance()
print([importance.names[j] for j in importance.order[:3]])
assert importance.names[importance.order[0]] == "f03"
