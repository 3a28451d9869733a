"""Running moments of a stream of personal data under differential privacy.

>>> import hushflow as hf
>>> round(hf.calibrate(epsilon=1, delta=1e-6).noise_multiplier, 3)
4.225
"""

from __future__ import annotations

from . import noise, optax, strategy, torch, training
from ._accounts import Budget, Calibration, calibrate, ledger
from ._command import check
from ._errors import (
    BatchError,
    ForkError,
    HushflowError,
    LedgerError,
    ParameterError,
    PipelineError,
    Problem,
    RunError,
    SourceError,
    StateError,
    StrategyError,
)
from ._estimators import (
    CovarianceEstimate,
    MeanEstimate,
    private_covariance,
    robust_mean,
)
from ._hushflow import Pipeline, Strategy
from ._logs import Log, Release, RunSummary, View, open_log, run
from ._moments import ContinualMoments
from ._plan import Comparison, plan

__all__ = [
    "BatchError",
    "Budget",
    "Calibration",
    "Comparison",
    "ContinualMoments",
    "CovarianceEstimate",
    "ForkError",
    "HushflowError",
    "LedgerError",
    "Log",
    "MeanEstimate",
    "ParameterError",
    "Pipeline",
    "PipelineError",
    "Problem",
    "Release",
    "RunError",
    "RunSummary",
    "SourceError",
    "StateError",
    "Strategy",
    "StrategyError",
    "View",
    "calibrate",
    "check",
    "ledger",
    "noise",
    "open_log",
    "optax",
    "plan",
    "private_covariance",
    "robust_mean",
    "run",
    "strategy",
    "torch",
    "training",
]

# Tracebacks name the exceptions as users import them.
for _name in __all__:
    _value = globals()[_name]
    if isinstance(_value, type) and issubclass(_value, Exception):
        _value.__module__ = "hushflow"
del _name, _value
