//! Encodes and decodes rows whose first part goes through C₁ and whose second part goes through C₂.
//!
//! A row holds the coordinates of several keys, or a piece of them. So the two parts alternate.
//! Each part is gathered from its positions, encoded, and put back.

use super::{MatrixMechanism, Strategies};
use crate::moments::IntegerRow;
use crate::moments::Layout;
use crate::strategy::{Decoder, Encoder, IdentityDecoder, StepError, Strategy};
use std::ops::Range;
use zeroize::{Zeroize, Zeroizing};

impl Strategies {
    /// Starts encoding a run of the coordinates of all keys, laid end to end.
    pub(crate) fn encoder(&self, layout: Layout, run: Range<u64>) -> MomentEncoder {
        match self.mask(layout, run.clone()) {
            None => MomentEncoder::Shared(self.first().encoder((run.end - run.start) as usize)),
            Some(mask) => {
                let [first, second] = mask.lengths();
                let encoders = [self.first().encoder(first), self.second().encoder(second)];
                MomentEncoder::Separate { mask, encoders }
            }
        }
    }

    /// Returns the mask of second moments; `None` if all coordinates go through one strategy.
    fn mask(&self, layout: Layout, run: Range<u64>) -> Option<SecondMomentMask> {
        let is_second =
            |coordinate| layout.second().contains(&((coordinate % layout.coordinates() as u64) as usize));
        let separate = !self.are_one() && layout.second_len() > 0;
        separate.then(|| SecondMomentMask { is_second: run.map(is_second).collect() })
    }
}

impl MatrixMechanism {
    /// Starts decoding released first moments, or counts, alone.
    pub fn first_decoder(&self, coordinates: usize) -> Box<dyn Decoder> {
        self.decoder_of(self.strategies().first(), coordinates)
    }

    /// Starts decoding released second moments alone.
    pub fn second_decoder(&self, coordinates: usize) -> Box<dyn Decoder> {
        self.decoder_of(self.strategies().second(), coordinates)
    }

    fn decoder_of(&self, strategy: &dyn Strategy, coordinates: usize) -> Box<dyn Decoder> {
        if self.is_correlated() {
            Box::new(IdentityDecoder::new(strategy.horizon(), coordinates))
        } else {
            strategy.decoder(coordinates)
        }
    }

    /// Starts decoding the release of `keys` keys, laid end to end.
    pub(crate) fn decoder(&self, keys: u32) -> MomentDecoder {
        let coordinates = u64::from(keys) * self.layout().coordinates() as u64;
        match self.strategies().mask(self.layout(), 0..coordinates) {
            None => MomentDecoder::Shared(self.first_decoder(coordinates as usize)),
            Some(mask) => {
                let [first, second] = mask.lengths();
                let decoders = [self.first_decoder(first), self.second_decoder(second)];
                MomentDecoder::Separate { mask, decoders }
            }
        }
    }
}

/// The coordinates of a row that are second moments.
pub(crate) struct SecondMomentMask {
    is_second: Vec<bool>,
}

impl SecondMomentMask {
    fn lengths(&self) -> [usize; 2] {
        let second = self.is_second.iter().filter(|&&second| second).count();
        [self.is_second.len() - second, second]
    }

    fn gather<T: Copy>(&self, row: &[T]) -> Result<[Vec<T>; 2], StepError> {
        let (found, expected) = (row.len(), self.is_second.len());
        if found != expected {
            return Err(StepError::Coordinates { found, expected });
        }
        let mut parts = self.lengths().map(Vec::with_capacity);
        for (&value, &second) in row.iter().zip(&self.is_second) {
            parts[usize::from(second)].push(value);
        }
        Ok(parts)
    }

    fn scatter<T: Copy>(&self, parts: [&[T]; 2], row: &mut [T]) {
        let mut parts = parts.map(|part| part.iter());
        for (entry, &second) in row.iter_mut().zip(&self.is_second) {
            if let Some(&value) = parts[usize::from(second)].next() {
                *entry = value;
            }
        }
    }
}

/// Encoders of all coordinates. Unusable after an error.
pub(crate) enum MomentEncoder {
    Shared(Box<dyn Encoder>),
    Separate { mask: SecondMomentMask, encoders: [Box<dyn Encoder>; 2] },
}

impl MomentEncoder {
    /// Returns the number of steps encoded so far.
    pub(crate) fn steps(&self) -> u64 {
        match self {
            Self::Shared(encoder) => encoder.steps(),
            Self::Separate { encoders: [first, _], .. } => first.steps(),
        }
    }

    /// As [`Encoder::encode`].
    pub(crate) fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError> {
        y.fill(0);
        self.add_encoded(x.into(), y)
    }

    /// As [`Encoder::add_encoded`].
    pub(crate) fn add_encoded(&mut self, x: IntegerRow<'_>, y: &mut [i128]) -> Result<(), StepError> {
        match self {
            Self::Shared(encoder) => encoder.add_encoded(x, y),
            Self::Separate { mask, encoders } => match x {
                IntegerRow::Narrow(x) => add_encoded_parts(mask, encoders, x, y),
                IntegerRow::Wide(x) => add_encoded_parts(mask, encoders, x, y),
            },
        }
    }

    /// Returns all state, which is private. For two encoders: the length of the first one's state,
    /// then both states.
    pub(crate) fn save(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Shared(encoder) => encoder.save(),
            Self::Separate { encoders, .. } => {
                let [first, second] = encoders.each_ref().map(|encoder| Zeroizing::new(encoder.save()));
                [&(first.len() as u64).to_le_bytes()[..], &first, &second].concat()
            }
        })
    }

    /// As [`Encoder::restore`].
    pub(crate) fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        match self {
            Self::Shared(encoder) => encoder.restore(state),
            Self::Separate { encoders: [first, second], .. } => {
                let (one, other) = saved_parts(state)
                    .ok_or(StepError::State { reason: "it does not belong to two strategies" })?;
                first.restore(one)?;
                second.restore(other)?;
                match first.steps() == second.steps() {
                    true => Ok(()),
                    false => Err(StepError::State { reason: "its two strategies are at different steps" }),
                }
            }
        }
    }
}

/// Gathers the parts of both rows, and puts those of `y` back after adding the encoded ones.
fn add_encoded_parts<T>(
    mask: &SecondMomentMask,
    encoders: &mut [Box<dyn Encoder>; 2],
    x: &[T],
    y: &mut [i128],
) -> Result<(), StepError>
where
    T: Copy + Zeroize,
    for<'a> IntegerRow<'a>: From<&'a [T]>,
{
    let parts = mask.gather(x)?.map(Zeroizing::new);
    let mut sums = mask.gather(y)?.map(Zeroizing::new);
    for ((encoder, x), y) in encoders.iter_mut().zip(&parts).zip(&mut sums) {
        encoder.add_encoded(x[..].into(), y)?;
    }
    mask.scatter(sums.each_ref().map(|part| &part[..]), y);
    Ok(())
}

fn saved_parts(state: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, parts) = state.split_first_chunk()?;
    parts.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

/// Decoders of all coordinates. Unusable after an error.
pub(crate) enum MomentDecoder {
    Shared(Box<dyn Decoder>),
    Separate { mask: SecondMomentMask, decoders: [Box<dyn Decoder>; 2] },
}

impl MomentDecoder {
    /// Returns the number of steps decoded so far.
    pub(crate) fn steps(&self) -> u64 {
        match self {
            Self::Shared(decoder) => decoder.steps(),
            Self::Separate { decoders: [first, _], .. } => first.steps(),
        }
    }

    /// As [`Decoder::decode`].
    pub(crate) fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        match self {
            Self::Shared(decoder) => decoder.decode(y, x),
            Self::Separate { mask, decoders } => {
                let parts = mask.gather(y)?;
                let mut decoded = parts.each_ref().map(|part| vec![0.0; part.len()]);
                for ((decoder, y), x) in decoders.iter_mut().zip(&parts).zip(&mut decoded) {
                    decoder.decode(y, x)?;
                }
                mask.scatter(decoded.each_ref().map(|part| &part[..]), x);
                Ok(())
            }
        }
    }
}
