"""Trace a user's covariance function of two points into the form of eq. (M-1), or say why it has none.

`trace` runs the function once; `operations` says what each torch operation does to the `values` it follows, `graph`
holds functions of one point, `terms` and `profile_algebra` write the profile, `checks` compares the result with the
function itself at random points and parameters.
"""
