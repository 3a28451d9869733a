//! Forecasts the quality of the lines of a release, from public noise and the exact counts of a dry
//! run. Private.

use hushflow::estimates::EstimateView;
use hushflow::mechanism::estimate::by_column::ColumnwiseMoments;
use hushflow::mechanism::estimate::debias::{MIN_COUNT_TO_NOISE, MomentNoise, NoisyMoments};
use hushflow::mechanism::estimate::quality::Quality;
use hushflow::mechanism::view::Moments;
use hushflow::publication::{MomentPublication, Publication};
use hushflow::runtime::DryRun;

use super::output::number;
use super::thousands;

/// Most numbers of a release, over all epochs, for which prospects are computed.
const MOST_NUMBERS: u64 = 1 << 24;

/// Forecast quality of the best line.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Prospect {
    TooFewRecords,
    NoiseDominated,
    Good,
}

/// The best line.
struct BestLine {
    prospect: Prospect,
    /// Its epoch, its records, and the least number of records that has an estimate.
    epoch: u64,
    records: f64,
    needed: f64,
}

/// Warns if every line would say that there are too few records, or that noise dominates, even if
/// noise did not lower any count. `None` if some line would be good, if views show other numbers,
/// or if there are too many lines to tell.
pub(super) fn warning(publication: &Publication, views: &[EstimateView], run: &DryRun) -> Option<String> {
    let Publication::Moments(publication) = publication else { return None };
    if publication.parameters().discovery().is_some() || run.tally.records == 0 {
        return None;
    }
    let views: Vec<_> = views.iter().filter(|view| view.estimator.has_densities()).collect();
    let lines = views.iter().map(|view| best_line(publication, view, run));
    let lines: Vec<BestLine> = lines.collect::<Option<_>>()?;
    let best =
        lines.into_iter().reduce(|best, line| if line.prospect > best.prospect { line } else { best })?;
    let BestLine { prospect, epoch, records, needed } = best;
    let (records, epoch) = (number(records.round()), thousands(epoch));
    let remedy = "longer epochs, fewer keys, a larger ε, or a workload that adds up more epochs would help";
    let every =
        if publication.parameters().by_column() { "every column of every line" } else { "every line" };
    match prospect {
        Prospect::TooFewRecords => Some(format!(
            "{every} would say too-few-records: the best one has about {records} records, after epoch {epoch}, and the noise of its \
             count allows an estimate above {}; {remedy}",
            number(needed.ceil())
        )),
        Prospect::NoiseDominated => Some(format!(
            "{every} would say noise-dominated: the best one has about {records} records, after epoch {epoch}; {remedy}"
        )),
        Prospect::Good => None,
    }
}

fn best_line(publication: &MomentPublication, view: &EstimateView, run: &DryRun) -> Option<BestLine> {
    let keys = publication.keys() as usize;
    let last = run.stops_after.unwrap_or(run.closed);
    let width = keys * publication.layout().coordinates();
    if last == 0 || (width as u64).saturating_mul(last) > MOST_NUMBERS {
        return None;
    }
    // The records beyond the limits of entities are assumed to be spread over all lines.
    let all = run.tally.records as f64;
    let counting = run.counting.map_or(1.0, |counting| counting as f64 / all);
    let shares: Vec<f64> = run.values.iter().map(|&values| values as f64 / (all * counting)).collect();
    let (mut released, mut counts) = (publication.view(&view.workload), view.workload.state(keys));
    let (nothing, empty) = (vec![0; width], vec![0; keys]);
    let mut best: Option<BestLine> = None;
    for epoch in 1..=last {
        let records = run.tally.epochs.get(&epoch).unwrap_or(&empty);
        let records: Vec<f64> = records.iter().map(|&records| records as f64 * counting).collect();
        let weighted = counts.push(&records).ok()?;
        let mut moments = released.push(&nothing).ok()?.next()?;
        let most = match view.total {
            true => weighted.iter().sum(),
            false => weighted.iter().copied().fold(0.0, f64::max),
        };
        if view.total {
            let MomentNoise { count, first, second } = &mut moments.noise;
            [count, first, second].into_iter().for_each(|noise| *noise *= (keys as f64).sqrt());
        }
        let line = line(&moments, most, publication.clipper().indicator_step(), &shares)?;
        if best.as_ref().is_none_or(|best| (best.prospect, best.records) < (line.prospect, line.records)) {
            best = Some(line);
        }
    }
    best
}

/// Returns the line of a key with this many records; by column, the line of the column with the
/// best prospect.
fn line(moments: &Moments, records: f64, step: Option<f64>, shares: &[f64]) -> Option<BestLine> {
    let mut coordinates = vec![0.0; moments.layout.coordinates()];
    coordinates[0] = records;
    let Some(step) = step else {
        let noisy = NoisyMoments { coordinates: &coordinates, ..moments.noisy() };
        return Some(of_moments(&noisy, moments.epoch, records));
    };
    let indicators = moments.layout.first().skip(shares.len());
    indicators.zip(shares).for_each(|(at, share)| coordinates[at] = records * (share - 0.5) * step);
    let noisy = NoisyMoments { coordinates: &coordinates, ..moments.noisy() };
    let by_column = ColumnwiseMoments::new(noisy, step).ok()?;
    let of_column = |column| {
        let own = by_column.column(column);
        of_moments(&own.noisy(), moments.epoch, own.count().0)
    };
    let best = |best: BestLine, line: BestLine| if line.prospect > best.prospect { line } else { best };
    (0..shares.len()).map(of_column).reduce(best)
}

fn of_moments(moments: &NoisyMoments<'_>, epoch: u64, records: f64) -> BestLine {
    let needed = MIN_COUNT_TO_NOISE * moments.noise.count;
    let prospect = match moments.quality() {
        _ if records <= needed => Prospect::TooFewRecords,
        Quality::NoiseDominated => Prospect::NoiseDominated,
        Quality::Good => Prospect::Good,
    };
    BestLine { prospect, epoch, records, needed }
}
