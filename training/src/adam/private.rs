//! Adam over a release: decodes a run of parameters block by block and passes the increments to
//! [`Adam`]. The noise in v is known step by step, before any data.

use super::{Adam, AdamError, AdamHyperparameters, GradientSquares, UpdatePart};
use hushflow_mechanism::mechanism::MatrixMechanism;
use hushflow_mechanism::moments::IntegerRow;
use hushflow_mechanism::release::in_real_units;
use hushflow_mechanism::strategy::{Decoder, StepError, Strategy};
use hushflow_mechanism::workload::{Decay, Workload};
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

/// Parameters per block: all of a block's data fit in the processor's cache.
const BLOCK: usize = 2048;

/// The optimiser's state for a run of parameters. Its inputs are public.
pub struct PrivateAdam {
    setting: AdamHyperparameters,
    run: Range<usize>,
    /// Real value of a unit of each moment's grid, for means over the batch.
    units: [f64; 2],
    noise: Arc<[SecondMomentNoise]>,
    steps: usize,
    blocks: Vec<Block>,
    buffers: BlockBuffers,
    /// Buffer of a returned update.
    spare: Vec<f64>,
}

struct Block {
    /// Decoder of first moments, and of second ones if they are released.
    first: Box<dyn Decoder>,
    second: Option<Box<dyn Decoder>>,
    adam: Adam,
    /// Factors for the gradients of the next step before clipping; empty if gradients are not
    /// scaled.
    scale: Vec<f64>,
}

struct BlockBuffers {
    released: Vec<f64>,
    gradient: Vec<f64>,
    squares: Vec<f64>,
}

impl PrivateAdam {
    /// Makes the optimiser of the parameters `run`, over the first `horizon` releases of a
    /// mechanism.
    ///
    /// # Errors
    /// [`AdamError`] for numbers out of range and for a release that lacks required moments.
    pub fn new(
        mechanism: &MatrixMechanism,
        setting: AdamHyperparameters,
        run: Range<usize>,
        horizon: u64,
    ) -> Result<Self, AdamError> {
        setting.check_release(mechanism)?;
        let layout = mechanism.layout();
        let unit =
            |coordinate: usize| mechanism.moments().noise().get(coordinate).map_or(0.0, |noise| noise.unit);
        let divisors = setting.divisors(mechanism);
        let block = |start: usize| {
            let length = BLOCK.min(run.end - start);
            Block {
                first: mechanism.first_decoder(length),
                second: (layout.second_len() > 0).then(|| mechanism.second_decoder(length)),
                adam: Adam::new(&setting, length),
                scale: setting.damping().map_or(Vec::new(), |_| vec![1.0; length]),
            }
        };
        let room = || vec![0.0; BLOCK];
        Ok(Self {
            units: [unit(layout.first().start) / divisors[0], unit(layout.second().start) / divisors[1]],
            noise: second_moment_noise(mechanism, &setting, horizon).into(),
            steps: 0,
            blocks: run.clone().step_by(BLOCK).map(block).collect(),
            buffers: BlockBuffers { released: room(), gradient: room(), squares: room() },
            spare: Vec::new(),
            setting,
            run,
        })
    }

    /// Returns the next step; the first is 1.
    pub fn next_step(&self) -> u64 {
        self.steps as u64 + 1
    }

    /// Returns an update that is no longer needed, so that the next one reuses its memory.
    pub fn give_back(&mut self, part: UpdatePart) {
        self.spare = part.direction;
    }

    /// Takes the released first moments of this run, and its second moments (`None` if not
    /// released), each in any number of pieces. Returns the update of the step.
    ///
    /// # Errors
    /// [`AdamError`].
    pub fn push<'a>(
        &mut self,
        first: impl IntoIterator<Item: Into<IntegerRow<'a>>, IntoIter: Clone>,
        second: impl IntoIterator<Item: Into<IntegerRow<'a>>, IntoIter: Clone>,
    ) -> Result<UpdatePart, AdamError> {
        let mut first = RowPieces::new(first.into_iter().map(Into::into));
        let mut second = RowPieces::new(second.into_iter().map(Into::into));
        let noise =
            *self.noise.get(self.steps).ok_or(AdamError::PastHorizon { horizon: self.noise.len() as u64 })?;
        let length = self.run.len();
        let seconds = if self.blocks.iter().any(|block| block.second.is_some()) { length } else { 0 };
        for (found, expected) in [(first.len(), length), (second.len(), seconds)] {
            if found != expected {
                return Err(AdamError::Length { found, expected });
            }
        }
        self.steps += 1;
        let mut direction = std::mem::take(&mut self.spare);
        direction.resize(length, 0.0);
        let floor = self.setting.floor_deviations * noise.deviation;
        for (block, direction) in self.blocks.iter_mut().zip(direction.chunks_mut(BLOCK)) {
            self.buffers.increments(block, self.units, noise.bias, &mut first, &mut second)?;
            let BlockBuffers { gradient, squares, .. } = &self.buffers;
            block.adam.step(gradient, squares, floor, direction);
        }
        self.rescale();
        let scale = self.blocks.iter().flat_map(|block| &block.scale).copied().collect();
        Ok(UpdatePart::new(self.run.start, direction, scale))
    }

    /// Returns the state that later steps need, except the number of steps.
    pub fn save(&self) -> Vec<f64> {
        let mut all = Vec::new();
        for Block { first, second, adam, scale } in &self.blocks {
            adam.save(&mut all);
            all.extend(scale);
            for decoder in [Some(first), second.as_ref()].into_iter().flatten() {
                let state = decoder.save();
                all.push(state.len() as f64);
                all.extend(state);
            }
        }
        all
    }

    /// Continues after `steps` steps with the numbers that [`save`](Self::save) returned then.
    ///
    /// # Errors
    /// [`AdamError::Step`] for other numbers; the optimiser must not be used afterwards.
    pub fn restore(&mut self, steps: u64, state: &[f64]) -> Result<(), AdamError> {
        let refused = || StepError::State { reason: "it is not one of this optimiser" };
        let mut rest = state;
        for Block { first, second, adam, scale } in &mut self.blocks {
            adam.restore(&mut rest).ok_or_else(refused)?;
            let scales = rest.split_off(..scale.len()).ok_or_else(refused)?;
            scale.copy_from_slice(scales);
            for decoder in [Some(first), second.as_mut()].into_iter().flatten() {
                let length = *rest.split_off_first().ok_or_else(refused)?;
                decoder.restore(steps, rest.split_off(..length as usize).ok_or_else(refused)?)?;
            }
        }
        if !rest.is_empty() || steps > self.noise.len() as u64 {
            return Err(refused().into());
        }
        self.steps = steps as usize;
        Ok(())
    }

    /// Computes s_{t+1} from v_t if gradients are scaled.
    fn rescale(&mut self) {
        let Some(damping) = self.setting.damping() else { return };
        let squares = self.blocks.iter().flat_map(|block| block.adam.roots()).map(|root| root * root);
        let level = (squares.sum::<f64>() / self.run.len() as f64).sqrt();
        if level == 0.0 {
            return;
        }
        let (numerator, damping) = ((1.0 + damping) * level, damping * level);
        for block in &mut self.blocks {
            let scales = block.adam.roots().map(|root| numerator / (root + damping));
            block.scale.iter_mut().zip(scales).for_each(|(scale, new)| *scale = new);
        }
    }
}

impl BlockBuffers {
    /// Decodes the mean gradient of a block and its second moments, which come next in these
    /// pieces.
    fn increments<'a>(
        &mut self,
        block: &mut Block,
        units: [f64; 2],
        bias: f64,
        first: &mut RowPieces<'a, impl Iterator<Item = IntegerRow<'a>>>,
        second: &mut RowPieces<'a, impl Iterator<Item = IntegerRow<'a>>>,
    ) -> Result<(), AdamError> {
        let length = block.adam.len();
        let [released, gradient, squares] = [&mut self.released, &mut self.gradient, &mut self.squares];
        let (released, gradient, squares) =
            (&mut released[..length], &mut gradient[..length], &mut squares[..length]);
        first.read(units[0], released);
        block.first.decode(released, gradient)?;
        gradient.iter_mut().zip(&block.scale).for_each(|(gradient, scale)| *gradient /= scale);
        match &mut block.second {
            Some(decoder) => {
                second.read(units[1], released);
                decoder.decode(released, squares)?;
            }
            None => squares.iter_mut().zip(gradient).for_each(|(square, g)| *square = *g * *g - bias),
        }
        Ok(())
    }
}

struct RowPieces<'a, I> {
    piece: IntegerRow<'a>,
    rest: I,
}

impl<'a, I: Iterator<Item = IntegerRow<'a>>> RowPieces<'a, I> {
    fn new(rest: I) -> Self {
        RowPieces { piece: IntegerRow::Narrow(&[]), rest }
    }

    fn len(&self) -> usize
    where
        I: Clone,
    {
        self.piece.len() + self.rest.clone().map(|piece| piece.len()).sum::<usize>()
    }

    /// Reads the next integers as real numbers in a unit. After the end it reads zeros.
    fn read(&mut self, unit: f64, mut reals: &mut [f64]) {
        while !reals.is_empty() {
            while self.piece.is_empty() {
                match self.rest.next() {
                    Some(piece) => self.piece = piece,
                    None => return reals.fill(0.0),
                }
            }
            let length = reals.len().min(self.piece.len());
            let (now, later) = reals.split_at_mut(length);
            in_real_units(self.piece.run(0..length), unit, now);
            (self.piece, reals) = (self.piece.run(length..self.piece.len()), later);
        }
    }
}

/// The noise in second moments at one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SecondMomentNoise {
    /// Amount to subtract from every square of this step: the variance of x̂'s noise, or 0.
    pub bias: f64,
    /// Standard deviation of the noise in v_t; 0 if v_t cannot be negative.
    pub deviation: f64,
}

/// Returns the noise of the steps 1..=`horizon`, for sums divided by the batch size, by the
/// formulas at the head of [`adam`](super).
pub fn second_moment_noise(
    mechanism: &MatrixMechanism,
    setting: &AdamHyperparameters,
    horizon: u64,
) -> Vec<SecondMomentNoise> {
    let layout = mechanism.layout();
    let deviation = |coordinate: usize| mechanism.moments().noise()[coordinate].standard_deviation();
    let divisors = setting.divisors(mechanism);
    let strategies = mechanism.strategies();
    if layout.second_len() > 0 {
        let deviation = deviation(layout.second().start) / divisors[1];
        let average = Workload::Adam(setting.second_decay);
        let norms = strategies.second().decoder_row_norms(&average, horizon);
        return norms.map(|norm| SecondMomentNoise { bias: 0.0, deviation: deviation * norm }).collect();
    }
    match setting.squares {
        GradientSquares::Raw | GradientSquares::Scaling { .. } => {
            vec![SecondMomentNoise::default(); horizon as usize]
        }
        GradientSquares::Debiased => {
            let deviation = deviation(layout.first().start) / divisors[0];
            let variances = increment_variances(strategies.first(), deviation, horizon);
            of_debiased_squares(variances, setting.second_decay)
        }
    }
}

/// φ_t²: variances of the noise of decoded increments.
fn increment_variances(strategy: &dyn Strategy, deviation: f64, horizon: u64) -> impl Iterator<Item = f64> {
    let increments = Workload::Window(NonZeroU64::MIN);
    let norms = strategy.decoder_row_norms(&increments, horizon);
    norms.map(move |norm| (deviation * norm).powi(2))
}

/// `Σ_i A_ti² φ_i⁴` by its recursion, A being `(1 − β)β^(t−i)/(1 − β^t)`.
fn of_debiased_squares(variances: impl Iterator<Item = f64>, decay: Decay) -> Vec<SecondMomentNoise> {
    let (decay, mut sum) = (decay.get(), 0.0);
    let steps = variances.zip(1..).map(|(bias, t)| {
        sum = decay * decay * sum + (1.0 - decay).powi(2) * bias * bias;
        SecondMomentNoise { bias, deviation: (2.0 * sum).sqrt() / (1.0 - decay.powi(t)) }
    });
    steps.collect()
}
