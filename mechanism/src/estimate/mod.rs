//! Estimates from released moments: post-processing, at no privacy cost.
//!
//! [`debias`] computes a mean and a covariance, and [`projection`] makes the covariance positive
//! definite. [`quality`] states how large the noise is relative to the bounds of the columns. Mean
//! and covariance together are a [`density`], which can be scored, compared and sampled
//! ([`Sampler`](density::Sampler)). [`intervals`] are confidence intervals for the true values.
//! They also keep their level among the lines of one quality ([`selection`]). [`principal`]
//! components have intervals and angles that account for noise. [`by_column`] does the same column
//! by column, where values may be missing. [`histogram`] estimates counts, shares, distribution
//! functions and quantiles from noisy bins. [`share`] is the share of the sent records that
//! counted.

mod ball;
pub mod by_column;
pub mod debias;
pub mod density;
pub mod histogram;
mod interval;
pub mod intervals;
pub mod principal;
pub mod projection;
pub mod quality;
pub mod selection;
pub mod share;
