//! Attacks on the whole mechanism in integers.
//!
//! The attacks encode neighbouring streams of quantised records by an integer C and compare them
//! coordinate by coordinate, without using the sensitivity. The privacy loss never exceeds the
//! requested one. The worst pairs come close to it, except where the bound of a method is loose.

use super::{MatrixMechanism, Method, MomentGeometry, MomentMechanism, MomentParameters, Strategies};
use crate::moments::{Clipper, Layout, QuantisedRows, SecondMoment};
use crate::participation::Participation;
use crate::sensitivity::Neighbours;
use crate::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
use crate::strategy::{COEFFICIENT_BITS, ColumnGeometry, Correlator};
use chacha20::ChaCha8Rng;
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal, Uniform};
use std::sync::Arc;

const KEYS: usize = 2;
const EPOCHS: usize = 5;

/// A lower-triangular C in integers: `columns[i][t]`.
type IntegerColumns = [[i128; EPOCHS]; EPOCHS];

/// A quantised record in a cell.
struct CellRecord {
    key: usize,
    epoch: usize,
    record: Vec<i128>,
}

fn toeplitz(first: [f64; EPOCHS]) -> IntegerColumns {
    let unit = f64::from(COEFFICIENT_BITS).exp2();
    let coefficient = |column: usize, row: usize| {
        row.checked_sub(column).map_or(0, |lag| (first[lag] * unit).round() as i128)
    };
    std::array::from_fn(|column| std::array::from_fn(|row| coefficient(column, row)))
}

fn geometry_of(columns: &IntegerColumns) -> ColumnGeometry {
    let overlap =
        |i: usize, j: usize| -> i128 { columns[i].iter().zip(&columns[j]).map(|(a, b)| a * b).sum() };
    let real = |value: i128| (value as f64 * f64::from(2 * COEFFICIENT_BITS).exp2().recip()).next_up();
    let pairs = || (0..EPOCHS).flat_map(|i| (0..i).map(move |j| (i, j)));
    ColumnGeometry::exact(
        (0..EPOCHS).map(|i| real(overlap(i, i))).fold(0.0, f64::max),
        pairs().map(|(i, j)| real(-overlap(i, j))).fold(0.0, f64::max),
    )
}

/// Returns count, first and second moments of one record. A record has one row, or one row for each
/// moment.
fn moments(layout: Layout, record: &[i128]) -> Vec<i128> {
    let (first, last) = (&record[..layout.dimension], &record[record.len() - layout.dimension..]);
    let second = layout.second_entries().map(|(i, j)| last[i] * last[j]);
    [1].into_iter().chain(first.iter().copied()).chain(second).collect()
}

/// Returns the difference of all releases of two streams that differ in these records only.
fn encoded_difference(
    columns: &IntegerColumns,
    layout: Layout,
    left: &[CellRecord],
    right: &[CellRecord],
) -> Vec<i128> {
    let width = layout.coordinates();
    let mut difference = vec![0; KEYS * EPOCHS * width];
    for (placed, sign) in left.iter().map(|placed| (placed, 1)).chain(right.iter().map(|placed| (placed, -1)))
    {
        for (epoch, coefficient) in columns[placed.epoch].iter().enumerate() {
            let row = (placed.key * EPOCHS + epoch) * width;
            for (position, moment) in moments(layout, &placed.record).iter().enumerate() {
                difference[row + position] += sign * coefficient * moment;
            }
        }
    }
    difference
}

/// Returns a record of this direction and length, in units of ζ, as the mechanism's own clipper
/// quantises it.
fn quantised(clipper: &Clipper, direction: &[f64], length: f64) -> Vec<i128> {
    let norm = direction.iter().map(|value| value * value).sum::<f64>().sqrt();
    let factor = length * clipper.clip_norm() / norm;
    let record: Vec<f64> = direction.iter().map(|value| value * factor).collect();
    let mut rows = QuantisedRows::new(record.len());
    clipper.quantise(&record, &mut rows).unwrap();
    rows.values().iter().map(|&value| value as i128).collect()
}

fn random_record(clipper: &Clipper, random: &mut ChaCha8Rng) -> Vec<i128> {
    let direction: Vec<f64> = StandardNormal.sample_iter(&mut *random).take(clipper.dimension()).collect();
    quantised(clipper, &direction, Uniform::new(0.0_f64, 3.0).unwrap().sample(random))
}

fn random_cell(random: &mut ChaCha8Rng) -> (usize, usize) {
    let below = |end| Uniform::new(0, end).unwrap();
    (below(KEYS).sample(random), below(EPOCHS).sample(random))
}

/// Draws a record and its replacement: no record, another record in its cell, or another record
/// anywhere.
fn neighbours_of(neighbours: Neighbours, clipper: &Clipper, random: &mut ChaCha8Rng) -> [Vec<CellRecord>; 2] {
    let (key, epoch) = random_cell(random);
    let left = CellRecord { key, epoch, record: random_record(clipper, random) };
    let record = random_record(clipper, random);
    let right = match neighbours {
        Neighbours::ZeroOut => vec![],
        Neighbours::ReplaceOneInPlace => vec![CellRecord { key, epoch, record }],
        Neighbours::ReplaceOne => {
            let (key, epoch) = random_cell(random);
            vec![CellRecord { key, epoch, record }]
        }
    };
    [vec![left], right]
}

/// Returns the worst pairs of the theorem's proof: e₁ against −e₁ in one cell, e₁ in two cells that
/// overlap least (of two keys, or two epochs of one key), and e₁ against no record.
fn worst(neighbours: Neighbours, clipper: &Clipper) -> Vec<[Vec<CellRecord>; 2]> {
    let axis: Vec<f64> = (0..clipper.dimension()).map(|i| if i == 0 { 1.0 } else { 0.0 }).collect();
    let record = quantised(clipper, &axis, 1.0);
    let placed = |key, epoch, sign: i128| {
        vec![CellRecord { key, epoch, record: record.iter().map(|value| sign * value).collect() }]
    };
    match neighbours {
        Neighbours::ZeroOut => vec![[placed(0, 0, 1), vec![]]],
        Neighbours::ReplaceOneInPlace => vec![[placed(0, 0, 1), placed(0, 0, -1)]],
        Neighbours::ReplaceOne => vec![
            [placed(0, 0, 1), placed(0, 0, -1)],
            [placed(0, 0, 1), placed(1, 0, 1)],
            [placed(0, 0, 1), placed(0, 1, 1)],
        ],
    }
}

/// Returns whether the worst pairs attain the claim. The bounds of some methods are loose for
/// records replaced in place.
fn is_tight(method: Method, neighbours: Neighbours) -> bool {
    matches!(method, Method::Jme | Method::Pp) || neighbours != Neighbours::ReplaceOneInPlace
}

fn check(columns: &IntegerColumns, parameters: MomentParameters) {
    let geometry = MomentGeometry::shared(geometry_of(columns));
    let mechanism = MomentMechanism::new(parameters, &geometry).unwrap();
    let MomentParameters { method, neighbours, noise_multiplier, .. } = parameters;
    let layout = mechanism.layout();
    let clipper = Clipper::unscaled(layout.dimension, parameters.clip_norm).unwrap();
    let clipper = mechanism.clipper(clipper).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let tried = (0..40).map(|_| neighbours_of(neighbours, &clipper, &mut random));
    let differences: Vec<_> = tried
        .chain(worst(neighbours, &clipper))
        .map(|[left, right]| encoded_difference(columns, layout, &left, &right))
        .collect();
    let largest = |losses: &mut dyn Iterator<Item = f64>| losses.fold(0.0, f64::max);
    let exact = largest(&mut differences.iter().map(|moved| mechanism.concentrated_loss(moved)));
    let rounded = MomentMechanism::rounded(parameters, &geometry, EPOCHS as u64).unwrap();
    let moved = differences.iter().map(|moved| rounded_difference(&rounded, moved, &mut random));
    let on_grid = largest(&mut moved.map(|moved| rounded.concentrated_loss(&moved)));
    // A record and its square are clipped to the sphere up to one unit of the grid. The scales of
    // rounded sums are rounded up by up to 2⁻¹⁹.
    let lost = if method == Method::JointClip { 1e-5 } else { 1e-8 };
    let budget = 1.0 / (2.0 * noise_multiplier * noise_multiplier);
    for (largest, lost) in [(exact, lost), (on_grid, lost + 2e-5)] {
        assert!(largest <= budget, "{largest} exceeds {budget}: {parameters:?}");
        let attained = largest >= budget * (1.0 - lost);
        assert!(attained || !is_tight(method, neighbours), "{largest} is far from {budget}: {parameters:?}");
    }
}

/// Returns the difference of rounded sums, if the encoded ones differ by this much. The encoded
/// sums lie at random positions between two units of the grid.
fn rounded_difference(
    mechanism: &MomentMechanism,
    difference: &[i128],
    random: &mut ChaCha8Rng,
) -> Vec<i128> {
    let noise = mechanism.noise();
    let rounded = |(position, &moved): (usize, &i128)| {
        let bits = COEFFICIENT_BITS - u32::from(noise[position % noise.len()].sum_bits);
        let one = Uniform::new(0, 1i128 << bits).unwrap().sample(random);
        let [one, other] = [one, one + moved].map(|sum| (sum + (1 << bits >> 1)) >> bits);
        other - one
    };
    difference.iter().enumerate().map(rounded).collect()
}

/// Recovers the independent noise from which this correlated noise was made.
fn independent(correlator: &mut dyn Correlator, correlated: [i64; EPOCHS]) -> [i128; EPOCHS] {
    correlated.map(|u| {
        let before = correlator.save();
        let mut left = [0];
        correlator.correlate(&mut left).unwrap();
        correlator.restore(&before).unwrap();
        let mut noise = [u - left[0]];
        correlator.correlate(&mut noise).unwrap();
        assert_eq!(noise, [u]);
        i128::from(u) - i128::from(left[0])
    })
}

/// Returns the shift between two streams of the integer to which independent noise is added, on a
/// random path of releases. If both streams give the same releases, their independent noise differs
/// by exactly this shift. Sums are ordered by key, then by epoch.
fn moved_on_a_path(mechanism: &MatrixMechanism, sums: &[i128], random: &mut ChaCha8Rng) -> Vec<i128> {
    let width = mechanism.layout().coordinates();
    let mut moved = vec![0; sums.len()];
    for start in (0..KEYS).flat_map(|key| (0..width).map(move |position| key * EPOCHS * width + position)) {
        let difference: [i128; EPOCHS] = std::array::from_fn(|epoch| sums[start + epoch * width]);
        let noise = mechanism.moments().noise()[start % width];
        let moves = match noise.scale {
            None => difference,
            Some(scale) => {
                let strategy = mechanism.strategies().first().correlates().unwrap();
                let path = Uniform::new(-20.0, 20.0).unwrap();
                let one: [i64; EPOCHS] =
                    std::array::from_fn(|_| (path.sample(random) * scale.sigma()) as i64);
                let other =
                    std::array::from_fn(|t| one[t] + i64::try_from(difference[t] << noise.sum_bits).unwrap());
                let [one, other] = [one, other]
                    .map(|u| independent(strategy.correlator(1, noise.coarse_bits.into()).as_mut(), u));
                std::array::from_fn(|t| other[t] - one[t])
            }
        };
        (0..EPOCHS).for_each(|epoch| moved[start + epoch * width] = moves[epoch]);
    }
    moved
}

fn check_correlated(buffers: &[(f64, f64)], parameters: MomentParameters) {
    let buffers = buffers.iter().map(|&(decay, weight)| ExponentialBuffer { decay, weight }).collect();
    let fitted = BufferedParameters { horizon: Some(EPOCHS as u64), buffers: Buffers::Toeplitz(buffers) };
    let name = format!("blt:{}", fitted.count()).parse().unwrap();
    let strategy = Arc::new(Buffered::new(name, fitted.rounded()).unwrap());
    let strategies = Strategies::shared(strategy).correlated();
    let single = Participation::Single;
    let mechanism =
        MatrixMechanism::with_participation(parameters, strategies, single, EPOCHS as u64).unwrap();
    let MomentParameters { method, neighbours, noise_multiplier, .. } = parameters;
    let layout = mechanism.layout();
    let clipper = Clipper::unscaled(layout.dimension, parameters.clip_norm).unwrap();
    let clipper = mechanism.moments().clipper(clipper).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(17);
    let tried: Vec<_> = (0..40).map(|_| neighbours_of(neighbours, &clipper, &mut random)).collect();
    let ones = std::array::from_fn(|column| std::array::from_fn(|row| i128::from(row == column)));
    let largest = tried
        .into_iter()
        .chain(worst(neighbours, &clipper))
        .map(|[left, right]| {
            let sums = encoded_difference(&ones, layout, &left, &right);
            mechanism.moments().concentrated_loss(&moved_on_a_path(&mechanism, &sums, &mut random))
        })
        .fold(0.0, f64::max);
    let budget = 1.0 / (2.0 * noise_multiplier * noise_multiplier);
    assert!(largest <= budget, "{largest} exceeds {budget}: {parameters:?}");
    // Scales are rounded up by up to 2⁻¹⁹.
    let attained = largest >= budget * (1.0 - 2e-5);
    assert!(attained || !is_tight(method, neighbours), "{largest} is far from {budget}: {parameters:?}");
}

#[test]
fn correlated_noise_spends_the_requested_budget_on_every_path() {
    for buffers in [&[(0.5, 0.5)][..], &[(0.998046875, 0.046875), (0.984375, 0.09375), (0.90625, 0.1875)]] {
        for (dimension, second) in
            [(1, SecondMoment::Diagonal), (3, SecondMoment::Full), (5, SecondMoment::Diagonal)]
        {
            for neighbours in [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut] {
                for (clip_norm, noise_multiplier) in [(1.0, 0.05), (7.3, 0.9), (123.4, 50.21)] {
                    for method in [Method::Jme, Method::Cs, Method::JointClip, Method::Pp] {
                        let layout = Layout::new(dimension, second);
                        let (second_moment_weight, count_weight) = (None, None);
                        check_correlated(
                            buffers,
                            MomentParameters {
                                method,
                                layout,
                                neighbours,
                                clip_norm,
                                noise_multiplier,
                                second_moment_weight,
                                count_weight,
                                bin_weight: None,
                            },
                        );
                    }
                }
            }
        }
    }
}

fn check_all(first: [f64; EPOCHS]) {
    let columns = toeplitz(first);
    let layouts = [1, 2, 3, 5].into_iter().flat_map(|dimension| {
        [SecondMoment::Full, SecondMoment::Diagonal].map(|second| Layout::new(dimension, second))
    });
    for layout in layouts {
        for neighbours in [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut] {
            for (clip_norm, noise_multiplier) in [(1.0, 0.05), (7.3, 0.9), (1e-3, 1.0), (123.4, 50.21)] {
                let defaults = MomentParameters {
                    method: Method::Jme,
                    layout,
                    neighbours,
                    clip_norm,
                    noise_multiplier,
                    second_moment_weight: None,
                    count_weight: None,
                    bin_weight: None,
                };
                let second_moment_weight = Some(0.3 / (clip_norm * clip_norm));
                let count_is_private = neighbours != Neighbours::ReplaceOneInPlace;
                let count_weight = count_is_private.then_some(1.2 * clip_norm);
                for method in [Method::Jme, Method::Cs, Method::JointClip] {
                    check(&columns, MomentParameters { method, ..defaults });
                    let weighted = MomentParameters { second_moment_weight, count_weight, ..defaults };
                    check(&columns, MomentParameters { method, ..weighted });
                }
                for method in [Method::Pp, Method::Ime { first_moment_share: 0.3 }] {
                    check(&columns, MomentParameters { method, ..defaults });
                }
            }
        }
    }
}

#[test]
fn identity_spends_the_requested_budget() {
    check_all([1.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn square_root_of_the_prefix_spends_the_requested_budget() {
    check_all([1.0, 0.5, 0.375, 0.3125, 0.2734375]);
}

#[test]
fn irrational_coefficients_spend_the_requested_budget() {
    check_all([1.0, 0.1_f64.sqrt(), 0.2_f64.cbrt() - 0.4, 0.07_f64.exp() - 1.0, 1e-9]);
}

#[test]
fn opposite_columns_spend_the_requested_budget() {
    check_all([1.0, -0.9, 0.0, 0.0, 0.0]);
}

/// All records of values −1, 0 and 1 or missing, with one value at least, as the clipper quantises
/// them.
fn records_with_indicators(clipper: &Clipper) -> Vec<Vec<i128>> {
    let columns = clipper.dimension();
    let value =
        |code: usize, column: usize| [-1.0, 0.0, 1.0, f64::NAN][code / 4_usize.pow(column as u32) % 4];
    let record = |code| (0..columns).map(|column| value(code, column)).collect::<Vec<f64>>();
    let quantised = |record: Vec<f64>| {
        let mut rows = QuantisedRows::new(clipper.width());
        clipper.quantise(&record, &mut rows).ok()?;
        Some(rows.values().iter().map(|&value| value as i128).collect())
    };
    (0..4_usize.pow(columns as u32)).map(record).filter_map(quantised).collect()
}

/// Every pair of records on the grid: in one cell, two keys or two epochs, or against no record.
#[test]
fn records_with_missing_values_spend_the_requested_budget() {
    let strategies =
        [[1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 0.5, 0.375, 0.3125, 0.2734375], [1.0, -0.9, 0.0, 0.0, 0.0]];
    for (columns, second, neighbours) in [1, 2, 3].into_iter().flat_map(|columns| {
        let kinds = [SecondMoment::Full, SecondMoment::Diagonal, SecondMoment::None];
        kinds.into_iter().flat_map(move |second| {
            [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut]
                .map(|neighbours| (columns, second, neighbours))
        })
    }) {
        for (first, method) in strategies.into_iter().flat_map(|first| {
            [Method::Jme, Method::Cs, Method::Ime { first_moment_share: 0.4 }].map(|method| (first, method))
        }) {
            if second == SecondMoment::None && method != Method::Jme {
                continue;
            }
            let matrix = toeplitz(first);
            let clip_norm = Clipper::norm_with_indicators((columns as f64).sqrt());
            let parameters = MomentParameters {
                method,
                layout: Layout::new(2 * columns, second),
                neighbours,
                clip_norm,
                noise_multiplier: 0.9,
                second_moment_weight: None,
                count_weight: None,
                bin_weight: None,
            };
            let geometry = MomentGeometry::shared(geometry_of(&matrix));
            let mechanism = MomentMechanism::new(parameters, &geometry).unwrap();
            let clipper = Clipper::new(&vec![(-1.0, 1.0); columns], clip_norm).unwrap();
            let clipper = mechanism.clipper(clipper.with_indicators().unwrap()).unwrap();
            let records = records_with_indicators(&clipper);
            let placed =
                |key, epoch, record: &Vec<i128>| vec![CellRecord { key, epoch, record: record.clone() }];
            let loss = |left: &[CellRecord], right: &[CellRecord]| {
                mechanism.concentrated_loss(&encoded_difference(&matrix, mechanism.layout(), left, right))
            };
            let of_pair = |(one, other): (&Vec<i128>, &Vec<i128>)| {
                let one = placed(0, 0, one);
                let cells: &[_] = match neighbours {
                    Neighbours::ReplaceOne => &[(0, 0), (0, 1), (1, 0)],
                    _ => &[(0, 0)],
                };
                let losses = cells.iter().map(|&(key, epoch)| loss(&one, &placed(key, epoch, other)));
                losses.fold(0.0, f64::max)
            };
            let largest = match neighbours {
                Neighbours::ZeroOut => {
                    records.iter().map(|one| loss(&placed(0, 0, one), &[])).fold(0.0, f64::max)
                }
                // The worst pairs have a record of full length.
                _ => {
                    let longest = records.iter().filter(|one| one[..columns].iter().all(|&q| q != 0));
                    longest
                        .flat_map(|one| records.iter().map(move |other| (one, other)))
                        .map(of_pair)
                        .fold(0.0, f64::max)
                }
            };
            let budget = 1.0 / (2.0 * 0.9 * 0.9);
            assert!(largest <= budget, "{largest} exceeds {budget}: {parameters:?} {first:?}");
            // The bound is attained where records move or vanish, by records with all values,
            // unless second moments are diagonal.
            let tight = neighbours != Neighbours::ReplaceOneInPlace && second != SecondMoment::Diagonal;
            assert!(
                largest >= budget * (1.0 - 1e-4) || !tight,
                "{largest} is far from {budget}: {parameters:?}"
            );
        }
    }
}
