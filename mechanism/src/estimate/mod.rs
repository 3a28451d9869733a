//! Estimates from released moments: post-processing, at no privacy cost.
//!
//! [`debias`] makes a mean and a covariance, [`projection`] makes the covariance positive definite,
//! and [`Quality`](density::Quality) says whether it shows more than noise. Together they are a
//! [`density`], which can be scored, compared and sampled ([`Sampler`](density::Sampler)).
//! [`intervals`] bound the truth.

mod ball;
pub mod debias;
pub mod density;
pub mod intervals;
pub mod projection;
