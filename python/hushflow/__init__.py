"""Running moments of a stream of personal data under differential privacy.

>>> import hushflow as hf
>>> round(hf.calibrate(epsilon=1, delta=1e-6).noise_multiplier, 3)
4.225
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import strategy
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
from ._hushflow import Pipeline, Strategy, __version__

if TYPE_CHECKING:
    from . import noise, optax, torch, training
    from ._estimators import (
        CovarianceEstimate,
        MeanEstimate,
        private_covariance,
        robust_mean,
    )
    from ._logs import Log, Release, RunSummary, View, open_log, run
    from ._moments import ContinualMoments
    from ._plan import Comparison, plan

# Modules that need numpy are imported at first use: importing it takes longer than all the rest.
_MODULES = {
    "_estimators": ("CovarianceEstimate", "MeanEstimate", "private_covariance", "robust_mean"),
    "_logs": ("Log", "Release", "RunSummary", "View", "open_log", "run"),
    "_moments": ("ContinualMoments",),
    "_plan": ("Comparison", "plan"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("noise", "optax", "torch", "training")


if not TYPE_CHECKING:  # With it, a type checker would accept any name.

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return import_module(f".{name}", __name__)
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        return value


    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


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
    "__version__",
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
for _value in list(globals().values()):
    if isinstance(_value, type) and issubclass(_value, Exception):
        _value.__module__ = "hushflow"
del _value
