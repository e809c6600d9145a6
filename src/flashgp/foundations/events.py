"""Events and stop reasons: what happened while an answer was computed, as data. Sentences are made when shown.

To add a kind of event, add one member to `EventKind`; its value is the sentence. docs/decisions/0019-events.md
"""

import math
import re
import string
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum, unique
from typing import Any

from flashgp.foundations.quantities import counted, readable_bytes, readable_seconds


class StopReason(StrEnum):
    """Reason that a solve or a search ended. `sentence` says what that means, `advice` what to do."""

    GOAL = "goal"
    TIME = "time"
    ITERATIONS = "iterations"
    STAGNATED = "stagnated"
    ROUNDING = "rounding"
    DIVERGED = "diverged"
    CALLBACK = "callback"
    INTERRUPT = "interrupt"

    @property
    def sentence(self) -> str:
        return _STOPPED[self][0]

    @property
    def advice(self) -> str:
        return _STOPPED[self][1]

    @property
    def another_method_may_help(self) -> bool:
        """True if the method, not the caller or the time, ended it."""
        return self in (StopReason.STAGNATED, StopReason.DIVERGED, StopReason.ITERATIONS)


_MORE = "Raise time_limit= or tolerance=, or allow a factor with a larger memory=."
_STOPPED = {
    StopReason.GOAL: ("The solve reached its tolerance.", ""),
    StopReason.TIME: ("The time limit ended the solve before its tolerance.", _MORE),
    StopReason.ITERATIONS: ("The solve ran out of iterations before its tolerance.", _MORE),
    StopReason.STAGNATED: ("The solve stagnated before its tolerance.", _MORE),
    StopReason.ROUNDING: ("The solve ended at the rounding of float64, before its tolerance.", "Raise tolerance=."),
    StopReason.DIVERGED: ("The solve diverged before its tolerance.", _MORE),
    StopReason.CALLBACK: ("The progress callback ended the solve before its tolerance.", _MORE),
    StopReason.INTERRUPT: (
        "Ctrl-C ended the solve before its tolerance.",
        "Call gp.condition(x, y) for the whole solve.",
    ),
}


class Obstacle(StrEnum):
    """Reason why an iterative solver changed its way; its value continues a sentence."""

    GROWING = "the residual grows"
    NOT_HALVED = "the residual has not halved within the window"
    DRIFTED = "the true residual does not follow the recurrence"
    INDEFINITE = "the matrix does not look positive definite"
    OVERFLOWED = "numbers overflow"
    NO_GAIN = "neither preconditioner gained anything"


class Untried(StrEnum):
    """Reason that a choice before a fit tried nothing, or no more; its value continues a sentence."""

    TIME = "the time limit left no time"
    FEW_ROWS = "the rows are too few"
    GIVEN = "the parameters are not fitted"
    CONSTANT = "the target is constant"
    UNITS = "the target has units or variances of rows that were given"
    NO_FACTOR = "no covariance had a Cholesky factor"


class ApproximationReason(StrEnum):
    """Reason that inference is exact or approximate where that was left to the library; its value continues a
    sentence."""

    FITS = "an exact plan keeps to the limits"
    TIME = "an exact fit would pass the time limit"
    QUICKER = "it is much quicker than an exact fit, and as close as the noise lets tell"
    READ = "it is much quicker than passes over the rows by inducing points"
    MEMORY = "an exact fit does not fit the memory"
    SITES = "an exact fit would look for sites much longer"
    NO_OTHER = "no approximation of this model would be quicker"


class NoSeries(StrEnum):
    """Reason that Fourier series are not taken where inference is left to the library; its value continues a
    sentence."""

    LIBRARY = "finufft is not installed"
    KERNEL = "the covariance function is not stationary"
    COLUMNS = "a term of the covariance function is not of one to three columns"
    FREQUENCIES = "the covariance function takes too many frequencies for the memory or the noise"
    MODEL = "the model has another likelihood, noise or number of outputs than they serve"
    DEVICE = 'their time on a GPU is not measured; approximation="fourier" takes them'
    SIZES = "inducing points or neighbours were asked for"
    SLOWER = "another way is as quick, or keeps to the limits better"


class NoDraws(StrEnum):
    """Reason that a fit has one set of hyperparameters and no draws of them; its value continues a sentence."""

    LIKELIHOOD = "the likelihood is not Gaussian"
    TABLES = "there are several tables, or a batch of models"
    MODULES = "the model has modules of your own"
    FIXED = "no parameter is fitted"
    ROWS = "the rows are too many for exact gradients in float64 on the processor"
    APPROXIMATION = "inference is approximate"
    SECONDS = "averaging over them would take more gradients than the search"
    TIME = "the time limit leaves no time for draws of them"


class SampleReason(StrEnum):
    """Reason that a fit went through a sample in place of passes over all rows; its value continues a sentence."""

    PLANNED = "by the plan"
    READING = "by how long reading them took"
    CHECKPOINT = "as the checkpoint has it"


@unique
class EventKind(Enum):
    """The kinds of events. The value is the sentence, with the event's fields in braces.

    A part in square brackets is shown where the event has all fields in it (not None or False); after a bar, what is
    shown otherwise. Formats beside Python's own: bytes, seconds, `n row` for "1 row" or "2 rows", stop for the
    sentence of a StopReason, list, if for nothing.
    """

    NOTE = "{text}"

    # arguments and environment
    HALF_PRECISION = "`{argument}` came in {dtype}; it is computed with in float32."
    AUTOCAST = "Networks of Warped ran under your autocast ({dtypes:list}); all else is in full precision."
    FEATURES_COLLAPSED = (
        "[{all:if}The features of a network are nearly equal for all rows: the model is a constant with noise. "
        "Begin again from other weights, or with a smaller step size.|{dead:n feature} of {features:,} of a network "
        "hardly vary: they tell no rows apart. Fewer features would do, or standardise what the network returns.]"
    )
    DETERMINISTIC = "Deterministic: one thread and built-in rates."
    RUNTIME = "Runtime: {placement}."
    MOVED = "{bytes:bytes} of x were moved from {source} to {target}."
    TILES_HALVED = "Memory ran out. The work went on in pieces of {rows:n row}; the result is the same."
    LOOPS_HALVED = (
        "Memory ran out in a compiled loop. It went on with {rows:n row}, {columns:n column} and {right_sides} "
        "right-hand sides at a time; the result is the same."
    )
    PAIRS_SKIPPED = "{share:.3g} % of the pairs evaluated, the rest skipped: below {below:g} of the prior variance."
    PAIRS_NOT_SKIPPED = (
        "Every pair was evaluated: [too few are below {below:g} of the prior variance|a Python function of two points "
        "has no bound]."
    )

    # conditioning
    NO_DATA = "There are no data: the posterior is the prior."
    ROWS_JOINED = "{rows:n row} joined into {distinct:,} that differ in x; the answer is the same."
    SHARED = "{ranks} ranks[ with {counts:list} rows]; this one sent {sent:bytes}[, planned {planned:bytes}]."
    REFINED = "The factor is in float32; {corrections:n float64 correction} refined the weights."
    JITTER = (
        "The covariance was not positive definite. A jitter of {jitter} was added to the diagonal"
        "[{factor_only:if} of the factor only: mean and variance are those without it] (relative steps tried: "
        "{tried:list}). More noise, or fewer repeated rows, avoids this."
    )
    ROUNDED = (
        "Rounding in {dtype} may move means by {share:.1e} standard deviations of an observation[, variances by "
        "{of_variances:.1e} of themselves][, and the log likelihood by {nats:.1e} nats]: prior variances reach "
        "{largest:.1e}[, the norm of the weights is {weights:.1e}][, and the smallest pivot {pivot:.1e}]. Add noise, "
        "or scale the inputs."
    )
    ROUTE_FAILED = (
        "{route}: [{error}|ended after {iterations:n iteration} ({reason})]. A float64 Cholesky factor of all rows "
        "takes over, in {bytes:bytes}."
    )
    TILES_NOT_STORED = (
        "The covariance matrix would take {needed:bytes}, with {free:bytes} free. It is computed again in every "
        "product, which takes longer."
    )

    # approximations
    FULL_SCALE = (
        "Full scale: {inducing:n inducing point}, blocks of {block:n row} with {neighbours:n neighbour}, "
        "{predicting:n neighbour} for a point that is predicted."
    )
    FOURIER = "Fourier series: {frequencies:,} frequencies from a pass over {rows:n row}[, {iterations:n iteration}]."
    FOURIER_TAIL = (
        "Higher frequencies have a variance of {tail:.2g}, {percent:.2g}% of the noise, and count as noise: "
        "predictions lose at most {nats:.2g} nats a row[, and means are off by up to {error:.1e}, as a coarser grid "
        "tells]."
    )
    FOURIER_UNFINISHED = (
        "The solve of Fourier series ended with an error of the mean of {error:.1e} standard deviations of f, "
        "{asked:.1e} was asked. There are few rows for so many frequencies, or little noise: pass "
        'approximation="full_scale" for a closer mean.'
    )
    FOURIER_VARIANCE = "Variances from {draws:n draw}, with a standard error of {error:.0%}."
    FOURIER_ROWS = "Variances by a factor of the {rows:n row}, quicker than by that of so many frequencies, and exact."
    FOURIER_WINDOWS = "Variances by the rows near, which some that were solved differ from by up to {error:.1%}."
    READ_IN_PART = (
        "The time limit of {limit:g} s ended the first pass after {read:n row}: the posterior is of {rows:,} random "
        "ones of these. Allow more time for that of all."
    )
    PREDICTION_PRICES = (
        "{points:,} predictions take about {means:seconds} for means and {variances:seconds} more for variances[, or "
        "{sampled:seconds} from {samples} samples, with a standard error]."
    )
    SEARCHED_BY_FULL_SCALE = (
        "{likelihood}: the search went by full scale, as a factor of {rows:n row} in each of its steps does not fit or "
        "takes too long."
    )
    EXACT_POSTERIOR = "The parameters are those of the approximation; the posterior is exact, given them."
    SITES = "{likelihood}: sites after {steps:n step}[ and {solves:n solve}], where one moves q(f) by {moved:.2g} nats."
    SITES_AGAIN = (
        "{likelihood}: sites of {rows:n row} were found anew, after new rows had moved q(f) by {moved:.2g} nats."
    )
    SITES_CUT = (
        "{likelihood}: [{by_hand:if}Ctrl-C ended the steps of sites after|the time limit of {limit:g} s ended the "
        "steps of sites after|sites have not settled in] "
        "{steps:n step}, the last of which moved q(f) by {moved:.2g} nats[{limit:if}. Allow more time, or call "
        "gp.condition(x, y), for sites that have settled]."
    )
    LAPLACE_BENDS = (
        "{likelihood}: of {rows:n row} log p bends upwards at the mode, and Laplace's method counts it as straight "
        "there. Its variances and its likelihood are not to be relied on; take method='variational'."
    )
    LAPLACE_FAR = (
        "{likelihood}: log p of a row is {nats:.2g} nats on average from the parabola that Laplace's method takes for "
        "it, as where the kernel has a large variance. Its probabilities and its likelihood are poor; take another "
        "method."
    )
    VARIANCE_LEFT_OUT = (
        "{likelihood}: the variance that the search found times {factor:.3g}, by leaving rows out, whose log density "
        "rose by {gain:.3g} nats a row."
    )
    SEARCHED_PART = (
        "{likelihood}: lengthscales were searched on {rows:,} of {of:n row}; the variance is found by leaving rows out."
    )
    VARIANCE_AS_SEARCHED = (
        "{likelihood}: the variance is that of the bound, which wants too little of it: the time limit of {limit:g} s "
        "left no time for leaving rows out. Probabilities are too cautious; allow more time."
    )
    FIT_SITES = "{likelihood}: sites by iteration, {steps:n step} in {evaluations:n evaluation} of the search."
    STREAMED = (
        "Streamed: {inducing:n inducing point} from passes over {rows:n row}[{read:if}, which are read and not held]."
    )
    FEWER_POINTS = (
        "{found:n inducing point} of the {asked:,} asked for: beyond them the rows left nothing above rounding or the "
        "noise to add."
    )
    FEWER_POINTS_SUFFICE = (
        "{kept:n inducing point} of the {planned:,} planned: [the others would add {gain:.1g} nats a row|the "
        "likelihood is no higher with the others]. inducing={planned} keeps them all."
    )
    NEAR_ENOUGH = (
        "{kept:n neighbour} of a point that is predicted in place of the {planned:,} planned, which would add "
        "{gain:.1g} nats a row."
    )
    MORE_NEIGHBOURS_TAKEN = (
        "{kept:n neighbour} in place of the {planned:,} planned: they add {gain:.1g} nats a row. neighbours={planned} "
        "takes no more."
    )
    APPROXIMATION_OFFERED = (
        "Exactly it would take about {exact_seconds:seconds} and {exact_bytes:bytes}[, past the time limit of "
        "{limit:g} s]. An approximation takes less, and the report says what it loses: approximation=["
        "'full_scale' about {full_scale_seconds:seconds} and {full_scale_bytes:bytes}][{both:if}, or "
        "]['sparse' about {sparse_seconds:seconds} and {sparse_bytes:bytes}] (--approximation on the command line)."
    )
    APPROXIMATION_CHOSEN = (
        "[{approximation} was chosen|Exact inference was chosen], since {reason}. Exactly [about "
        "{exact_seconds:seconds} and {exact_bytes:bytes}|no way fits the memory][, 'fourier' about "
        "{fourier_seconds:seconds} and {fourier_bytes:bytes}][, 'full_scale' about {full_scale_seconds:seconds} and "
        "{full_scale_bytes:bytes}][, 'sparse' about {sparse_seconds:seconds} and {sparse_bytes:bytes}][. There are no "
        "Fourier series: {no_series}]."
    )
    SERIES_LEFT = (
        "Fourier series were left for {taken}: at what the first rows say of the lengthscales they take "
        "[{frequencies:,} frequencies, about {seconds:seconds} in place of {other_seconds:seconds}|more frequencies "
        "than there is room for]."
    )
    LOST = (
        "The approximation loses {nats:.2g} ± {standard_error:.1g} nats a row against exact inference, by an "
        "estimate[; twice the neighbours would take {seconds:seconds}]."
    )
    BRACKET = (
        "The log evidence is between {lower:.4g} and {upper:.4g} nats a row: the approximation loses at most "
        "{nats:.2g} of them."
    )
    MINIBATCHES = (
        "Minibatches: {inducing:n inducing point}, {seen:n row} of {rows:,} seen, some perhaps several times. [The "
        "bound is {gap:.2g} nats a row below that of the best distribution of inducing values for what was seen.]"
    )
    SAMPLE_CHOSEN = (
        "A random sample whose rows count for all took the place of passes: a value with its gradient of all "
        "{rows:n row} takes about "
        "{seconds:seconds}, {reason}, of the [{limit:g} s that there are|time that there is]."
    )
    PART_TRIED = (
        "On rows held out of a sample, after the first search, {inducing:n inducing point} leave an RMSE of "
        "{points:.4g}, [{full_scale:if}full scale|exact inference] on {rows:,} random rows leaves {part:.4g}"
        "[{taken:if} and is taken]."
    )
    FIT_ENDED = (
        "The fit ended with {left:seconds} of its {limit:g} s left: [{sampled:if}the search of the sample ended, and "
        "all rows are learned|no further step promises a gain that predictions show]."
    )
    ROWS_LEARNED = (
        "By minibatches the posterior has learned [{whole:if}all {rows:n row}|{seen:n row} of {rows:,}]; its bound is "
        "[about {bound:.5g} ± {bound_error:.1g} "
        "nats a row, up to {gap:.2g} below that of the best distribution of inducing values|not known]."
    )
    ROWS_NOT_RANDOM = (
        "The rows that the fit has seen are not a random part of all: the mean of {column} is off by {errors:.0f} "
        "standard errors. Their order in the source is not random, and it could not be read from other places: "
        "shuffle it, or write it in more row groups."
    )
    FEWER_NEIGHBOURS = (
        "{blocks:n block} had fewer neighbours: with all of them rounding left no factor. More noise, or fewer "
        "repeated rows, avoids this."
    )

    # linear solves
    SOLVED = "Solve: {iterations:n iteration}, {passes:.3g} passes over the pairs."
    APPROXIMATE_PRODUCTS = (
        "Products with the covariance matrix by Fourier series of {frequencies:,} frequencies, refined by exact ones: "
        "about {gain:.1f} times quicker."
    )
    EXACT_PRODUCTS_SPLIT = (
        "Exact products by pairs within {radius:.2g} lengthscales and {frequencies:,} frequencies: about {gain:.1f} "
        "times quicker than by all pairs. The bound has their error, as some rows say."
    )
    EXACT_PRODUCTS_LEFT = (
        "{solver}: products by near pairs and frequencies may be off by more than the tolerance allows; those of all "
        "pairs go on from there."
    )
    APPROXIMATE_PRODUCTS_REFUSED = "Products of all pairs: approximate ones {why}."
    APPROXIMATE_PRODUCTS_DEARER = (
        "Products of all pairs: those by Fourier series, of {frequencies:,} frequencies, would be {gain:.2g} times as "
        "quick; from {least:g} times on they are taken."
    )
    APPROXIMATE_PRODUCTS_LEFT = "{solver}: approximate products gained too little; those of all pairs go on from there."
    SOLVE_ENDED = (
        "{reason:stop} [The mean is off by at most {bound:.2e}; {asked:.2e} was asked for.|The relative residual is "
        "{residual:.1e}; without noise no bound of the mean is known.]"
    )
    ROUNDING_REACHED = (
        "The residual is at the rounding of float64: the mean is off by at most {bound:.2e}; {asked:.2e} was asked for."
    )
    FLOAT64_PRODUCTS = "{solver}: with float32 products {obstacle}. From iteration {iteration} on they are in float64."
    OBSTACLE = "{solver}: {obstacle}."
    CORRECTED = (
        "{solver}: rounding keeps the residual from becoming smaller; {iterations:n iteration} for the error itself "
        "made its bound {sharper:.3g} times sharper."
    )
    FACTOR_SHIFTED = "{solver}: the factor is of the matrix plus {shift:.2e}; the system is not."
    PRECONDITIONER_AT_ONCE = (
        "{solver} began with the full-scale preconditioner: for so many rows, making it takes little longer than a "
        "pass."
    )
    PRECONDITIONER_COMPARED = (
        "{solver} contracted[ by {rate:.2f} per iteration,] with the full-scale preconditioner by "
        "{candidate_rate:.2f}[, then {obstacle}]: [{kept:if}kept|not kept][{float32_again:if}, float32 products "
        "again]."
    )
    PRECONDITIONER_UNDECIDED = (
        "{solver}[ contracted by {rate:.2f} per iteration and] tried the full-scale preconditioner; the solve "
        "ended before they were compared."
    )
    PRECONDITIONER_REDUCED = (
        "{solver}: {blocks:n block} of the full-scale preconditioner have fewer neighbours, since their covariance was "
        "not positive definite with all. The answer is not affected."
    )
    PRECONDITIONER_REFUSED = "{solver} is slow; the full-scale preconditioner could not be made: {error}"

    FACTOR_ON_TIME = (
        "[{by_hand:if}Ctrl-C|The time limit of {limit:g} s] left no time for what was planned: a float64 factor of all "
        "rows took its place."
    )
    POSTERIOR_OF_PART = (
        "[{by_hand:if}Ctrl-C|The time limit of {limit:g} s] left no time for the planned posterior of {of:n row}: this "
        "one is of {rows:,} random ones. Allow more time, or condition the fitted GP once more, for that of all."
    )

    # likelihood
    LOG_DETERMINANT = (
        "Log determinant from {probes} probes and {steps} Lanczos steps: the likelihood's standard error is "
        "{standard_error:.2g}."
    )
    LIKELIHOOD_UNCERTAIN = (
        "The solve of the weights ended early: the likelihood may be too large by [up to {nats:.2g} nats|an unknown "
        "amount, since without noise no bound is known]."
    )
    LIKELIHOOD_ROUNDED = (
        "Rounding in {dtype} may move the log likelihood, {value:.3g}, by {nats:.1e} nats. Add noise, or scale the "
        "inputs."
    )

    # predictions and paths
    VARIANCE_BY_FACTOR = (
        "Variance by the float32 factor, off by at most {error:.1e} of itself at {points} of the points"
        "[; {instead} at all of them]."
    )
    VARIANCE_BY_SOLVES = "Variance by solves, too large by at most {share:.1e} of itself."
    VARIANCE_TOO_LARGE = (
        "The time limit ended the solves of variances at {points:,} of {of:n point}: these are too large, up to the "
        "prior variance, and never too small. Allow more time, or ask for fewer points."
    )
    VARIANCE_BY_SAMPLES = (
        "Variance from {samples} samples, the largest standard error {share:.1e} of it[{unfinished:if}; their solves "
        "ended with the time, which is in it]."
    )
    VARIANCE_NEGATIVE = (
        "A computed variance was {worst:.2e}, below zero by more than rounding; it is given as 0. Use float64, or more "
        "noise."
    )
    LEFT_OUT = (
        "Leave-one-out [by the float32 factor, off by at most {share:.1e} of its variances at {rows} of the rows.|by "
        "solves, its variances too large by at most {share:.1e} of themselves.]"
    )
    JOINT_JITTER = "A jitter of {jitter:.2e} was added to factorise the joint covariance."
    RANDOM_FEATURES = (
        "Paths of the prior from {features:,} random features[{exact:if}, a finite rank: the prior is exact]"
        "[: prior error {error:.1e} of the prior variance, root mean square over sampled pairs]."
    )
    DRAWN_AS_ASKED = (
        "The kernel has no random features: paths are drawn exactly at the points that they are asked for, each value "
        "given those before."
    )

    # training
    WEIGHTS_EQUAL = "All weights are {weight:g}: equal weights change nothing."
    WEIGHTS_RELATIVE = (
        "The weights are relative precisions: the noise variance of a row is noise_variance / weight, with weights of "
        "geometric mean 1, {least:.3g} to {most:.3g}. Their overall scale does not matter."
    )
    WEIGHTS_COUNTED = (
        "The weights, whole numbers from 1 to {most:g}, were taken for counts: a row of weight 3 is three equal rows, "
        "which show no noise among them. Halve them where they are relative precisions, whose scale does not matter."
    )
    CLASSES_FOUND = (
        "The target {target} has the classes {labels:list}, whose probabilities are modelled. likelihood='gaussian' "
        "(--likelihood gaussian) takes numbers for numbers on a line."
    )
    COUNTS_SUGGESTED = (
        "The target {target} holds whole numbers from {low:g} to {high:g}, {distinct} that differ, modelled as numbers "
        "on a line. likelihood='auto' (--likelihood auto) takes negative-binomial for such, a model of counts."
    )
    COUNTS_FOUND = (
        "The target {target} holds whole numbers from {low:g} to {high:g}, {distinct} that differ, modelled as counts "
        "by a negative binomial distribution. likelihood='gaussian' (--likelihood gaussian) takes numbers on a line."
    )
    TWO_VALUES = (
        "The target has 2 values, {low:g} and {high:g}: this looks like classification. What is predicted is a number "
        "on a line; GPClassifier, or TableModel, predicts probabilities of classes."
    )
    FAR_OUT = (
        "Half of the values of {column} lie within {share:.1g} of its standard deviation: {value:.4g}[ at row {row}] "
        "is so far out that the others can hardly be told apart. Correct it or leave the row out; of a skewed column "
        "take the logarithm."
    )
    FEW_VALUES = (
        "There are few rows: {values:n value} of the target cannot tell {parameters} parameters, which are much as "
        "their priors, or the values that they were given, have them. More rows, or fewer inputs, help."
    )
    TARGET_TRANSFORMED = (
        "The target is modelled on another scale, {transform}: [{rows:n row} of it, left out one by one, are predicted "
        "better by {left_out:,.4g} in log density, beside a standard error of {error:.2g}|no other was tried]"
        "[, since {untried}][. Not all were tried, since {cut}]."
    )
    TARGET_KEPT = (
        "The target is modelled as it is: [on {rows:n row} the best transform, {transform}, changes the evidence by "
        "{gain:+.3g} nats and leave-one-out log density by {left_out:+.3g}, with a standard error of {error:.2g}; "
        "{needed:+g} nats and {errors:g} standard errors are asked for|no transform was tried][, since {untried}]"
        "[. Not all were tried, since {cut}]."
    )
    KERNEL_CHOSEN = (
        "The covariance function is {kernel}, the best of {tried}: on {rows:n row} it gains {gain:.3g} nats of "
        "leave-one-out log density over the default, {other}, with a standard error of {error:.2g}; {errors:g} "
        "standard errors were asked for[. Not all were tried, since {cut}]."
    )
    KERNEL_KEPT = (
        "The covariance function is the default, {kernel}: [on {rows:n row} the best of {tried:n other candidate}, "
        "{other}, changes leave-one-out log density by {gain:+.3g} nats, with a standard error of {error:.2g}; "
        "{errors:g} standard errors are asked for|no other was tried][, since {untried}][. Not all were tried, since "
        "{cut}]."
    )
    SUBSET_FIT = "{starts:n start} fitted to {subset:,} of {rows:n row}; the best went on with all."
    CORES_TAKEN = (
        "Other processes kept cores busy: the fit worked with {threads:n thread} instead of {usual}, which is quicker "
        "then than threads that wait for each other."
    )
    FIT_INTERRUPTED = "Ctrl-C ended the fit: the best parameters so far are returned."
    FIT_TIME_UP = (
        "The time limit of {limit:g} s ended the fit[{unfitted:if} before an evaluation: the parameters are those that "
        "it began with|, on {fitted:,} of {rows:n row}: the best parameters so far are returned|: the best "
        "parameters so far are returned][. The next evaluation would have taken about {next_seconds:seconds} of the "
        "{left_seconds:seconds} that the search still had]."
    )
    FIT_SOLVE_INTERRUPTED = "Ctrl-C ended the last solve of the fit: its best weights so far are returned."
    CHECKPOINT_FAILED = "The checkpoint could not be written: {error}. The fit itself is complete."
    POINTS_REJECTED = (
        "{points:n line-search point} rejected: [{estimated:if}no gradient could be had|covariance not positive "
        "definite]."
    )
    POINT_FAILED = "{run}, one point: {error}"
    RESUMED = (
        "Resumed: {evaluations:n evaluation} came from the checkpoint[{estimated:if}; gradients after them agree with "
        "those of an uninterrupted fit to the tolerance of their solves]."
    )
    FIT_JITTER = "A jitter was needed in {attempts:n factorisation attempt} of the fit."
    ON_BOUND = "{parameter} ended on its bound[, {bound:g}: the data ask for a value beyond it]."
    NOTHING_EXPLAINED = (
        "The model explains no more of the target than a constant[, beyond what {periods:n period} explain of noise "
        "alone]. Do not trust what it predicts beside the mean; try other inputs, another covariance function or other "
        "starting values."
    )
    SEARCH_LEFT = (
        "The parameters found on few rows within the time limit explained no more than a constant: those that the data "
        "suggest, or the same with the noise reset, are better by {gain:.3g} nats. More time finds better ones."
    )
    HYPERPARAMETERS_DRAWN = (
        "Predictions average over {draws} sets of hyperparameters by Laplace's approximation, of which importance "
        "weights would leave {effective:.1f}."
    )
    HYPERPARAMETERS_SAMPLED = (
        "Predictions average over hyperparameters sampled by {chains:n chain} of NUTS in {evaluations:,} gradients: "
        "R-hat at most {r_hat:.3g}, {effective:.0f} effective draws at least[; {divergences:n transition} diverged]."
    )
    HYPERPARAMETERS_FIXED = (
        "Predictions are by the best hyperparameters alone, since {reason}[: {share:.1f} times as long]."
    )
    COLUMNS_FOUND = (
        "{columns:n column} that the search had ignored matter at short distances: with these it is better by "
        "{gain:.3g} nats."
    )
    LENGTHSCALES_RESET = (
        "A restart with {lengthscales:n long lengthscale} reset found a better optimum, by {gain:.3g} nats."
    )
    NOISE_RESET = "A restart with the noise reset, which had vanished, found a better optimum, by {gain:.3g} nats."
    ROWS_PASSED_OVER = "The stage of {rows:n row} was skipped, no gradient could be had: {error}"
    SEARCHED_BY_VALUES = "Fisher scoring had no gradient to begin with ({error}): L-BFGS-B took {rows:n row} instead."
    NO_GRADIENT = (
        "No gradient of all {rows:n row} could be had. The parameters are those fitted to {fitted:n row}: {error}"
    )
    GRADIENTS_ESTIMATED = (
        "Gradients of all {rows:n row} were estimated with {probes} probes, {evaluations} of them in {passes:.0f} "
        "passes over the pairs. They cost about {noise:.2g} nats where the probes are as good as exact ones; the "
        "search ends where a step promises less than {enough:.2g}."
    )
    SEARCH_UNFINISHED = (
        "The search over all rows ended after {evaluations:n gradient}; by its model another step would gain "
        "{expected:.2g} nats. Raise max_iterations= or time_limit=."
    )
    STAGE_REJECTED = (
        "The search over {rows:n row} was rejected: under its parameters the first {first:n row} are {worse:.2g} nats "
        "each less likely, so its gradients were too rough. The parameters before it are kept."
    )
    STAGE_WORSE = (
        "Under the parameters of {rows:n row}, the first {first:n row} are {worse:.2g} nats each less likely; kept, "
        "since the gradients are as exact as asked for."
    )
    NOT_EXTRAPOLATED = "{rows:n row} had no gradient where fewer rows lead; their search began at the optimum of those."
    GRADIENTS_BY_FACTORS = (
        "Iterative solves took longer than a float32 factor of as many rows would: gradients come from factors."
    )
    GRADIENTS_IN_FLOAT64 = "Float32 products were too rough for some gradients, which took float64 ones."
    GRADIENTS_ROUGH = "The solves of some gradients ended ({reason}) with relative residuals above {residual:g}."
    GRADIENTS_FULL_SCALE_REFUSED = "The full-scale preconditioner of some gradients could not be made: {error}"
    GRADIENTS_FULL_SCALE = "Slow solves of gradients tried the full-scale preconditioner: [{kept:if}switched|not kept]."
    GRADIENTS_NO_FULL_SCALE = (
        "Some gradients began without the full-scale preconditioner, since the solve before took few iterations with "
        "it."
    )
    GRADIENTS_FLOAT64_FACTORS = (
        "Float32 factors of gradients needed [{corrections:n float64 correction}|a jitter]; float64 factors took over."
    )

    # judgement of a model
    NO_BETTER = (
        "The predictions are no better than [{classes:if}the shares of the classes|the mean]. Do not use them; look "
        "for inputs that say something of the target, and for rows that do not belong together."
    )
    INTERVALS_NARROW = (
        "95 % intervals are too narrow: they hold {held:.0f} of 100 rows, {low:.0f} to {high:.0f} expected. Do not "
        "rely on their width; more rows, fewer inputs or, where it can be had, a fit with uncertainty= help."
    )
    INTERVALS_WIDE = (
        "95 % intervals are too wide: they hold {held:.0f} of 100 rows, {low:.0f} to {high:.0f} expected. A few rows "
        "far off, noise that differs from row to row, or values in clusters make them so; look at the worst rows."
    )
    TOO_SURE = (
        "Probabilities are too sure: the most probable class is right in {held:.0f} of 100 rows, {low:.0f} to "
        "{high:.0f} expected. Do not rely on them near 0 and 1; more rows or fewer inputs help."
    )
    TOO_CAUTIOUS = (
        "Probabilities are too cautious: the most probable class is right in {held:.0f} of 100 rows, {low:.0f} to "
        "{high:.0f} expected. Labels can be relied on more than they say; more rows help."
    )
    HEAVY_TAILS = (
        "Errors have heavy tails: {rows:n row} of {of:,} are more than 4 standard deviations off, where {expected:.1g} "
        "would be usual. likelihood='student-t' (--likelihood student-t) counts such rows less; of a positive target "
        "try its logarithm."
    )
    DOMINATED = (
        "{rows:n row} of {of:,} make up {share:.0f} % of the squared error[: {which:list}]. See whether they are "
        "right; likelihood='student-t' (--likelihood student-t) counts such rows less."
    )
    CONSTANT_TARGET = "Every value of the target is the same: there is nothing to learn. Choose another target."
    COUNTS_ROWS = (
        "The input {column} counts the rows: each is one step beyond the one before. Leave it out, unless the order of "
        "rows means something."
    )
    COPIES_TARGET = (
        "The input {column} is the target itself, but for a shift and a scale. Leave it out, unless it is known before "
        "the target is."
    )
    FEW_ROWS = (
        "There are few rows, {rows:,}, for {parameters} parameters: predictions may change much with other rows. More "
        "rows, or fewer inputs, help."
    )
    UNFINISHED = "The fit did not finish: {reason}. More time may change the model."
    ROWS_REPEATED = (
        "{share:.0f} % of the rows repeat another one, inputs and target alike: a row that is left out is known from "
        "its twin, and scores are too good. Leave the repeats out."
    )
    ROWS_FITTED = (
        "{rows:,} of {of:n row} had been fitted: predictions of these say how closely the model follows them, not how "
        "it predicts new rows."
    )
    OUT_OF_RANGE = (
        "Outside the range of the fitted rows: {rows:,} of {of:n row}, most of all in {column}, by up to {far:.2g} "
        "times its width. Predictions there are guesses."
    )
    DRIFTING = (
        "New rows are predicted worse than they should be: of the last {rows:n observation} {outside:,} lie outside "
        "their 95 % intervals, where {expected:.0f} would be usual. What is learned may have changed; fit again, or "
        "keep fewer old rows."
    )
    PERIOD_LEFT = (
        "The errors repeat along {column} every {period:.4g}: a period explains {share:.0f} % of their squares. Add "
        "Periodic(period={period:.4g}) to the covariance function[, or kernel='auto' (--kernel auto){table:if}]."
    )
    ORDER_LEFT = (
        "Errors of neighbouring rows are alike, with a correlation of {correlation:.2f}: the order of rows says "
        "something that no input does. Add an input for it, such as time or place."
    )

    # online
    ROWS_KNOWN = (
        "{rows:n row} of {of:,} were known already, inputs and target alike: the model now counts them once more. "
        "Leave them out if they are the same observations."
    )
    UPDATED = (
        "{appended:n row} appended and {dropped:,} dropped since conditioning[, {refactorised:n refactorisation}]"
        "[, hyperparameters refined {refined:n time}][, which moved q(f) by {moved:.2g} nats from where its sites had "
        "settled][; this update {iterations:n iteration}, {seconds:seconds}]"
        "[, the mean within {bound:.1e}]."
    )


class Event:
    """A typed event: a kind and its fields. Immutable, hashable, compared by value.

    Args:
        kind: of `EventKind`, which has the sentence.
        fields: numbers, texts, booleans, None, and sequences of them, by name; `stage`, if there, says during what.

    Example:
        >>> event = fgp.Event(fgp.EventKind.ROWS_JOINED, rows=12, distinct=7)
        >>> str(event)
        '12 rows joined into 7 that differ in x; the answer is the same.'
        >>> event.fields["rows"]
        12
    """

    __slots__ = ("_fields", "_kind")

    def __init__(self, kind: EventKind, /, **fields: Any) -> None:
        self._kind = kind
        self._fields = tuple(sorted((name, _frozen(value)) for name, value in fields.items()))

    @property
    def kind(self) -> EventKind:
        return self._kind

    @property
    def fields(self) -> dict[str, Any]:
        """A copy of the fields."""
        return dict(self._fields)

    @property
    def stage(self) -> str:
        """During what it happened, "" for the work itself."""
        return str(self.fields.get("stage", ""))

    def during(self, stage: str) -> "Event":
        """The event as part of a stage, such as an update."""
        return Event(self._kind, **{**self.fields, "stage": stage})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and (self._kind, self._fields) == (other._kind, other._fields)

    def __hash__(self) -> int:
        return hash((self._kind, self._fields))

    def __repr__(self) -> str:
        return f"Event({', '.join([self._kind.name, *(f'{name}={value!r}' for name, value in self._fields)])})"

    def __str__(self) -> str:
        fields = self.fields
        text = _SECTION.sub(lambda found: _section(found[1], fields), self._kind.value)
        text = _FORMATTER.vformat(text, (), fields)
        return f"{self.stage}: {text}" if self.stage else text

    def to_json(self) -> dict[str, Any]:
        """The kind's name and the fields, as JSON values."""
        return {"kind": self._kind.name, "fields": {name: _json(value) for name, value in self._fields}}

    @classmethod
    def from_json(cls, value: str | Mapping[str, Any]) -> "Event":
        """The event that `to_json` described; a text, or a kind that is gone, is a NOTE."""
        if isinstance(value, str):
            return cls(EventKind.NOTE, text=value)
        kind, fields = value["kind"], {name: _from_json(field) for name, field in value["fields"].items()}
        if kind not in EventKind.__members__:
            return cls(EventKind.NOTE, text=f"{kind}: {fields}")
        return cls(EventKind[kind], **fields)


def of_kind(events: Iterable[Event], kind: EventKind) -> list[Event]:
    """The events of one kind."""
    return [event for event in events if event.kind is kind]


def joined(events: Iterable[Event]) -> str:
    """The sentences of events, as one text."""
    return " ".join(map(str, events))


# -- sentences -------------------------------------------------------------------------------------------------------
_SECTION = re.compile(r"\[([^\]]*)\]")


def _section(text: str, fields: Mapping[str, Any]) -> str:
    """The first alternative whose fields are all there."""
    for part in text.split("|"):
        names = [name for _, name, _, _ in string.Formatter().parse(part) if name is not None]
        if all(fields.get(name) is not None and fields[name] is not False for name in names):
            return part
    return ""


class _Formatter(string.Formatter):
    """Python's formats and those that `EventKind` names; what does not fit its format is shown as it is."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "?")

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            match format_spec.partition(" "):
                case ("bytes", _, _):
                    return readable_bytes(value)
                case ("seconds", _, _):
                    return readable_seconds(value)
                case ("n", _, thing) if thing:
                    return counted(value, thing)
                case ("stop", _, _):
                    return StopReason(value).sentence
                case ("list", _, _):
                    return ", ".join(map(str, value))
                case ("if", _, _):
                    return ""
            return format(value, format_spec)
        except (TypeError, ValueError):  # fields of a file may be anything
            return str(value)


_FORMATTER = _Formatter()


# -- values ----------------------------------------------------------------------------------------------------------
def _frozen(value: Any) -> Any:
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list | tuple) else value


def _json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return str(value) if isinstance(value, StrEnum) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(entry) for entry in value)
    return float(value["float"]) if isinstance(value, dict) else value
