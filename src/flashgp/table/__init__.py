"""Tables: from files and frames, encoded for a model, split, and results written.

table = read_table("bikes.csv.gz")
encoding = Encoding.learn(table, target="count")     # goes into the model file: encoding.to_json()
data = encoding.apply(table, need_target=True)       # data.x, data.y, data.rows, data.notes
train, test = split_rows(len(data.y), test_fraction=0.1, seed=0)
"""

from .columns import Column, Kind, Table
from .dates import Order
from .encoding import EncodedTable, Encoding, Missing
from .inputs import FrameEncoding, InputColumn, Unseen, time_position
from .reading import STANDARD_OUTPUT, read_table, require_format, table_of
from .splits import read_split, split_last, split_rows
from .writing import prediction_file, write_predictions

__all__ = [
    "STANDARD_OUTPUT",
    "Column",
    "EncodedTable",
    "Encoding",
    "FrameEncoding",
    "InputColumn",
    "Kind",
    "Missing",
    "Order",
    "Table",
    "Unseen",
    "prediction_file",
    "read_split",
    "read_table",
    "require_format",
    "split_last",
    "split_rows",
    "table_of",
    "time_position",
    "write_predictions",
]
