"""The doctor: what this installation and this machine are, what stands in the way of speed, and what to do about it."""

from flashgp.diagnosis.examination import doctor
from flashgp.diagnosis.findings import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "doctor"]
