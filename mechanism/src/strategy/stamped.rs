//! A strategy repeated in blocks of steps: `I ⊗ C` ("Multi-Epoch Matrix Factorization Mechanisms",
//! Choquette-Choo et al., 2023, Appendix D.4, with the errata's order of the factors).
//!
//! Blocks share nothing, so the encoder of a finished block is dropped. A strategy that needs a
//! horizon can thus serve an unbounded stream with the memory of one block. The price is in the
//! decoder: a running sum adds up the errors of all finished blocks. The decoder is `A (I ⊗ C)⁻¹`,
//! which is optimal if C is square. Strategies with their own decoder (`tree`, `honaker`, `fft`)
//! use it in every block.

use super::{
    ColumnGeometry, Decoder, Discrepancy, Encoder, Factorization, MAX_DENSE_HORIZON, MAX_HORIZON, Matrix,
    MatrixError, RowNorms, StepError, Strategy, StrategyError, check_horizon, dense,
    step::{self, Identification},
};
use crate::workload::Workload;
use faer::Mat;
use nalgebra::DMatrix;
use std::{iter, num::NonZeroU64, sync::Arc};

const STATE_VERSION: u64 = 1;

/// Number of blocks whose rounding is charged without a horizon. A strategy that rounds can't
/// encode more blocks.
const CHARGED_BLOCKS: u64 = 1 << 20;

/// A strategy or factorisation that is repeated in blocks.
///
/// ```
/// use hushflow_mechanism::strategy::{Factorization, Stamped, build};
/// use hushflow_mechanism::workload::Workload;
/// use std::num::NonZeroU64;
///
/// let block = build("square-root", &Workload::Prefix, Some(100))?;
/// let stamped = Stamped::new(block, NonZeroU64::new(100).unwrap(), None, &Workload::Prefix)?;
/// let error = |t: usize| stamped.decoder_row_norms(&Workload::Prefix, 300).nth(t - 1);
/// assert!(error(100) < error(101) && stamped.horizon().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Stamped<F: ?Sized> {
    length: NonZeroU64,
    horizon: Option<u64>,
    block: Arc<F>,
}

impl<F: Factorization + ?Sized> Stamped<F> {
    /// Blocks of `length` steps each. A horizon may cut the last block. Without a horizon the
    /// number of blocks is unlimited, or 2²⁰ for a strategy that rounds.
    ///
    /// # Errors
    /// [`StrategyError::Horizon`] for blocks longer than the strategy's own horizon, and for a
    /// horizon that is 0 or more than [`MAX_HORIZON`]. [`StrategyError::Workload`] if errors cannot
    /// be computed for the workload: all but sums, averages and exponential averages need a square
    /// C of at most [`MAX_DENSE_HORIZON`] steps.
    pub fn new(
        block: Arc<F>,
        length: NonZeroU64,
        horizon: Option<u64>,
        workload: &Workload,
    ) -> Result<Self, StrategyError> {
        check_horizon(&block.name(), length.get(), block.horizon().unwrap_or(MAX_HORIZON))?;
        let stamped = Self { length, horizon, block };
        if let Some(steps) = horizon {
            check_horizon(&stamped.name(), steps, MAX_HORIZON)?;
        }
        if decay(workload).is_none() && stamped.square_block().is_none() {
            return Err(StrategyError::Workload {
                strategy: stamped.name(),
                workload: workload.to_string(),
                reason: "blocks must have a square matrix of at most 4096 steps for it",
            });
        }
        Ok(stamped)
    }

    fn within_horizon(&self, steps: u64) -> u64 {
        steps.min(self.horizon.unwrap_or(MAX_HORIZON))
    }

    fn square_block(&self) -> Option<Mat<f64>> {
        let length = self.length.get();
        if length > MAX_DENSE_HORIZON { None } else { dense::square(&self.block.matrix(length).ok()?) }
    }

    /// Squared norms of the rows of the decoder of a block for the Toeplitz part of A.
    fn block_squares(&self, workload: &Workload, steps: u64) -> Vec<f64> {
        let rows = self.block.decoder_row_norms(workload, steps);
        rows.zip(1..).map(|(norm, t)| (norm * workload.row_divisor(t)).powi(2)).collect()
    }

    /// Squared norms if the Toeplitz part of A is `β^lag`: the contribution of a block that ended
    /// `lag` steps ago is the last row of that block times `β^lag`.
    fn decaying_squares(&self, workload: &Workload, decay: f64, steps: u64) -> RowNorms<'_> {
        let length = self.length.get().min(steps);
        let within = self.block_squares(workload, length);
        let last = within.last().copied().unwrap_or(0.0);
        let fade = decay * decay;
        let faded: Vec<f64> =
            iter::successors(Some(fade), |power| Some(power * fade)).take(within.len()).collect();
        let over_a_block = faded.last().copied().unwrap_or(1.0);
        let finished = iter::successors(Some(0.0), move |sum| Some(sum * over_a_block + last));
        let block = move |finished: f64| {
            let row = move |(square, fade): (&f64, &f64)| square + finished * fade;
            within.iter().zip(&faded).map(row).collect::<Vec<_>>()
        };
        Box::new(finished.flat_map(block).take(steps as usize))
    }

    /// Squared norms for any other A, block by block of `A (I ⊗ C)⁻¹`. For a Toeplitz A, those of a
    /// block of rows and a block of columns depend only on their distance.
    fn dense_squares(&self, workload: &Workload, c: &Mat<f64>, steps: usize) -> Vec<f64> {
        let length = c.nrows();
        let toeplitz = workload.toeplitz_part(1).is_some();
        let block = |row: usize, column: usize| {
            let rows = row * length..steps.min((row + 1) * length);
            let columns = column * length..steps.min((column + 1) * length);
            let c = c.get(..columns.len(), ..columns.len()).to_owned();
            dense::squared_row_norms(dense::transposed_workload(workload, rows, columns), &c)
        };
        let mut sums = vec![0.0; length];
        let mut squares = Vec::with_capacity(steps);
        for row in 0..steps.div_ceil(length) {
            let columns = if toeplitz { 0..1 } else { 0..row + 1 };
            if !toeplitz {
                sums.fill(0.0);
            }
            for column in columns {
                sums.iter_mut().zip(block(row, column)).for_each(|(sum, square)| *sum += square);
            }
            squares.extend(sums.iter().take(steps - squares.len()));
        }
        squares
    }
}

/// β if the Toeplitz part of A is `β^lag`.
fn decay(workload: &Workload) -> Option<f64> {
    match workload {
        Workload::Prefix | Workload::Average => Some(1.0),
        Workload::Exponential(decay) | Workload::Adam(decay) => Some(decay.get()),
        _ => None,
    }
}

impl<F: Factorization + ?Sized> Factorization for Stamped<F> {
    fn name(&self) -> String {
        format!("{} every {}", self.block.name(), self.length)
    }

    fn horizon(&self) -> Option<u64> {
        self.horizon
    }

    /// If the horizon cuts the last block and there are more than [`MAX_DENSE_HORIZON`] steps, the
    /// matrix contains the whole last block. This never lowers a sensitivity.
    fn matrix(&self, steps: u64) -> Result<Matrix, MatrixError> {
        let (steps, length) = (self.within_horizon(steps), self.length.get());
        let (copies, rest) = (steps / length, steps % length);
        if copies == 0 {
            return self.block.matrix(steps);
        }
        let stamped = |copies: u64| Matrix::stamped(self.block.matrix(length)?, copies as usize);
        if rest == 0 {
            return stamped(copies);
        }
        if steps <= MAX_DENSE_HORIZON {
            let (full, cut) = (stamped(copies)?, self.block.matrix(rest)?);
            let both = Matrix::dense(block_diagonal(&full.entries(), &cut.entries()))?;
            let Discrepancy { relative, column } = full.discrepancy().of_either(cut.discrepancy());
            // Multiplying entries by scales rounds them once.
            let column = column + f64::EPSILON * full.max_column_norm();
            return Ok(both.with_discrepancy(Discrepancy { relative, column }));
        }
        stamped(copies + 1)
    }

    fn max_column_norm_squared(&self, steps: u64) -> f64 {
        self.block.max_column_norm_squared(steps.min(self.length.get()))
    }

    /// Takes O(n) for sums, averages and exponential averages, and dense algebra block by block for
    /// others. Infinite for a workload that [`new`](Self::new) refuses.
    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> RowNorms<'_> {
        let steps = self.within_horizon(steps);
        if let Some(decay) = decay(workload) {
            let workload = workload.clone();
            let squares = self.decaying_squares(&workload, decay, steps).zip(1..);
            return Box::new(squares.map(move |(square, t)| square.sqrt() / workload.row_divisor(t)));
        }
        match self.square_block() {
            Some(c) => {
                let squares =
                    self.dense_squares(&workload.undivided(), &c, steps as usize).into_iter().zip(1..);
                let workload = workload.clone();
                Box::new(squares.map(move |(square, t)| square.sqrt() / workload.row_divisor(t)))
            }
            None => Box::new(iter::repeat_n(f64::INFINITY, steps as usize)),
        }
    }
}

fn block_diagonal(first: &DMatrix<f64>, second: &DMatrix<f64>) -> DMatrix<f64> {
    let mut both = DMatrix::zeros(first.nrows() + second.nrows(), first.ncols() + second.ncols());
    both.view_mut((0, 0), first.shape()).copy_from(first);
    both.view_mut(first.shape(), second.shape()).copy_from(second);
    both
}

impl<F: Strategy + ?Sized + 'static> Stamped<F> {
    fn last(&self) -> Option<u64> {
        let exact = self.block.geometry().rounding_squared == 0.0;
        let charged = || self.length.get().saturating_mul(CHARGED_BLOCKS);
        self.horizon.or_else(|| (!exact).then(charged))
    }
}

impl<F: Strategy + ?Sized + 'static> Strategy for Stamped<F> {
    /// Columns of different blocks do not overlap. Every block rounds separately: without a horizon
    /// the rounding of 2²⁰ blocks is charged, and a stream of a strategy that rounds ends after
    /// them.
    fn geometry(&self) -> ColumnGeometry {
        let block = self.block.geometry();
        let blocks = self.horizon.map_or(CHARGED_BLOCKS, |steps| steps.div_ceil(self.length.get()));
        // Both factors are 0 or far from the limits of a float, so the product rounds once;
        // `next_up` covers it.
        let rounding_squared = match block.rounding_squared * blocks as f64 {
            0.0 => 0.0,
            charged => charged.next_up(),
        };
        ColumnGeometry { rounding_squared, ..block }
    }

    fn encoder_bytes(&self) -> usize {
        self.block.encoder_bytes()
    }

    fn input_limit(&self) -> Option<u128> {
        self.block.input_limit()
    }

    fn encoder(&self, coordinates: usize) -> Box<dyn Encoder> {
        let words = [self.length.get(), self.horizon.unwrap_or(0)];
        let identification = Identification {
            version: STATE_VERSION,
            fingerprint: step::fingerprint(words.into_iter().flat_map(u64::to_le_bytes)),
            coordinates,
            horizon: self.last(),
        };
        let block = self.block.encoder(coordinates);
        Box::new(StampedEncoder {
            strategy: self.block.clone(),
            length: self.length,
            identification,
            steps: 0,
            block,
        })
    }

    fn decoder(&self, coordinates: usize) -> Box<dyn Decoder> {
        Box::new(StampedDecoder {
            strategy: self.block.clone(),
            length: self.length,
            horizon: self.last(),
            coordinates,
            steps: 0,
            block: self.block.decoder(coordinates),
        })
    }
}

/// The saved state is the number of steps and the saved encoder of the unfinished block.
struct StampedEncoder<F: ?Sized> {
    strategy: Arc<F>,
    length: NonZeroU64,
    identification: Identification,
    steps: u64,
    block: Box<dyn Encoder>,
}

impl<F: Strategy + ?Sized> Encoder for StampedEncoder<F> {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError> {
        let Identification { coordinates, horizon, .. } = self.identification;
        step::check_step(horizon, self.steps, coordinates, [x.len(), y.len()])?;
        self.block.encode(x, y)?;
        self.steps += 1;
        if self.steps.is_multiple_of(self.length.get()) {
            self.block = self.strategy.encoder(coordinates);
        }
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        let block = zeroize::Zeroizing::new(self.block.save());
        let mut state = self.identification.header(self.steps, block.len());
        state.extend(block.iter());
        state
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let (steps, saved) = self.identification.read(state)?;
        let mut block = self.strategy.encoder(self.identification.coordinates);
        block.restore(saved)?;
        if block.steps() != steps % self.length.get() {
            return Err(step::refused("its block has another number of steps"));
        }
        (self.steps, self.block) = (steps, block);
        Ok(())
    }
}

struct StampedDecoder<F: ?Sized> {
    strategy: Arc<F>,
    length: NonZeroU64,
    horizon: Option<u64>,
    coordinates: usize,
    steps: u64,
    block: Box<dyn Decoder>,
}

impl<F: Strategy + ?Sized> Decoder for StampedDecoder<F> {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        step::check_step(self.horizon, self.steps, self.coordinates, [y.len(), x.len()])?;
        self.block.decode(y, x)?;
        self.steps += 1;
        if self.steps.is_multiple_of(self.length.get()) {
            self.block = self.strategy.decoder(self.coordinates);
        }
        Ok(())
    }

    fn save(&self) -> Vec<f64> {
        self.block.save()
    }

    fn restore(&mut self, steps: u64, state: &[f64]) -> Result<(), StepError> {
        if self.horizon.is_some_and(|horizon| steps > horizon) {
            return Err(step::wrong_length());
        }
        let mut block = self.strategy.decoder(self.coordinates);
        block.restore(steps % self.length.get(), state)?;
        (self.steps, self.block) = (steps, block);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Fourier, Tree, build, conformance};

    const WORKLOADS: [&str; 8] = [
        "prefix",
        "average",
        "exponential:0.9",
        "window:3",
        "window-mean:3",
        "window:12",
        "momentum:0.9",
        "adam:0.9",
    ];

    fn root(workload: &Workload, length: u64) -> Arc<dyn Strategy> {
        build("square-root", workload, Some(length)).unwrap()
    }

    fn stamp<F: Factorization + ?Sized>(block: Arc<F>, length: u64, horizon: Option<u64>) -> Stamped<F> {
        Stamped::new(block, NonZeroU64::new(length).unwrap(), horizon, &Workload::Prefix).unwrap()
    }

    #[test]
    fn streaming_agrees_with_the_matrix() {
        let any = DMatrix::from_fn(20, 20, |t, i| if i > t { 0.0 } else { ((t * 7 + i * 3) as f64).sin() });
        let any = Workload::from_matrix("any", any).unwrap();
        for workload in WORKLOADS.map(|text| text.parse().unwrap()).into_iter().chain([any]) {
            let part = if workload.toeplitz_part(1).is_some() { &workload } else { &Workload::Prefix };
            for (length, horizon, steps) in
                [(1, 4, 4), (5, 20, 20), (5, 20, 10), (7, 20, 20), (7, 20, 9), (20, 20, 20), (9, 5, 5)]
            {
                conformance::check(&stamp(root(part, length), length, Some(horizon)), &workload, steps);
                conformance::check(&stamp(root(part, length), length, None), &workload, steps);
            }
        }
    }

    #[test]
    fn blocks_may_be_nested() {
        let inner: Arc<dyn Strategy> = Arc::new(stamp(root(&Workload::Prefix, 3), 3, Some(6)));
        conformance::check(&stamp(inner, 6, Some(16)), &Workload::Prefix, 16);
    }

    /// Squared decoder norms of Table 1 of the paper, computed independently.
    #[test]
    fn decoders_agree_with_table_1() {
        fn check<F: Factorization + ?Sized>(block: Arc<F>, length: u64, scale: f64, expected: f64) {
            let stamped = stamp(block, length, Some(2000));
            let squares = stamped.decoder_row_norms(&Workload::Prefix, 2000).map(|norm| norm * norm);
            let found = squares.sum::<f64>() * scale;
            assert!((found / expected - 1.0).abs() < 1e-9, "{}: {found} {expected}", stamped.name());
        }
        let honaker = |n| Arc::new(Tree::honaker(n).unwrap());
        check(honaker(2000), 2000, 1.0, 6235.228220995306);
        check(honaker(400), 400, 1.0, 6924.166157193465);
        check(honaker(100), 100, 1.0, 13310.193158258386);
        check(Arc::new(Fourier::new(400).unwrap()), 400, 1.0, 17330.423686788996);
        check(Arc::new(Fourier::optimal(200).unwrap()), 200, 1.0, 19595.21246186326);
        for (n, levels, expected) in [(1000, 11.0, 2959.298056885277), (200, 9.0, 6311.074011661458)] {
            let tree = build("tree-optimal-decoder", &Workload::Prefix, Some(n)).unwrap();
            let scale = tree.geometry().max_norm_squared / levels;
            check(tree, n, scale, expected);
        }
    }

    #[test]
    fn unbounded_stream_drops_finished_blocks() {
        let stamped = stamp(root(&Workload::Prefix, 10), 10, None);
        let mut encoder = stamped.encoder(1);
        let empty = encoder.save().len();
        for t in 1..=1000 {
            encoder.encode(&[1], &mut [0]).unwrap();
            assert!(t % 10 != 0 || encoder.save().len() == empty);
        }
        assert_eq!(stamped.decoder_row_norms(&Workload::Prefix, 25).count(), 25);
    }

    #[test]
    fn blocks_that_do_not_fit_are_refused() {
        let refused = |length: u64, horizon, workload: &Workload| {
            let block = Arc::new(Tree::honaker(10).unwrap());
            let length = NonZeroU64::new(length).unwrap();
            Stamped::new(block, length, horizon, workload).err().map(|error| error.to_string())
        };
        assert_eq!(refused(10, Some(25), &Workload::Prefix), None);
        assert!(refused(11, None, &Workload::Prefix).unwrap().contains("11 steps"));
        assert!(refused(10, Some(0), &Workload::Prefix).unwrap().contains("0 steps"));
        let window = "window:3".parse().unwrap();
        assert!(refused(10, Some(25), &window).unwrap().contains("square matrix"));
        let stamped = stamp(Arc::new(Tree::honaker(10).unwrap()), 10, None);
        assert!(stamped.decoder_row_norms(&window, 5).all(f64::is_infinite));
    }
}
