"""A model of a table: its columns as they are on one side, a standardised Gaussian process on the other.

model = TableModel().fit("houses.csv", target="price")
prediction = model.predict("new.csv")                # mean, std, intervals in units of price
model = model.update("more.csv")
model.save("model.safetensors")

The command line uses it. Columns become numbers in `flashgp.table`, standard units are `flashgp.units`.
"""

from .model import TableModel
from .prediction import TablePrediction

__all__ = ["TableModel", "TablePrediction"]
