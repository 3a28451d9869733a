//! Workloads A: which weighted sums of the epochs are wanted.

use serde::{Deserialize, Serialize};

/// A lower-triangular workload A with a row for every epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Workload {
    /// `A[t,i] = 1`: running sums.
    Prefix,
    /// `A[t,i] = 1/t`: running averages.
    Average,
    /// `A[t,i] = β^(t−i)`.
    Exponential(f64),
    /// `A[t,i] = 1/k` for the last k epochs.
    Window(u64),
}
