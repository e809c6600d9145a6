"""Ten million rows by Fourier series: read from Parquet in passes, their mean and variances at points."""

import numpy as np
import pyarrow
import pyarrow.parquet

import flashgp as fgp

ROWS = 20_000  # raise it to 10_000_000: memory stays, and an evaluation of the fit takes as long
PARTS = 4
rng = np.random.default_rng(0)
for part in range(PARTS):
    x = rng.uniform(0.0, 10.0, (ROWS // PARTS, 2))
    y = np.sin(x[:, 0]) * np.cos(x[:, 1]) + rng.normal(0.0, 0.3, len(x))
    pyarrow.parquet.write_table(pyarrow.table({"u": x[:, 0], "v": x[:, 1], "y": y}), f"part-{part}.parquet")

rows = fgp.data.parquet("part-*.parquet", target="y")
gp = fgp.GP(1.0 * fgp.kernels.RBF(lengthscale=2.0), fgp.means.Constant())
fit = fgp.fit(gp, rows, approximation="fourier", starts=1)
print(fit.report)  # passes, frequencies, and what they leave out

p = fit.posterior.predict(rng.uniform(0.0, 10.0, (1_000, 2)))
print(p.mean[:3], p.variance[:3])  # of f, without noise
