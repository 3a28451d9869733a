//! Quantises eight records at a time, for registers of 256 bits as well (`pulp`).
//!
//! Every operation is the one that [`Clipper::quantise`] does, in the same order, so the integers
//! are the same, bit by bit. The square roots and quotients of eight records are taken together.
//!
//! Rows are moved by value, and loops are over positions: see [`products`](super::super::products).

use super::super::rows::round_ties_even;
use super::{BALL, Clipper, FAITHFUL, UNIT, scaled, shrink_into_ball};
use crate::moments::products::LANES;
use pulp::{Arch, Simd, WithSimd};

/// Number of records.
pub(super) const TOGETHER: usize = 8;

/// Appends the rows of records to `rows`, [`TOGETHER`] at a time, until one of them needs further
/// steps: it is all zeros, of extreme size, or not finite. Returns the number of records.
///
/// For clippers without indicators, squares and histograms. It takes no records of more than nine
/// columns: there is little to gain.
pub(super) fn quantise(clipper: &Clipper, records: &[f64], rows: &mut Vec<f64>) -> usize {
    Arch::new().dispatch(Quantise { clipper, records, rows })
}

struct Quantise<'a> {
    clipper: &'a Clipper,
    records: &'a [f64],
    rows: &'a mut Vec<f64>,
}

impl WithSimd for Quantise<'_> {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        // A function for each number of columns, so that rows are arrays.
        macro_rules! fixed {
            ($($columns:literal)*) => {
                match self.clipper.dimension() {
                    $($columns => self.run::<$columns>(),)*
                    _ => 0,
                }
            };
        }
        fixed!(1 2 3 4 5 6 7 8 9)
    }
}

impl Quantise<'_> {
    #[inline(always)]
    fn run<const D: usize>(self) -> usize {
        let Self { clipper, records, rows } = self;
        let ([centres], [scales]) = (clipper.centres.as_chunks::<D>().0, clipper.scales.as_chunks::<D>().0)
        else {
            return 0;
        };
        // Values of their own, which no write to a row can change.
        let (centres, scales, limit, clip_norm): ([f64; D], [f64; D], f64, f64) =
            (*centres, *scales, clipper.limit, clipper.clip_norm);
        let mut number = 0;
        for group in records.as_chunks::<D>().0.as_chunks::<TOGETHER>().0 {
            let (mut own, mut factors, mut are_faithful) = ([[0.0; D]; TOGETHER], [0.0; TOGETHER], true);
            for record in 0..TOGETHER {
                let (values, mut row): ([f64; D], [f64; D]) = (group[record], [0.0; D]);
                for column in 0..D {
                    row[column] = scaled(values[column], centres[column], scales[column], limit);
                }
                own[record] = row;
                factors[record] = squared_norm(&row);
                are_faithful &= FAITHFUL.contains(&factors[record]);
            }
            if !are_faithful {
                break;
            }
            for factor in &mut factors {
                *factor = UNIT / clip_norm.max(factor.sqrt());
            }
            for record in 0..TOGETHER {
                let mut row = own[record];
                for value in &mut row {
                    *value = round_ties_even(*value * factors[record]);
                }
                if squared_norm(&row) > BALL {
                    shrink_into_ball(&mut row, BALL);
                }
                own[record] = row;
            }
            rows.extend_from_slice(own.as_flattened());
            number += TOGETHER;
        }
        number
    }
}

/// As [`products::squared_norm`](super::super::products::squared_norm).
#[inline(always)]
fn squared_norm(row: &[f64]) -> f64 {
    let (blocks, rest) = row.as_chunks::<LANES>();
    let (mut lanes, mut sum, mut of_rest) = ([0.0; LANES], 0.0, 0.0);
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] += block[lane] * block[lane];
        }
    }
    for lane in &lanes {
        sum += lane;
    }
    for value in rest {
        of_rest += value * value;
    }
    sum + of_rest
}
