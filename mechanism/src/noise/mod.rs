//! Exact noise: discrete Gaussians and Laplaces, which are integers drawn from operating-system
//! entropy.
//!
//! | file | subject |
//! |---|---|
//! | [`scale`] | the standard deviations that the sampler covers, on an integer grid |
//! | [`gaussian`] | the sampler of every release, with its proof |
//! | `bins` | its first stage: draws the bin of width σ/64 |
//! | `packed` | its common case: makes 64 rounds at a time in SIMD |
//! | [`selection`] | the exponential mechanism: selects a candidate with a high score |
//! | `exponential` | exact trials of probability exp(−ratio); the discrete Laplace, proved |
//! | [`entropy`] | the source of random bits: the operating system, or a seed for simulations |
//! | `keystream` | ChaCha20, by the widest registers of the processor |
//! | [`reference`](mod@reference) | a second, slow, independent exact sampler for tests |
//!
//! No floating-point number takes part in the draw of a discrete Gaussian. Trials of probability
//! exp(−ratio) compare with a floating-point value only outside a margin around it, within which
//! integers decide. So the support of a release is the whole grid for any data (Mironov, CCS 2012;
//! Haney et al., arXiv 2207.13793), and no draw is approximate.

mod bins;
pub mod entropy;
mod exponential;
pub mod gaussian;
mod keystream;
mod packed;
pub mod reference;
pub mod scale;
pub mod selection;

pub use entropy::{EntropyError, NoiseGenerator, NoiseSource, Offsets, OffsetsError};
pub use exponential::DiscreteLaplace;
pub use gaussian::DiscreteGaussian;
pub use scale::NoiseScale;
