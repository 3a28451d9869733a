//! Finds whether the counts in a log show any records: a public warning of a wrong start, clock or
//! key list.
//!
//! It is read from released integers and public noise levels alone. So it is post-processing, costs
//! no privacy, and may be printed anywhere.
//!
//! **Levels.** Let c be a count over all keys and s the standard deviation of its noise. c is
//! *faint*, not distinguishable from zero, if |c| ≤ 1.96 s. Without records that holds with
//! probability 0.95. With n records it holds with probability Φ(1.96 − n/s) at most, which is below
//! 0.05 from n = 3.61 s on. The warning is for two cases:
//!
//! - The count of all epochs together is faint.
//! - The counts of most epochs are faint, though their mean is at least 3.61 s: if the records
//!   were evenly spread, the counts would not be faint. A stream of small epochs is not such a
//!   case. With E ≥ 8 epochs of full size, most of them are faint with a probability of at most
//!   P(Binomial(E, 0.05) > E/2) < 4·10⁻⁵ if their noise is independent.

use std::path::Path;

use hushflow_mechanism::view::View;
use hushflow_mechanism::workload::Workload;

use super::{FollowError, open_log};
use crate::publication::MomentPublication;

/// Quantile of the normal distribution for two-sided intervals of 95 %.
const QUANTILE: f64 = 1.96;

/// Standard deviations of the noise from which a count shows with a probability of 95 %.
const CLEAR: f64 = QUANTILE + 1.65;

/// Minimum number of epochs for a warning that most of them are empty.
const LEAST_EPOCHS: u64 = 8;

/// Maximum number of values that are read, so that the end of a run takes only a moment longer.
const MAX_NUMBERS: u64 = 1 << 22;

/// Cost of an epoch in addition to its values, in values.
const NUMBERS_OF_EPOCH: u64 = 64;

/// Counts of a log that can't be distinguished from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaintCounts {
    /// Number of epochs whose count can't be distinguished from zero.
    pub faint: u64,
    /// Number of epochs of the log.
    pub epochs: u64,
    /// Whether the sum of all counts can't be distinguished from zero either.
    pub is_sum_faint: bool,
}

impl FaintCounts {
    /// Reads the log in `directory`. Returns `None` if its counts show records, or if it is too
    /// long to be read again.
    ///
    /// # Errors
    /// [`FollowError`] if the log can't be read.
    pub fn of_log(directory: &Path, publication: &MomentPublication) -> Result<Option<Self>, FollowError> {
        if publication.parameters().discovery().is_some() {
            // The counts of all keys are not in the log.
            return Ok(None);
        }
        let width = u64::from(publication.keys()) * publication.layout().coordinates() as u64;
        let numbers = (width + NUMBERS_OF_EPOCH).saturating_mul(publication.horizon());
        let Some(mut log) = open_log(directory)?.filter(|_| numbers <= MAX_NUMBERS) else {
            return Ok(None);
        };
        let window = Workload::Window(std::num::NonZeroU64::MIN);
        let mut views = [window, Workload::Prefix].map(|workload| publication.view(&workload));
        let mut sums = SumOfCounts::default();
        while let Some(frame) = log.next_frame()? {
            let [each, all] = &mut views;
            let read = count(each, &frame.values).and_then(|each| Ok((each, count(all, &frame.values)?)));
            let (each, all) = read.map_err(|problem| FollowError::Release { epoch: frame.epoch, problem })?;
            sums.add(each, all);
        }
        Ok(sums.faint())
    }
}

/// Returns the count over all keys and the standard deviation of its noise.
fn count(view: &mut View, values: &[i128]) -> Result<(f64, f64), String> {
    let moments = view.push(values).map_err(|error| error.to_string())?;
    let (sum, variance) = moments.fold((0.0, 0.0), |(sum, variance), moments| {
        (sum + moments.count(), variance + moments.noise.count.powi(2))
    });
    Ok((sum, variance.sqrt()))
}

/// The counts of a log so far.
#[derive(Default)]
struct SumOfCounts {
    epochs: u64,
    faint: u64,
    /// The largest standard deviation of a single epoch's noise.
    deviation: f64,
    /// The sum of all epochs and the standard deviation of its noise.
    all: (f64, f64),
}

impl SumOfCounts {
    fn add(&mut self, (count, deviation): (f64, f64), all: (f64, f64)) {
        self.epochs += 1;
        self.faint += u64::from(count.abs() <= QUANTILE * deviation);
        self.deviation = self.deviation.max(deviation);
        self.all = all;
    }

    fn faint(&self) -> Option<FaintCounts> {
        let &SumOfCounts { epochs, faint, deviation, all: (sum, reach) } = self;
        let is_sum_faint = epochs > 0 && sum.abs() <= QUANTILE * reach;
        let would_show = sum / epochs.max(1) as f64 >= CLEAR * deviation;
        let is_most = epochs >= LEAST_EPOCHS && 2 * faint > epochs && would_show;
        (is_sum_faint || is_most).then_some(FaintCounts { faint, epochs, is_sum_faint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faint(counts: &[f64], deviation: f64) -> Option<(u64, bool)> {
        let (mut sums, mut sum) = (SumOfCounts::default(), 0.0);
        for &count in counts {
            sum += count;
            sums.add((count, deviation), (sum, deviation));
        }
        sums.faint().map(|counts| (counts.faint, counts.is_sum_faint))
    }

    #[test]
    fn counts_that_show_no_records_are_found() {
        assert_eq!(faint(&[], 1.0), None);
        assert_eq!(faint(&[100.0], 10.0), None);
        assert_eq!(faint(&[12.0, -11.0], 10.0), Some((2, true)));
        // Ten full epochs among a hundred, and a hundred small ones.
        let few: Vec<f64> = (0..100).map(|epoch| if epoch < 10 { 1000.0 } else { 3.0 }).collect();
        assert_eq!(faint(&few, 10.0), Some((90, false)));
        assert_eq!(faint(&[10.0; 100], 10.0), None);
    }
}
