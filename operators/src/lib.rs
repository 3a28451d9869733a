//! timely operators around `hushflow-mechanism`.
