//! Quantises records in place, eight at a time in the widest registers.
//!
//! Every operation is the one that [`Clipper::quantise`] does, in the same order, so the integers
//! are the same, bit by bit. Square roots and quotients of eight records are taken together.
//!
//! Rows are moved by value, and loops are over positions: see [`registers`](crate::registers).

use super::super::rows::round_ties_even;
use super::{BALL, Clipper, FAITHFUL, UNIT, quantise_in_place, scaled, shrink_into_ball};
use crate::moments::products::LANES;
use crate::registers::{Lanes, in_widest, unrolled};

/// Number of records that are quantised in one group.
const TOGETHER: usize = 8;

/// A record whose squared norm is at most this share of ζ² stays in the ball when its entries, nine
/// at most, are rounded: its norm is at most 2²⁰ − 4, and rounding adds at most √9/2.
const INNER: f64 = 1.0 - 1.0 / (1u64 << 17) as f64;

/// Quantises the records in `rows` from `start` on, each of which becomes one row. Removes those
/// with a value that is not finite, unless they count as the centre, and returns their indices.
///
/// For clippers without indicators, squares and histograms.
pub(super) fn quantise_rows(clipper: &Clipper, rows: &mut Vec<f64>, start: usize) -> Vec<usize> {
    let width = clipper.dimension();
    let records = &mut rows[start..];
    let (mut left_out, mut position) = (Vec::new(), 0);
    while position * width < records.len() {
        position += in_widest(Quantise { clipper, rows: &mut records[position * width..] });
        for row in records[position * width..].chunks_exact_mut(width).take(TOGETHER) {
            for (value, (&centre, &scale)) in row.iter_mut().zip(clipper.centres.iter().zip(&clipper.scales))
            {
                *value = scaled(*value, centre, scale, clipper.limit);
            }
            match quantise_in_place(row, clipper.clip_norm) {
                Some(()) => {}
                None if clipper.counts_unusable => row.fill(0.0),
                None => left_out.push(position),
            }
            position += 1;
        }
    }
    if let Some(&first) = left_out.first() {
        let (mut kept, mut of_left_out) = (start + first * width, left_out.iter().peekable());
        for record in (first..position).filter(|record| of_left_out.next_if_eq(&record).is_none()) {
            let from = start + record * width;
            rows.copy_within(from..from + width, kept);
            kept += width;
        }
        rows.truncate(kept);
    }
    left_out
}

/// Quantises rows, [`TOGETHER`] at a time, until one of them needs further steps: it is all zeros,
/// of extreme size, or not finite. Returns the number of rows. Takes no rows of more than nine
/// columns, because the gain would be small.
struct Quantise<'a> {
    clipper: &'a Clipper,
    rows: &'a mut [f64],
}

impl Lanes for Quantise<'_> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        // A function for each number of columns, so that rows are arrays.
        macro_rules! fixed {
            ($($columns:literal)*) => {
                match self.clipper.dimension() {
                    $($columns => self.of_columns::<$columns>(),)*
                    _ => 0,
                }
            };
        }
        fixed!(1 2 3 4 5 6 7 8 9)
    }
}

impl Quantise<'_> {
    #[inline(always)]
    fn of_columns<const D: usize>(self) -> usize {
        let Self { clipper, rows } = self;
        let ([centres], [scales]) = (clipper.centres.as_chunks::<D>().0, clipper.scales.as_chunks::<D>().0)
        else {
            return 0;
        };
        // Copies, so that the compiler sees that no write to a row changes them.
        let (centres, scales, limit, clip_norm): ([f64; D], [f64; D], f64, f64) =
            (*centres, *scales, clipper.limit, clipper.clip_norm);
        let inner = INNER * clip_norm * clip_norm;
        let mut number = 0;
        for group in rows.as_chunks_mut::<D>().0.as_chunks_mut::<TOGETHER>().0 {
            let (mut own, mut factors) = ([[0.0; D]; TOGETHER], [0.0; TOGETHER]);
            let (mut are_faithful, mut are_inner) = (true, true);
            unrolled!(RECORD => {
                let (values, mut row): ([f64; D], [f64; D]) = (group[RECORD], [0.0; D]);
                for column in 0..D {
                    row[column] = scaled(values[column], centres[column], scales[column], limit);
                }
                own[RECORD] = row;
                factors[RECORD] = squared_norm(&row);
            });
            for norm in &factors {
                are_faithful &= FAITHFUL.contains(norm);
                are_inner &= *norm <= inner;
            }
            if !are_faithful {
                break;
            }
            for factor in &mut factors {
                *factor = UNIT / clip_norm.max(factor.sqrt());
            }
            unrolled!(RECORD => {
                let mut row = own[RECORD];
                for value in &mut row {
                    *value = round_ties_even(*value * factors[RECORD]);
                }
                if !are_inner && squared_norm(&row) > BALL {
                    shrink_into_ball(&mut row, BALL);
                }
                group[RECORD] = row;
            });
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
