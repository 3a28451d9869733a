//! The release of a shard, in both forms.

use super::*;
use crate::mechanism::{Method, MomentParameters, Strategies};
use crate::moments::{Layout, SecondMoment};
use crate::participation::Participation;
use crate::sensitivity::Neighbours;
use crate::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
use crate::strategy::build;
use crate::workload::Workload;
use std::sync::Arc;

const LAYOUT: Layout = Layout::new(2, SecondMoment::Full);

fn parameters(neighbours: Neighbours) -> MomentParameters {
    MomentParameters {
        method: Method::Jme,
        layout: LAYOUT,
        neighbours,
        clip_norm: 1.0,
        noise_multiplier: 2.0,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    }
}

fn mechanisms(neighbours: Neighbours) -> [MatrixMechanism; 2] {
    let square_root = build("square-root", &Workload::Prefix, Some(5)).unwrap();
    let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
    let fitted = BufferedParameters { horizon: Some(5), buffers };
    let buffered = Arc::new(Buffered::new("blt:1".parse().unwrap(), fitted).unwrap());
    let encoded = MatrixMechanism::new(parameters(neighbours), square_root).unwrap();
    let strategies = Strategies::shared(buffered).correlated();
    let correlated =
        MatrixMechanism::with_participation(parameters(neighbours), strategies, Participation::Single, 5)
            .unwrap();
    [encoded, correlated]
}

fn shard(mechanism: &MatrixMechanism, source: NoiseSource) -> ReleaseShard {
    ReleaseShard::new(0, Shards::new(1, LAYOUT, 1), mechanism, source)
}

fn machines(neighbours: Neighbours, source: NoiseSource) -> [ReleaseShard; 2] {
    mechanisms(neighbours).map(|mechanism| shard(&mechanism, source))
}

/// Difference of the last epoch's releases with and without these sums. The first shard
/// prepares its noise, the second draws it on release.
fn difference(mechanism: &MatrixMechanism, epochs: u64, sums: [i128; 6]) -> Vec<i128> {
    let [mut with, mut without] = [(); 2].map(|()| shard(mechanism, NoiseSource::Seeded(3)));
    let mut release = |epoch| {
        with.prepare().unwrap();
        let (a, b) = (with.release(epoch, &sums).unwrap(), without.release(epoch, &[0; 6]).unwrap());
        a.iter().zip(b).map(|(a, b)| a - b).collect()
    };
    (1..=epochs).map(&mut release).last().unwrap()
}

#[test]
fn noise_is_drawn_before_the_sums_and_does_not_depend_on_them() {
    let sums = [1i128, -2, 3, 4, 5, -6];
    let [encoded, correlated] = mechanisms(Neighbours::ReplaceOne);
    // In the first step C multiplies by one, which is 2⁴⁰ units.
    assert_eq!(difference(&encoded, 1, sums), sums.map(|sum| sum << 40));
    // Correlated noise and sums meet in a single addition, at every step.
    let bits = correlated.moments().noise().iter().map(|noise| noise.sum_bits);
    let expected: Vec<i128> = sums.iter().zip(bits).map(|(sum, bits)| sum << bits).collect();
    for epochs in 1..=5 {
        assert_eq!(difference(&correlated, epochs, sums), expected);
    }
}

/// Simulates a fork: the copy holds noise that its parent will use.
#[test]
fn noise_that_another_process_drew_is_not_used() {
    let drawn = |prepared: &PreparedNoise| match &prepared.noise {
        DrawnNoise::Independent(noise) => noise.to_vec(),
        DrawnNoise::ToCorrelate(noise) => noise.iter().map(|&z| z.into()).collect(),
    };
    let twice = [(); 2].map(|()| machines(Neighbours::ReplaceOne, NoiseSource::System));
    let [children, owns] = twice;
    for (mut child, mut own) in children.into_iter().zip(owns) {
        child.prepare().unwrap();
        let mut of_parent = child.prepared.take().unwrap();
        of_parent.process = of_parent.process.wrapping_add(1);
        let noise = drawn(&of_parent);
        child.prepared = Some(of_parent);
        assert_ne!(child.release(1, &[0; 6]).unwrap(), noise);

        own.prepare().unwrap();
        let noise = drawn(own.prepared.as_ref().unwrap());
        assert_eq!(own.release(1, &[0; 6]).unwrap(), noise, "its own noise is used as it was drawn");
    }
}

/// Holds for any grouping of epochs, and any number of epochs drawn ahead.
#[test]
fn runs_release_what_epochs_release_one_by_one() {
    let sums: [[i128; 6]; 5] =
        std::array::from_fn(|epoch| std::array::from_fn(|at| ((epoch * at) as i128) << (3 * at) << 30));
    let one_by_one = machines(Neighbours::ReplaceOne, NoiseSource::Seeded(3));
    let expected = one_by_one.map(|mut shard| {
        let rows = (1..).zip(&sums).flat_map(|(epoch, sums)| shard.release(epoch, sums).unwrap());
        let rows: Vec<i128> = rows.collect();
        (rows, shard.save().to_vec())
    });
    for (runs, drawn) in [(&[5][..], 0), (&[5], 1), (&[2, 3], 4), (&[1, 1, 3], 2), (&[3, 2], 5)] {
        let grouped = machines(Neighbours::ReplaceOne, NoiseSource::Seeded(3)).map(|mut shard| {
            let (mut first, mut rows) = (0, Vec::new());
            for &run in runs {
                shard.prepare_run(drawn).unwrap();
                let sums = sums[first..first + run].iter().map(|sums| sums.as_slice().into());
                rows.extend(shard.release_run(1 + first as u64, sums).unwrap().row().iter());
                first += run;
            }
            (rows, shard.save().to_vec())
        });
        assert_eq!(grouped, expected, "{runs:?}, {drawn} drawn ahead");
    }
}

/// One key serves a run, and no two of its epochs share noise.
#[test]
fn epochs_of_a_run_have_noise_of_their_own() {
    for mut shard in machines(Neighbours::ReplaceOne, NoiseSource::System) {
        shard.prepare().unwrap();
        let zero = [0i128; 6];
        let released = shard.release_run(1, [zero.as_slice().into(); 5].into_iter()).unwrap();
        let mut noise: Vec<i128> = released.row().iter().collect();
        noise.sort_unstable();
        noise.dedup();
        // Thirty draws of deviations above 2³² steps: two agree with a probability below 10⁻⁶.
        assert_eq!(noise.len(), 30);
    }
}

#[test]
fn a_run_beyond_the_horizon_is_refused_as_a_whole() {
    for mut shard in machines(Neighbours::ReplaceOne, NoiseSource::System) {
        let zero = [0i128; 6];
        let refused = shard.release_run(1, [zero.as_slice().into(); 6].into_iter());
        assert!(matches!(refused, Err(ReleaseError::Step(StepError::PastHorizon { horizon: 5 }))));
        assert_eq!(shard.next_epoch(), 1);
    }
}

#[test]
fn without_entropy_nothing_is_released() {
    for mut shard in machines(Neighbours::ReplaceOne, NoiseSource::Exhausted) {
        assert!(matches!(shard.prepare(), Err(ReleaseError::Entropy(_))));
        assert!(matches!(shard.release(1, &[0; 6]), Err(ReleaseError::Entropy(_))));
        assert_eq!(shard.next_epoch(), 1, "the epoch is not used up");
    }
}

#[test]
fn every_epoch_is_released_once_and_in_order() {
    for mut shard in machines(Neighbours::ReplaceOne, NoiseSource::System) {
        let first = shard.release(1, &[0; 6]).unwrap();
        let out_of_order = |found| ReleaseError::OutOfOrder { found, expected: 2 }.to_string();
        for epoch in [1, 3] {
            assert_eq!(shard.release(epoch, &[0; 6]).unwrap_err().to_string(), out_of_order(epoch));
        }
        assert_ne!(first, shard.release(2, &[0; 6]).unwrap(), "fresh noise");
        for epoch in 3..=5 {
            shard.release(epoch, &[0; 6]).unwrap();
        }
        let end = shard.release(6, &[0; 6]);
        assert!(matches!(end, Err(ReleaseError::Step(StepError::PastHorizon { horizon: 5 }))));
    }
}

#[test]
fn a_restored_and_a_replayed_shard_go_on_alike() {
    let source = NoiseSource::Seeded(9);
    let sums = |epoch: i128| [epoch, -7 * epoch, 11, 1 << 50, -3, epoch * epoch];
    let [mut replayed, mut not_replayed] = machines(Neighbours::ReplaceOne, source);
    let mut states = Vec::new();
    for mechanism in mechanisms(Neighbours::ReplaceOne) {
        let mut whole = shard(&mechanism, source);
        for epoch in 1..=3 {
            whole.release(epoch as u64, &sums(epoch)).unwrap();
        }
        let mut restored = shard(&mechanism, source);
        restored.restore(&whole.save()).unwrap();
        states.push(whole.save());
        let expected = whole.release(4, &sums(4)).unwrap();
        assert_eq!(restored.release(4, &sums(4)).unwrap(), expected);
        assert_eq!(restored.save(), whole.save());
        if !mechanism.is_correlated() {
            (1..=3).for_each(|epoch| replayed.replay(&sums(epoch)).unwrap());
            assert_eq!(replayed.release(4, &sums(4)).unwrap(), expected);
        }
    }
    assert!(not_replayed.replay(&sums(1)).is_err(), "sums don't tell the noise");
    for (mut shard, other) in machines(Neighbours::ReplaceOne, source).into_iter().zip([1, 0]) {
        let cut = states[1 - other].len() - 1;
        let longer = [&states[1 - other][..], &[0]].concat();
        for state in [&b"something else"[..], &states[other], &states[1 - other][..cut], &longer, &[]] {
            assert!(shard.restore(state).is_err());
        }
        shard.restore(&states[1 - other]).unwrap();
        assert_eq!(shard.next_epoch(), 4);
    }
}

#[test]
fn counts_have_noise_unless_they_are_public() {
    let counts = |neighbours| {
        let release = |mut shard: ReleaseShard| shard.release(1, &[5, 0, 0, 0, 0, 0]).unwrap()[0];
        machines(neighbours, NoiseSource::System).map(release)
    };
    assert_eq!(counts(Neighbours::ReplaceOneInPlace), [5 << 40; 2]);
    for neighbours in [Neighbours::ReplaceOne, Neighbours::ZeroOut] {
        let bits = mechanisms(neighbours).map(|mechanism| mechanism.moments().noise()[0].sum_bits);
        assert!(counts(neighbours).iter().zip(bits).all(|(count, bits)| *count != 5 << bits));
    }
}

#[test]
fn sums_of_any_size_are_released() {
    for mechanism in mechanisms(Neighbours::ReplaceOne) {
        for sums in [[i128::MAX, i128::MIN, 1 << 126, -1 << 90, 1 << 63, 0], [1; 6]] {
            let [mut with, mut without] = [(); 2].map(|()| shard(&mechanism, NoiseSource::Seeded(6)));
            let (a, b) = (with.release(1, &sums).unwrap(), without.release(1, &[0; 6]).unwrap());
            let bits = mechanism.moments().noise().iter().map(|noise| u32::from(noise.sum_bits));
            for (((a, b), sum), bits) in a.iter().zip(b).zip(sums).zip(bits) {
                assert_eq!(a.wrapping_sub(b), sum.wrapping_shl(bits));
            }
        }
        let mut shard = shard(&mechanism, NoiseSource::System);
        assert!(shard.release(1, &[0; 5]).is_err(), "of other coordinates");
    }
}

#[test]
fn correlated_releases_are_wide_only_where_needed() {
    let [_, mechanism] = mechanisms(Neighbours::ReplaceOne);
    for (sums, are_narrow) in [([7; 6], true), ([7, -7, i64::MAX, i64::MIN, 0, 1], false)] {
        let [mut narrow, mut wide] = [(); 2].map(|()| shard(&mechanism, NoiseSource::Seeded(5)));
        for epoch in 1..=5 {
            let values = narrow.release_row(epoch, IntegerRow::Narrow(&sums)).unwrap();
            assert_eq!(matches!(values.row(), IntegerRow::Narrow(_)), are_narrow);
            let of_wide = wide.release_row(epoch, IntegerRow::Wide(&sums.map(i128::from))).unwrap();
            assert_eq!(values, of_wide);
        }
    }
}
