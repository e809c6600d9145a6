"""`python -m flashgp` is the command `flashgp`."""

from flashgp.cli import process

process()
