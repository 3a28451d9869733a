//! How far apart the releases of two worlds are, in deviations of their noise.
//!
//! Both worlds draw the same noise, so what is published differs by exactly what the noise has to hide. The deviations are those
//! that the public header stands for. Each term is rounded up.

use hushflow::publication::MomentPublication;

use super::factors::Case;
use super::public::Seen;
use super::{Leak, Verdict};

/// Σ (Δy/σ)² over all epochs and coordinates, rounded up; infinite where something differs that has no noise.
fn squared(one: &Seen, other: &Seen) -> f64 {
    let publication = MomentPublication::from_header(&one.header).expect("the header of a log");
    let noise = publication.mechanism().moments().noise();
    let mut sum: f64 = 0.0;
    for (values, others) in one.values.iter().zip(&other.values) {
        for (place, (value, other)) in values.iter().zip(others).enumerate() {
            let difference = value.abs_diff(*other);
            if difference > 0 {
                let sigma = noise[place % noise.len()].scale.map_or(0.0, |scale| scale.sigma());
                let term = (difference as f64).next_up() / sigma.next_down().max(0.0);
                sum = (sum + (term.next_up() * term.next_up()).next_up()).next_up();
            }
        }
    }
    sum
}

/// What the ledger charges for this many steps: (steps·μ)², rounded down.
fn charged(seen: &Seen, steps: u32) -> f64 {
    let mu = f64::from(steps) / seen.noise_multiplier;
    (mu.next_down() * mu.next_down()).next_down()
}

/// Whether two worlds are no further apart than what the ledger charges for their kind of neighbours. Estimates of windows have no
/// such distance.
pub(super) fn verdict(case: &Case, [one, other]: &[Seen; 2]) -> Verdict {
    if case.estimates() {
        return Verdict { share: None, leaks: Vec::new() };
    }
    let (claim, steps) = case.claim();
    let (squared, charged) = (squared(one, other), charged(one, steps));
    let share = squared / charged;
    let mut leaks = Vec::new();
    if share.is_nan() || share > 1.0 {
        let (distance, charged) = (squared.sqrt(), charged.sqrt());
        let detail = format!("{distance} where {charged} is charged, as {steps} steps of the guarantee");
        leaks.push(Leak {
            kind: format!("distance: claim for {claim}, guarantee for {}", case.guarantee()),
            detail,
        });
    }
    Verdict { share: Some(share), leaks }
}
