"""Data that are read, not held: Parquet files, and any rows in standard units."""

from flashgp.data.parquet import ParquetRows, parquet
from flashgp.data.standardised import StandardisedRows, standardised

__all__ = ["ParquetRows", "StandardisedRows", "parquet", "standardised"]
