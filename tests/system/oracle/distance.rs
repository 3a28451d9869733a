//! Distance between the releases of two worlds, in standard deviations of their noise.
//!
//! Both worlds draw the same noise, so the releases differ by exactly the distance that the noise
//! must hide. The deviations are those in the public header. Each term is rounded up.

use hushflow::publication::MomentPublication;

use super::factors::Case;
use super::public::Seen;
use super::{Leak, Verdict};

/// Returns Σ (Δy/σ)² over all epochs and coordinates, rounded up; infinite if a coordinate without
/// noise differs.
fn squared(one: &Seen, other: &Seen) -> f64 {
    let publication = MomentPublication::from_header(&one.header).expect("the header of a log");
    let noise = publication.mechanism().moments().noise();
    let mut sum: f64 = 0.0;
    for (values, others) in one.values.iter().zip(&other.values) {
        for (index, (value, other)) in values.iter().zip(others).enumerate() {
            let difference = value.abs_diff(*other);
            if difference > 0 {
                let sigma = noise[index % noise.len()].scale.map_or(0.0, |scale| scale.sigma());
                let term = (difference as f64).next_up() / sigma.next_down().max(0.0);
                sum = (sum + (term.next_up() * term.next_up()).next_up()).next_up();
            }
        }
    }
    sum
}

/// Returns the ledger's charge for `steps` steps: (steps·μ)², rounded down.
fn charged(seen: &Seen, steps: u32) -> f64 {
    let mu = f64::from(steps) / seen.noise_multiplier;
    (mu.next_down() * mu.next_down()).next_down()
}

/// Checks that the distance of two worlds is at most the ledger's charge for their kind of
/// neighbours. Window estimates have no such distance.
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
