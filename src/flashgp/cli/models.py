"""The model that a command is given. Apart from paths.py because it imports torch, which not every command needs."""

from flashgp.foundations.errors import ModelFileError
from flashgp.table_model import TableModel


def read_model(path: str, usage: str) -> TableModel:
    """The model of a table in a file.

    Args: usage: the command and its arguments in order, for who gave another kind of file, such as the table.
    Raises: ModelFileError as `TableModel.load`.
    """
    try:
        return TableModel.load(path)
    except ModelFileError as error:
        if not error.foreign:
            raise
        raise ModelFileError(f"{error}; the order is: flashgp {usage}", foreign=True) from None
