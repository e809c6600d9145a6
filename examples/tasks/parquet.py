"""Rows that are read from Parquet files and never held, with a bound on what is lost.

Out of core: a million rows and more.
"""

import numpy as np
import pyarrow
import pyarrow.parquet

import flashgp as fgp

rng = np.random.default_rng(0)
for part in range(3):
    x = rng.uniform(0.0, 6.0, 2_000)
    table = pyarrow.table({"x": x, "y": np.sin(x) + rng.normal(0.0, 0.2, 2_000)})
    pyarrow.parquet.write_table(table, f"part-{part}.parquet")

model = fgp.TableModel(approximation="sparse", inducing=32, starts=1).fit("part-*.parquet", target="y")
print(model.verdict)
print(model.predict({"x": [1.0, 2.0]}).interval(0.95))
print(model.posterior.bound)
