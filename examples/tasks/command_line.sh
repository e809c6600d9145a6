# The command line: what a fit takes, a fit with its verdict and report, predictions, and rows that come later.
set -e
python -c "
import numpy as np
x = np.random.default_rng(0).uniform(0, 6, 90)
lines = [f'{a:.3f},{np.sin(a):.4f}' for a in x]
open('old.csv', 'w').write('\n'.join(['hour,level', *lines[:60]]))
open('new.csv', 'w').write('\n'.join(['hour,level', *lines[60:]]))
"
flashgp plan old.csv --target level
flashgp fit old.csv --target level --starts 1 --out model.safetensors --report report.html
flashgp predict model.safetensors new.csv --out predictions.csv --std --interval 0.95 --keep hour
flashgp update model.safetensors new.csv
