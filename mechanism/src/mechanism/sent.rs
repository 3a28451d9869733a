//! The number of records that entities sent, released together with the moments of those that
//! counted.
//!
//! At most m records of an entity count in an epoch. An entity that takes part in an epoch also
//! contributes the number of records that it sent under each key, at most M over all keys. The sum
//! v of these numbers is one more coordinate of every key, and is encoded by C₁ like the count.
//!
//! # Theorem
//! Let s₀ be the joint sensitivity of the moments, for one record at once, of an entity that takes
//! part as a schema allows. Let V be the squared sensitivity of C₁ for contributions of norm 1, −g
//! ≤ 0 a lower bound of the overlaps of its columns, k the maximum number of steps in which the
//! entity takes part, and e > 0 a weight. Let v have noise of deviation σ·s·M/√e, and the moments
//! their noise for σm and s. Then both together are one Gaussian mechanism of noise multiplier σ if
//!
//! ```text
//! s² = s₀² + e·S        S = V                           zero-out
//!                       S = min(4V, 2V + 2k²g)          replace-one
//! ```
//!
//! For replace-one-in-place S is 0: entities, keys and epochs are public, so v is too, and is
//! released exactly.
//!
//! *Proof.* Let u_i ≥ 0 be the numbers that the entity adds in step i, key by key. Their norm is at
//! most their sum, and so at most M. The steps are those in which the entity takes part, in
//! either stream. So zero-out moves C₁v by at most M√V. Under replace-one, with u and w for both
//! streams and X = C₁ᵀC₁,
//!
//! ```text
//! ‖C₁u − C₁w‖² = ‖C₁u‖² + ‖C₁w‖² − 2 Σ_ij X_ij⟨u_i, w_j⟩ ≤ 2M²V + 2k²gM²
//! ```
//!
//! since `0 ≤ ⟨u_i, w_j⟩ ≤ M²`; and it is at most (2M√V)² by the triangle inequality. Moments move
//! by at most m·s₀ (the layers of `operators/src/bound/mod.rs`), in units of their noise by
//! m·s₀/(σms) = s₀/(σs). v moves by at most M√S·√e/(σsM) = √(eS)/(σs). These are different
//! coordinates with independent noise, so the squares add up to (s₀² + eS)/(σs)² = 1/σ². ∎
//!
//! The proof uses nothing about the records but these numbers. So it holds for every method, all
//! second moments, missing values, bounds by key, and both treatments of several records.
//!
//! *From the matrix to the C that runs.* As for the moments (`mechanism/geometry.rs`): the error of
//! C₁u is at most ηM√V if an entity is blanked, and 2ηM√V if S ≥ 2V. So (1 + 2η)² covers it.
//!
//! *Rounding of recursive encoders.* With R the bound of an encoder's squared rounding error, v
//! differs in at most 2kM keys, by √R each, in units of 1. In units of its noise this is
//! √(2kMR)·√e/(σsM), at most √(2keR)/(σs): like a count of weight e.
//!
//! # The weight
//! e is a constant, so every part of a run uses the same value. With c ≥ ½ every s₀² is at least
//! (c + 1)·S ≥ 1.5·S, so s grows by at most 1 %.

/// e, the weight of the number of sent records.
pub(super) const WEIGHT: f64 = 0.03;

#[cfg(test)]
mod tests {
    use super::super::{
        MatrixMechanism, MechanismError, Method, MomentGeometry, MomentMechanism, MomentParameters,
        Strategies,
    };
    use crate::moments::{Layout, RECORD_BITS, SecondMoment};
    use crate::participation::Participation;
    use crate::sensitivity::Neighbours;
    use crate::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
    use crate::strategy::{COEFFICIENT_BITS, Matrix, build};
    use crate::workload::Workload;
    use std::num::NonZeroU32;
    use std::sync::Arc;

    const KEYS: usize = 3;
    const EPOCHS: usize = 3;
    const SIGMA: f64 = 0.7;
    /// m.
    const COUNTED: u32 = 2;
    /// M.
    const SENT: u32 = 5;

    fn parameters(method: Method, neighbours: Neighbours, second: SecondMoment) -> MomentParameters {
        MomentParameters {
            method,
            layout: Layout { sent: NonZeroU32::new(SENT), ..Layout::new(1, second) },
            neighbours,
            clip_norm: 3.0,
            noise_multiplier: SIGMA * f64::from(COUNTED),
            second_moment_weight: None,
            count_weight: None,
            bin_weight: None,
        }
    }

    /// Contribution of an entity in an epoch in which it takes part.
    #[derive(Clone, Copy)]
    struct Contribution {
        epoch: usize,
        /// The key of all records that count.
        key: usize,
        /// The records that it sends under each key.
        sent: [u32; KEYS],
    }

    /// All ways to take part twice: with all sent records under the key of those that count, with
    /// the rest under the next key, and with one under each key.
    fn streams() -> Vec<[Contribution; 2]> {
        let contributions = |epoch: usize| {
            (0..KEYS).flat_map(move |key| {
                let (mut all, mut others) = ([0; KEYS], [0; KEYS]);
                all[key] = SENT;
                (others[key], others[(key + 1) % KEYS]) = (COUNTED, SENT - COUNTED);
                [all, others, [1; KEYS]].map(|sent| Contribution { epoch, key, sent })
            })
        };
        let two = |first: usize, second: usize| {
            contributions(first).flat_map(move |one| contributions(second).map(move |other| [one, other]))
        };
        (0..EPOCHS).flat_map(|first| (first + 1..EPOCHS).flat_map(move |second| two(first, second))).collect()
    }

    /// Adds the encoded sums of a stream whose records all lie on one side of the ball.
    fn add(
        difference: &mut [i128],
        layout: Layout,
        stream: &[Contribution],
        (sign, side): (i128, i128),
        c: &[f64],
    ) {
        let unit = f64::from(COEFFICIENT_BITS).exp2();
        let length = 1_i128 << RECORD_BITS;
        for Contribution { epoch, key: counted, sent } in stream {
            for (lag, coefficient) in c.iter().enumerate().take(EPOCHS - epoch) {
                let factor = sign * (coefficient * unit) as i128;
                for (key, &sent) in sent.iter().enumerate() {
                    let start = (key * EPOCHS + epoch + lag) * layout.coordinates();
                    let records = if key == *counted { i128::from(COUNTED) } else { 0 };
                    difference[start] += factor * records;
                    layout.first().for_each(|at| difference[start + at] += factor * records * side * length);
                    layout
                        .second()
                        .for_each(|at| difference[start + at] += factor * records * length * length);
                    layout
                        .sent()
                        .into_iter()
                        .for_each(|at| difference[start + at] += factor * i128::from(sent));
                }
            }
        }
    }

    /// Returns the share of the budget that the worst pair spends, and that of its sent records.
    fn spent(c: &[f64], parameters: MomentParameters) -> [f64; 2] {
        let matrix = Arc::new(Matrix::toeplitz(c.to_vec(), EPOCHS).unwrap());
        let participation: Participation = "2x1+".parse().unwrap();
        let geometry = MomentGeometry::of_matrices(matrix.clone(), matrix, participation, [0.0; 2]).unwrap();
        let mechanism = MomentMechanism::new(parameters, &geometry).unwrap();
        let mechanism = mechanism.for_records_at_once(COUNTED).unwrap();
        let layout = mechanism.layout();
        let streams = streams();
        let others: Vec<&[Contribution]> = match parameters.neighbours {
            Neighbours::ZeroOut => vec![&[]],
            _ => streams.iter().map(|stream| &stream[..]).chain([&[][..]]).collect(),
        };
        let mut worst = [0.0_f64; 2];
        for (one, other) in streams.iter().flat_map(|one| others.iter().map(move |other| (one, other))) {
            for side in [1, -1] {
                let mut difference = vec![0; KEYS * EPOCHS * layout.coordinates()];
                add(&mut difference, layout, one, (1, 1), c);
                add(&mut difference, layout, other, (-1, side), c);
                let all = mechanism.concentrated_loss(&difference);
                let is_sent = |at: usize| Some(at % layout.coordinates()) == layout.sent();
                (0..difference.len()).filter(|&at| !is_sent(at)).for_each(|at| difference[at] = 0);
                let sent = mechanism.concentrated_loss(&difference);
                worst = [worst[0].max(all), worst[1].max(sent)];
            }
        }
        worst.map(|loss| loss * 2.0 * SIGMA * SIGMA)
    }

    const METHODS: [Method; 5] =
        [Method::Jme, Method::Ime { first_moment_share: 0.4 }, Method::Cs, Method::Pp, Method::JointClip];

    /// Tests all pairs of streams. No pair exceeds the bound. If no overlap of C is negative, the
    /// worst pair attains it to 1 %, with moments and sent records together.
    #[test]
    fn sent_records_beside_moments_spend_exactly_the_budget() {
        // Records that are clipped with their squares are shorter than these.
        for method in METHODS.into_iter().filter(|&method| method != Method::JointClip) {
            for neighbours in [Neighbours::ZeroOut, Neighbours::ReplaceOne] {
                for (c, tight) in [(&[1.0, 0.5, 0.375][..], true), (&[1.0, -0.75], false)] {
                    let [all, sent] = spent(c, parameters(method, neighbours, SecondMoment::Full));
                    let case = format!("{method} {neighbours} {c:?}: {all}, of which {sent}");
                    assert!(all <= 1.0, "exceeded: {case}");
                    assert!(all >= 0.99 || !tight, "not tight: {case}");
                    assert!((0.002..0.021).contains(&sent), "{case}");
                }
            }
        }
    }

    #[test]
    fn sent_records_raise_the_noise_by_a_hundredth_at_most() {
        let strategy = build("square-root", &Workload::Prefix, Some(50)).unwrap();
        for (method, neighbours) in METHODS.into_iter().flat_map(|method| {
            [Neighbours::ZeroOut, Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace].map(|n| (method, n))
        }) {
            for (second, schema) in [(SecondMoment::Full, "1"), (SecondMoment::Diagonal, "7x5+")] {
                let parameters = parameters(method, neighbours, second);
                let without = Layout { sent: None, ..parameters.layout };
                let [with, without] =
                    [parameters, MomentParameters { layout: without, ..parameters }].map(|parameters| {
                        let strategies = Strategies::shared(strategy.clone());
                        let schema = schema.parse().unwrap();
                        let mechanism =
                            MatrixMechanism::with_participation(parameters, strategies, schema, 50).unwrap();
                        mechanism.for_records_at_once(COUNTED).unwrap()
                    });
                let ratio = with.moments().sensitivity() / without.moments().sensitivity();
                assert!((1.0..=1.01).contains(&ratio), "{method} {neighbours} {schema}: {ratio}");
                let noise = with.moments().noise();
                let sent = noise[with.layout().sent().unwrap()].standard_deviation();
                let count = noise[Layout::COUNT].standard_deviation();
                match neighbours {
                    Neighbours::ReplaceOneInPlace => assert_eq!([count, sent, ratio], [0.0, 0.0, 1.0]),
                    // Five records instead of two, by the root of the weights.
                    _ => assert!(
                        (sent / count / 2.5 - (with.moments().claim().weights.count / super::WEIGHT).sqrt())
                            .abs()
                            < 1e-5
                    ),
                }
            }
        }
    }

    /// Noise that is correlated ahead of the sums has no bound for the keys of sent records.
    #[test]
    fn sent_records_are_not_correlated() {
        let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
        let fitted = BufferedParameters { horizon: Some(50), buffers };
        let strategy = Buffered::new("blt:1".parse().unwrap(), fitted).unwrap();
        let strategies = Strategies::shared(Arc::new(strategy)).correlated();
        let parameters = parameters(Method::Jme, Neighbours::ZeroOut, SecondMoment::Full);
        let without = Layout { sent: None, ..parameters.layout };
        let mechanism = |parameters| {
            MatrixMechanism::with_participation(parameters, strategies.clone(), Participation::Single, 50)
        };
        assert!(mechanism(MomentParameters { layout: without, ..parameters }).is_ok());
        assert_eq!(mechanism(parameters).err(), Some(MechanismError::Correlation));
    }
}
