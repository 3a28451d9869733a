//! What a person reads from released moments: post-processing, at no privacy cost.
//!
//! [`debias`] makes a mean and a covariance of moments, [`projection`] a covariance that is one, [`quality`]
//! says whether it shows more than noise, and together they are a [`density`]: to be scored, compared and
//! sampled from ([`sample`]). [`intervals`] say how far the truth may be. [`adam`] makes steps of training of moments of gradients.

pub mod adam;
mod ball;
pub mod debias;
pub mod density;
mod interval;
pub mod intervals;
pub mod projection;
pub mod quality;
pub mod sample;
#[cfg(test)]
mod simulation;
