//! Tests that inputs with equal released integers are indistinguishable. The tests choose noise
//! that makes the released integers equal; then everything observable must be equal.
//!
//! Inputs differ by records that are not finite or have extreme size, or by enough records for sums
//! to exceed an integer width. In the encoded form `z' = z + C(x − x')`, rounded or not; in the
//! correlated form `u' = u + K(x − x')` and `z' = u' + R(u')`.

use super::*;
use crate::mechanism::{Method, MomentParameters, Strategies};
use crate::moments::{ClippedSums, Clipper, Layout, SecondMoment, Sums};
use crate::participation::Participation;
use crate::sensitivity::Neighbours;
use crate::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
use crate::view::View;
use crate::workload::Workload;
use std::sync::Arc;

const LAYOUT: Layout = Layout::new(3, SecondMoment::Diagonal);
const EPOCHS: u64 = 3;

fn mechanisms() -> [MatrixMechanism; 3] {
    let parameters = MomentParameters {
        method: Method::Jme,
        layout: LAYOUT,
        neighbours: Neighbours::ReplaceOneInPlace,
        clip_norm: 1.0,
        noise_multiplier: 2.0,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    };
    let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
    let fitted = BufferedParameters { horizon: Some(EPOCHS), buffers };
    let strategy = Arc::new(Buffered::new("blt:1".parse().unwrap(), fitted).unwrap());
    let encoded = Strategies::shared(strategy);
    let (rounded, correlated) = (encoded.clone().rounded(), encoded.clone().correlated());
    [encoded, rounded, correlated].map(|strategies| {
        MatrixMechanism::with_participation(parameters, strategies, Participation::Single, EPOCHS).unwrap()
    })
}

fn shard(mechanism: &MatrixMechanism) -> ReleaseShard {
    ReleaseShard::new(0, Shards::new(1, LAYOUT, 1), mechanism, NoiseSource::Seeded(11))
}

fn with_noise(shard: &mut ReleaseShard, noise: DrawnNoise, sums: IntegerRow<'_>) -> Released {
    // Allocated as for drawn noise.
    let noise = match noise {
        DrawnNoise::Independent(z) => DrawnNoise::Independent(as_drawn(&z)),
        DrawnNoise::ToCorrelate(z) => DrawnNoise::ToCorrelate(as_drawn(&z)),
    };
    shard.prepared = Some(PreparedNoise { epochs: 1, noise, process: std::process::id() });
    shard.release_row(shard.next_epoch(), sums).unwrap()
}

fn as_drawn<T: Copy + zeroize::Zeroize>(noise: &[T]) -> Zeroizing<Vec<T>> {
    let mut buffer = Vec::with_capacity(noise.len());
    buffer.extend_from_slice(noise);
    Zeroizing::new(buffer)
}

fn noise_for(
    shard: &mut ReleaseShard,
    sums: IntegerRow<'_>,
    values: &Released,
    mechanism: &MatrixMechanism,
) -> DrawnNoise {
    let state = shard.save();
    let coordinates = shard.coordinates();
    let noise = if mechanism.is_correlated() {
        // With zero sums and zero noise the release is −R.
        let nothing = DrawnNoise::ToCorrelate(Zeroizing::new(vec![0; coordinates]));
        let reaction = with_noise(shard, nothing, IntegerRow::Wide(&vec![0; coordinates])).into_wide();
        let bits = mechanism.moments().noise().iter().map(|noise| noise.sum_bits);
        let drawn = values.row().iter().zip(sums.iter()).zip(bits).zip(reaction);
        let drawn = drawn.map(|(((value, sum), bits), reaction)| value - (sum << bits) - reaction);
        DrawnNoise::ToCorrelate(Zeroizing::new(drawn.map(|z| i64::try_from(z).unwrap()).collect()))
    } else {
        let nothing = DrawnNoise::Independent(Zeroizing::new(vec![0; coordinates]));
        let encoded = with_noise(shard, nothing, sums).into_wide();
        let drawn = values.row().iter().zip(encoded).map(|(value, encoded)| value - encoded);
        DrawnNoise::Independent(Zeroizing::new(drawn.collect()))
    };
    shard.restore(&state).unwrap();
    noise
}

/// Returns everything that is observable of the values, except views of several epochs.
fn observable(values: Released) -> (Vec<u8>, bool, usize) {
    let (bytes, is_narrow) =
        (serde_json::to_vec(&values).unwrap(), matches!(values.row(), IntegerRow::Narrow(_)));
    let buffer = NoiseBuffer::default();
    drop(values.returning_to(&buffer));
    let capacity = if is_narrow { buffer.take_narrow().capacity() } else { buffer.take_wide().capacity() };
    (bytes, is_narrow, capacity)
}

/// Checks that two inputs with these sums in every epoch are indistinguishable.
fn check(mechanism: &MatrixMechanism, worlds: [&[Sums]; 2]) {
    let [mut one, mut other] = [(); 2].map(|()| shard(mechanism));
    let mut views = [(); 2].map(|()| View::new(mechanism, &Workload::Average, 1, EPOCHS));
    for (a, b) in worlds[0].iter().zip(worlds[1]) {
        let values = one.release_row(one.next_epoch(), a.row()).unwrap();
        let noise = noise_for(&mut other, b.row(), &values, mechanism);
        let same = with_noise(&mut other, noise, b.row());
        assert!(
            a.to_wide() != b.to_wide() && values == same,
            "the worlds differ, and what is released does not"
        );
        let from_log = Released::released_before(same.row().iter().collect());
        let from_wire: Released = serde_json::from_slice(&serde_json::to_vec(&same).unwrap()).unwrap();
        assert_eq!((&from_log, &from_wire), (&same, &same));
        let mut reals = [&values, &same].into_iter().zip(&mut views).map(|(values, view)| {
            let wide: Vec<i128> = values.row().iter().collect();
            let moments = view.push(&wide).unwrap().flat_map(|moments| moments.coordinates);
            moments.map(f64::to_bits).collect::<Vec<_>>()
        });
        assert_eq!(reals.next(), reals.next());
        drop(reals);
        assert_eq!(observable(values), observable(same));
    }
}

fn sums(records: &[f64]) -> Vec<Sums> {
    let clipper = Clipper::unscaled(3, 1.0).unwrap().counting_unusable();
    let mut sums = ClippedSums::new(Arc::new(clipper), LAYOUT);
    let epoch = |_| {
        sums.add(records).unwrap();
        sums.take(std::iter::once(0..LAYOUT.coordinates())).remove(0)
    };
    (0..EPOCHS).map(epoch).collect()
}

fn given(values: i128) -> Vec<Sums> {
    let sums = |epoch: i128| vec![5, values + epoch, -values, 3, values / 2, 7, 1 - values];
    (0..EPOCHS).map(|epoch| Zeroizing::new(sums(epoch.into())).into()).collect()
}

#[test]
fn unusable_records_are_indistinguishable_from_others() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5e-324, 1e-308, 1e-140, 1e140, 1e300, -0.0];
    for mechanism in mechanisms() {
        let complete = sums(&[0.5, -0.25, 0.125, 0.1, 0.2, 0.3]);
        for value in odd {
            check(&mechanism, [&complete, &sums(&[0.5, -0.25, 0.125, value, 0.2, 0.3])]);
            check(&mechanism, [&sums(&[0.5, value, 0.125, 0.0, 0.2, 0.3]), &complete]);
        }
    }
}

/// Sums near 2^61 to 2^64, also in units of the grid, and a neighbour of each.
#[test]
fn sums_near_an_integer_width_are_indistinguishable() {
    for mechanism in mechanisms() {
        let noise = mechanism.moments().noise();
        let grids = [0, noise[1].sum_bits, noise[4].sum_bits].map(u32::from);
        for bits in (61..65).flat_map(|bits| grids.map(|grid| bits - grid)) {
            for off in [-(1 << 20), -1, 0, 1] {
                let values = (1i128 << bits) + off;
                check(&mechanism, [&given(values), &given(values - (1 << 20).min(1 << bits))]);
            }
        }
    }
}
