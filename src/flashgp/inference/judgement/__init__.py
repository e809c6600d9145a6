"""Judgement of a model by predictions of rows that took no part in them."""
