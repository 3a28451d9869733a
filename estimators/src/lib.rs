//! Private estimates of whole samples: all records of a file or a window at once.
//!
//! A [`mean`] may be robust against a share of corrupt records. A [`covariance`] may spend its
//! budget on the pairs of columns that matter. A [`query`] asks for sums of the cells of a
//! histogram. Noise, accounting and clipping come from [`mechanism`]. No I/O, no clock, no global
//! state.

pub use hushflow_mechanism as mechanism;

pub mod covariance;
pub mod mean;
pub mod query;

/// Writes a value as numbers and reads it back.
#[cfg(test)]
fn read_back<T: mechanism::release::Numbers>(value: &T) -> T {
    let numbers = |value: &T| {
        let mut numbers = Vec::new();
        value.write(&mut numbers);
        numbers
    };
    let written = numbers(value);
    let mut rest = &written[..];
    let read = T::read(&mut rest).expect("what was written");
    assert!(rest.is_empty() && numbers(&read) == written);
    read
}
