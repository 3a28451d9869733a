//! The tree as a stream, in memory logarithmic in the number of steps: one sum per height.

use super::{Tree, height};
use crate::strategy::{
    StepError,
    step::{self, Identification},
};
use zeroize::Zeroizing;

const STATE_VERSION: u64 = 1;

/// Sums the nodes of the tree, exactly.
///
/// A saved encoder holds the sums of the incomplete nodes, lowest first, 16 bytes per coordinate.
pub struct TreeEncoder {
    tree: Tree,
    identification: Identification,
    steps: u64,
    /// For each height, the partial sum of the incomplete node, one coordinate after the other.
    sums: Zeroizing<Vec<i128>>,
}

impl TreeEncoder {
    pub(super) fn new(tree: &Tree, coordinates: usize) -> Self {
        let words = [tree.horizon, tree.honaker.into()];
        let identification = Identification {
            version: STATE_VERSION,
            fingerprint: step::fingerprint(words.into_iter().flat_map(u64::to_le_bytes)),
            coordinates,
            horizon: Some(tree.horizon),
        };
        let sums = Zeroizing::new(vec![0; heights(tree) * coordinates]);
        Self { tree: tree.clone(), identification, steps: 0, sums }
    }

    /// Number of steps encoded so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Adds a step and returns the sums of the [`released`](Tree::released) nodes that end with it,
    /// lowest first, each with all its coordinates, in the unit of `x` and modulo 2¹²⁸.
    ///
    /// # Errors
    /// [`StepError::PastHorizon`] and [`StepError::Coordinates`]; the state is then unchanged.
    pub fn encode(&mut self, x: &[i128]) -> Result<Zeroizing<Vec<i128>>, StepError> {
        let coordinates = self.identification.coordinates;
        step::check_step(self.identification.horizon, self.steps, coordinates, [x.len(); 2])?;
        let mut sums = Zeroizing::new(vec![0; self.sums.len()]);
        for (place, (next, sum)) in sums.iter_mut().zip(self.sums.iter()).enumerate() {
            *next = sum.wrapping_add(x[place % coordinates]);
        }
        self.steps += 1;
        let released = self.tree.released(self.steps) as usize * coordinates;
        let nodes = Zeroizing::new(sums[..released].to_vec());
        sums[..released].fill(0);
        self.sums = sums;
        Ok(nodes)
    }

    /// The complete state, for a checkpoint. Private: it holds raw sums.
    pub fn save(&self) -> Vec<u8> {
        let mut state = self.identification.header(self.steps, size_of_val(&self.sums[..]));
        state.extend(self.sums.iter().flat_map(|sum| sum.to_le_bytes()));
        state
    }

    /// Restores a state written by [`save`](Self::save).
    ///
    /// # Errors
    /// [`StepError::State`] if it was saved for another tree or another number of coordinates.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let (steps, sums) = self.identification.read(state)?;
        let sums = step::sums(sums)?;
        if sums.len() != self.sums.len() {
            return Err(step::refused("its length does not fit its tree"));
        }
        (self.steps, self.sums) = (steps, sums);
        Ok(())
    }
}

/// Estimates running sums from the noisy sums of nodes.
pub struct TreeDecoder {
    tree: Tree,
    coordinates: usize,
    steps: u64,
    /// For each height, the estimate of the complete node with no complete node above it, or zeros.
    estimates: Vec<f64>,
}

impl TreeDecoder {
    pub(super) fn new(tree: &Tree, coordinates: usize) -> Self {
        Self { tree: tree.clone(), coordinates, steps: 0, estimates: vec![0.0; heights(tree) * coordinates] }
    }

    /// Number of steps decoded so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Adds the noisy sums of the nodes that a step released, in the order of
    /// [`TreeEncoder::encode`], and writes the estimates of the sums of all steps so far.
    ///
    /// # Errors
    /// [`StepError::PastHorizon`] and [`StepError::Coordinates`]; the state is then unchanged.
    pub fn decode(&mut self, nodes: &[f64], sums: &mut [f64]) -> Result<(), StepError> {
        let (t, coordinates) = (self.steps + 1, self.coordinates);
        step::check_step(Some(self.tree.horizon), self.steps, coordinates, [sums.len(); 2])?;
        let released = self.tree.released(t) as usize;
        step::check_step(None, self.steps, released * coordinates, [nodes.len(); 2])?;
        let (first, above) = nodes.split_at(coordinates);
        sums.copy_from_slice(first);
        for (h, y) in (1..).zip(above.chunks_exact(coordinates.max(1))) {
            self.climb(h, y, sums);
        }
        self.estimates[(released - 1) * coordinates..][..coordinates].copy_from_slice(sums);
        sums.fill(0.0);
        for estimates in self.estimates.chunks_exact(coordinates.max(1)) {
            sums.iter_mut().zip(estimates).for_each(|(sum, estimate)| *sum += estimate);
        }
        self.steps = t;
        Ok(())
    }

    /// Turns the estimates of a node into those of its parent at height h, whose noisy sums are
    /// `y`. A node at an odd index has a left neighbour; one at an even index has virtual steps to
    /// its right.
    fn climb(&mut self, h: u32, y: &[f64], estimates: &mut [f64]) {
        let share = self.tree.own_weight(h);
        let has_left = self.steps >> (h - 1) & 1 == 1;
        let left = &mut self.estimates[(h as usize - 1) * self.coordinates..][..self.coordinates];
        for ((estimate, left), y) in estimates.iter_mut().zip(left).zip(y) {
            if has_left {
                *estimate += std::mem::take(left);
            }
            *estimate = share * y + (1.0 - share) * *estimate;
        }
    }
}

fn heights(tree: &Tree) -> usize {
    height(tree.horizon) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::Factorization;
    use proptest::prelude::*;

    fn tree(honaker: bool, horizon: u64) -> Tree {
        Tree { horizon, honaker }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn streaming_is_the_matrix_and_goes_on_where_it_was_saved(
            honaker: bool, horizon in 1u64..40, at in 0u64..40, seed in -99i128..99
        ) {
            let tree = tree(honaker, horizon);
            let c = tree.matrix(horizon).unwrap().entries();
            let x = |t: u64| [(i128::from(t) * 37 + seed) % 11, seed];
            let mut encoder = tree.encoder(2);
            let mut nodes = Vec::new();
            for t in 0..horizon {
                if t == at {
                    let mut restored = tree.encoder(2);
                    restored.encode(&[5, 6]).unwrap();
                    restored.restore(&encoder.save()).unwrap();
                    prop_assert_eq!(restored.save(), encoder.save());
                    encoder = restored;
                }
                nodes.extend(encoder.encode(&x(t)).unwrap().iter().copied());
            }
            prop_assert_eq!(nodes.len(), 2 * c.nrows());
            for (p, sums) in nodes.chunks_exact(2).enumerate() {
                for (coordinate, &sum) in sums.iter().enumerate() {
                    let expected: f64 =
                        (0..horizon).map(|t| c[(p, t as usize)] * x(t)[coordinate] as f64).sum();
                    prop_assert_eq!(sum as f64, expected);
                }
            }
            prop_assert_eq!(encoder.encode(&[0, 0]).err(), Some(StepError::PastHorizon { horizon }));
        }

        #[test]
        fn decoding_gives_running_sums(honaker: bool, horizon in 1u64..70) {
            let tree = tree(honaker, horizon);
            let (mut encoder, mut decoder, mut sum) = (tree.encoder(1), tree.decoder(1), [0.0]);
            for t in 1..=horizon {
                let nodes = encoder.encode(&[i128::from(t)]).unwrap();
                let y: Vec<f64> = nodes.iter().map(|&node| node as f64).collect();
                decoder.decode(&y, &mut sum).unwrap();
                prop_assert!((sum[0] - (t * (t + 1) / 2) as f64).abs() < 1e-9);
            }
            prop_assert!(decoder.decode(&[0.0], &mut sum).is_err());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_without_a_trace() {
        let mut encoder = tree(true, 5).encoder(1);
        encoder.encode(&[i128::MAX]).unwrap();
        let saved = encoder.save();
        assert_eq!(encoder.encode(&[1, 2]).err(), Some(StepError::Coordinates { found: 2, expected: 1 }));
        for state in [&saved[..7], &saved[..saved.len() - 16], &saved[..saved.len() - 1]] {
            assert!(matches!(encoder.restore(state), Err(StepError::State { .. })));
        }
        assert!(tree(false, 5).encoder(1).restore(&saved).is_err());
        assert_eq!((encoder.steps(), encoder.save()), (1, saved));
        let mut decoder = tree(true, 5).decoder(1);
        assert!(decoder.decode(&[1.0, 1.0], &mut [0.0]).is_err());
        assert_eq!(decoder.steps(), 0);
    }
}
