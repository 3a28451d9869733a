//! Statistics of the running program: over many runs with fresh noise, the releases of `hushflow
//! run` have the mean, the noise level, the covariance over time and the privacy loss of the
//! theorems.
//!
//! - `views`: released minus exact values have mean 0 and, over time, the covariance s²σ²BBᵀ with B
//!   = AC⁻¹; printed noise levels agree with their closed form to 10⁻⁶; keys, coordinates, moments
//!   and epochs have independent noise.
//! - `audit`: two inputs that differ in one record are exactly as hard to distinguish as 1/σ
//!   claims. An implementation that draws half the noise is detected.
//! - `one_run`: as `audit`, in a single run with restarts and a coin toss for each of many
//!   canaries.
//! - `dense`: the closed forms, from the definitions. `bounds`: the statistics and their plausible
//!   ranges.
//! - `experiment`: the program, its input and its output.
//!
//! The noise comes from the operating system's entropy, so every run of these tests differs. A
//! comparison gives a false alarm with probability at most 2e⁻³⁰ < 1.9·10⁻¹³ (see `bounds`). All
//! cases together have fewer than 5·10⁶ comparisons: fewer than one run of this file in 10⁶ fails
//! without a fault.
//!
//! `HUSHFLOW_RUNS=n` tests all combinations of strategies, keys and columns, instead of a
//! selection, with n runs for each.

mod audit;
mod bounds;
mod dense;
mod experiment;
mod one_run;
mod views;
