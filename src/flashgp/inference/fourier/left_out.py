"""Leave-one-out by Fourier series: each row predicted without what it says, eq. (M-438).

    mean_-i = y_i - (r_i - f_i) / (1 - v_i / s_i),   variance_-i = s_i / (1 - v_i / s_i)

with f_i and v_i mean and variance of the series at x_i. Without a factor v_i are sampled.
"""

import torch

from flashgp.foundations.contexts import entered
from flashgp.foundations.normal import LOG_2PI
from flashgp.inference.fourier.predictor import FourierPredictor
from flashgp.inference.fourier.state import FourierState
from flashgp.inference.predict.leave_one_out import LeaveOneOut

LEAST = 1e-6  # of a row's noise that the others leave


@entered(lambda state: state.run.deterministic)
@torch.no_grad()
def leave_one_out(state: FourierState) -> LeaveOneOut:
    """Training rows, each predicted from all the others. Cost: two transforms of the rows, or more with draws."""
    rows, predictor = state.of_rows("leave_one_out"), FourierPredictor(state, deterministic=state.run.deterministic)
    variance = state.variance_of(rows).unsqueeze(-1)
    spread = (predictor.variance(rows.x).value - state.tail).clamp_min(0.0)
    kept = (1.0 - spread / variance).clamp_min(LEAST)
    error = variance * state.representer_weights / kept
    total = variance / kept
    y = rows.y.double().reshape(error.shape)
    found = y - error, total.expand_as(error), -0.5 * (error.square() / total + total.log() + LOG_2PI)
    shape = rows.y.shape
    return LeaveOneOut(*(t.reshape(shape).to(state.result_dtype) for t in found))
