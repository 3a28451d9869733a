//! Private estimates of whole samples: all records of a file or a window at once.
//!
//! A [`mean`] may be robust against a share of corrupt records. A [`covariance`] may spend its
//! budget on the pairs of columns that matter. Noise, accounting and clipping come from
//! [`mechanism`]. No I/O, no clock, no global state.

pub use hushflow_mechanism as mechanism;

pub mod covariance;
pub mod mean;
