//! The mathematics of hushflow.
//!
//! Pure functions and state machines: no I/O, no clock, no dataflow, no global state. Data passes
//! through the modules in this order: [`epochs`] → [`moments`] → [`strategy`] → [`release`] →
//! [`view`] of a [`workload`] → [`estimate`]. A [`mechanism`], with one of its
//! [`method`](mechanism::method)s and [`noise`], makes the release. An [`audit`] tries to tell
//! neighbouring streams apart.

pub mod accounting;
pub mod audit;
pub mod discovery;
pub mod epochs;
pub mod error;
pub mod estimate;
pub mod mechanism;
pub mod moments;
pub mod noise;
pub mod optimize;
pub mod participation;
mod quantile;
mod range;
#[cfg(test)]
mod reference;
pub mod registers;
pub mod release;
pub mod sampling;
pub mod sensitivity;
pub mod series;
pub mod strategy;
pub mod view;
pub mod windows;
pub mod workload;
