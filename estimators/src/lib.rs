//! Private estimates of whole samples: the records of a file or of a window, looked at all at once.
//!
//! A [`mean`] may be robust against a share of corrupt records, and a [`covariance`] may spend its budget on the pairs of columns
//! that matter. Noise, accounting and clipping are those of [`mechanism`]. As there: no I/O, no clock, no global state.

pub use hushflow_mechanism as mechanism;

pub mod covariance;
pub mod mean;
