//! The private Tukey median: Algorithm 14 of the paper, for up to four columns.
//!
//! The Tukey depth of a point is the least number of records on one side of a hyperplane through
//! it. The exponential mechanism draws a point of a grid over [−2R, 2R]^d with probability ∝
//! exp(ε·depth/2). This is ε-private, because one replaced record changes a depth by at most 1
//! (Proposition I.2). It needs no δ, no sensitivity in units of data and no bound on records.
//!
//! The paper draws from a density. Here the points are a public net, depths are exact integers of
//! records rounded to an integer grid (`depth`), and the draw is exact ([`Selection`]). Rounding
//! acts on each record alone, so the proof does not change; floating-point depths have no proven
//! sensitivity. A record that is not finite is on no side of any hyperplane, so depths still change
//! by at most 1.
//!
//! Depths take n^(d−1) steps for each point. The net has a spacing of α/2 scales if that is
//! feasible, else as fine as feasible, but no coarser than half a scale; beyond that the table is
//! refused, by its size alone.

use super::depth::{BITS, MOST_COLUMNS, depth};
use super::net::Net;
use super::records::in_parallel;
use super::{MeanAnswer, MeanError, MeanEstimate, Question, StepCost};
use hushflow_mechanism::noise::NoiseGenerator;
use hushflow_mechanism::noise::selection::Selection;

/// Maximum work: points times records to the power max(columns − 1, 1).
const MOST_STEPS: f64 = 1e9;

const MOST_POINTS: f64 = 4e6;

/// Spacing of the points in scales, as a share of α, unless that is less than [`FINEST`].
const SPACING: f64 = 0.5;
const FINEST: f64 = 0.01;

/// Coarsest useful net.
const COARSEST: f64 = 0.5;

const RUN: usize = 64;

pub(super) fn estimate(
    rows: &[f64],
    (scales, range): (&[f64], f64),
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<MeanAnswer, MeanError> {
    let net = net(rows.len() / scales.len(), scales.len(), range, question)?;
    let records = rounded(rows, scales, range);
    let scores = scores(&records, &net);
    let selection = Selection::pure(question.epsilon, 1).map_err(|_| MeanError::Noise)?;
    let place = selection.select(&scores, rng).map_err(|_| MeanError::Noise)?;
    let mean = net.point(place).iter().zip(scales).map(|(value, scale)| value * scale).collect();
    let spent = question.epsilon.value();
    let part = StepCost { step: "median", releases: 1, squared_mu: 0.0, epsilon: spent, delta: 0.0 };
    let noise = scales.iter().map(|scale| scale * net.spacing()).collect();
    let outcome = Ok(MeanEstimate { mean, noise, kept: None, converged: true });
    Ok(MeanAnswer { method: question.method, outcome, parts: vec![part], spent })
}

fn net(records: usize, dimension: usize, range: f64, question: &Question) -> Result<Net, MeanError> {
    let too_large = |what, found: usize, most: f64| MeanError::TooLarge {
        method: question.method,
        what,
        found: found as f64,
        most: most.floor(),
    };
    if dimension > MOST_COLUMNS {
        return Err(too_large("columns", dimension, MOST_COLUMNS as f64));
    }
    let half_width = 2.0 * range;
    let [columns, of_records] = [dimension as f64, (dimension as f64 - 1.0).max(1.0)];
    let points = (MOST_STEPS / (records as f64).powf(of_records)).min(MOST_POINTS);
    let affordable = points.powf(columns.recip()).floor();
    let wanted = Net::side_of(half_width, (question.corruption * SPACING).max(FINEST));
    let least = Net::side_of(half_width, COARSEST);
    if affordable < least.min(wanted) {
        let most = (MOST_STEPS / least.powf(columns)).powf(of_records.recip());
        let fits = least.powf(columns) <= MOST_POINTS;
        return Err(too_large("records for a net over this range", records, if fits { most } else { 0.0 }));
    }
    Ok(Net { side: wanted.min(affordable) as usize, dimension, half_width })
}

/// Units of a record's grid in 2R scales.
fn unit(dimension: usize) -> f64 {
    2_f64.powi(BITS[dimension - 1] as i32 - 2)
}

/// Records in units of 2R/2^(bits−2) scales, within ±4R, without those that are not finite.
fn rounded(rows: &[f64], scales: &[f64], range: f64) -> Vec<i128> {
    let unit = unit(scales.len());
    let finite = rows.chunks_exact(scales.len()).filter(|row| row.iter().all(|value| value.is_finite()));
    let place = |(value, scale): (&f64, &f64)| {
        (value / scale / (2.0 * range) * unit).clamp(-2.0 * unit, 2.0 * unit).round() as i128
    };
    finite.flat_map(|row| row.iter().zip(scales).map(place)).collect()
}

fn scores(records: &[i128], net: &Net) -> Vec<i128> {
    let unit = unit(net.dimension);
    let runs: Vec<_> = (0..net.len()).step_by(RUN).collect();
    let score = |place: usize| {
        let point: Vec<i128> =
            net.point(place).iter().map(|value| (value / net.half_width * unit).round() as i128).collect();
        let seen: Vec<i128> = records.iter().zip(point.iter().cycle()).map(|(x, p)| x - p).collect();
        depth(&seen, net.dimension) as i128
    };
    in_parallel(&runs, |&run| (run..net.len().min(run + RUN)).map(score).collect::<Vec<_>>()).concat()
}

#[cfg(test)]
mod tests {
    use super::super::{MeanMethod, Scale, estimate};
    use super::*;
    use hushflow_mechanism::accounting::{Delta, Epsilon};
    use hushflow_mechanism::noise::NoiseSource;

    fn question(columns: usize, epsilon: f64) -> Question {
        Question {
            method: MeanMethod::Tukey,
            epsilon: Epsilon::new(epsilon).expect("an epsilon"),
            delta: Delta::new(1e-6).expect("a delta"),
            corruption: 0.1,
            scale: Scale::Known(vec![1.0; columns]),
            range: Some(2.0),
        }
    }

    /// A tenth of the records at 50, the others around 1 in all columns.
    fn table(records: usize, columns: usize) -> Vec<f64> {
        let value = |place: usize| {
            let (record, column) = (place / columns, place % columns);
            let spread = record * [7919, 104_729, 1_299_709][column] % 1000;
            if record % 10 == 0 { 50.0 } else { spread as f64 / 500.0 }
        };
        (0..records * columns).map(value).collect()
    }

    #[test]
    fn ranges_of_any_size_have_a_median() {
        for range in [1e-300, 1e-30, 1e-3] {
            let question = Question { range: Some(range), ..question(1, 1.0) };
            let mut rng = NoiseSource::Seeded(1).generator(0, 0).unwrap();
            let found = estimate(&table(60, 1), 1, &question, &mut rng).unwrap().outcome.unwrap();
            assert!(found.mean[0].abs() <= 2.0 * range, "{range}: {found:?}");
        }
    }

    #[test]
    fn the_median_is_found_among_corrupted_records() {
        for (columns, records, epsilon, most) in [(1, 400, 1.0, 0.4), (2, 400, 2.0, 0.5), (3, 90, 10.0, 0.8)]
        {
            let rows = table(records, columns);
            let mut rng = NoiseSource::Seeded(1).generator(0, 0).unwrap();
            let answer = estimate(&rows, columns, &question(columns, epsilon), &mut rng).unwrap();
            let found = answer.outcome.unwrap();
            assert!(found.mean.iter().all(|mean| (mean - 1.0).abs() < most), "{columns}: {found:?}");
            assert_eq!(answer.parts[0].epsilon, answer.spent);
        }
    }

    #[test]
    fn refusals_name_the_size_that_would_do() {
        let refused = |records, columns| net(records, columns, 2.0, &question(columns, 1.0)).unwrap_err();
        for columns in [3, 4] {
            let MeanError::TooLarge { most, .. } = refused(1_000_000, columns) else { panic!("{columns}") };
            let largest = net(most as usize, columns, 2.0, &question(columns, 1.0)).unwrap();
            assert!(largest.spacing() <= COARSEST && most > 10.0, "{columns}: {most}");
            assert!(matches!(refused(most as usize + 1, columns), MeanError::TooLarge { .. }), "{columns}");
        }
        assert!(refused(10, 5).to_string().contains("5 columns are more than the 4"), "{}", refused(10, 5));
    }

    /// Attack: each probability of the draw, by its definition, changes by at most e^ε when a
    /// record moves through the middle.
    #[test]
    fn neighbours_draw_alike() {
        let (columns, epsilon) = (3, 1.5);
        let rows = table(24, columns);
        let net = Net { side: 5, dimension: columns, half_width: 4.0 };
        let probabilities = |rows: &[f64]| {
            let scores = scores(&rounded(rows, &[1.0; 3], 2.0), &net);
            let weights: Vec<f64> =
                scores.iter().map(|depth| (epsilon / 2.0 * *depth as f64).exp()).collect();
            let total: f64 = weights.iter().sum();
            weights.iter().map(|weight| weight / total).collect::<Vec<_>>()
        };
        let before = probabilities(&rows);
        for other in [[1.0, 1.0, 1.0], [-50.0, 3.0, 0.0], [f64::NAN, 0.0, 0.0], [1e300, -1e300, 1.0]] {
            let mut replaced = rows.clone();
            replaced[..3].copy_from_slice(&other);
            let after = probabilities(&replaced);
            assert!(before.iter().zip(&after).all(|(a, b)| (a / b).ln().abs() <= epsilon), "{other:?}");
        }
    }
}
