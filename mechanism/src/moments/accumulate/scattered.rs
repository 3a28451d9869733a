//! Adds the rows of many keys in one pass: each row to the sums of its key, a register or two at a
//! time.
//!
//! A row adds x to its key's first moments and xᵢ·x to row i of its products, also below the
//! diagonal: whole registers are faster than half of the products. The sums of a key take D + 1
//! blocks of eight numbers, so those of a hundred keys stay in the nearest caches. They are exact
//! for up to [`BLOCK_ROWS`] rows of a key, and are moved to the sums of the keys after each batch.

use super::PENDING_ROWS;
use crate::moments::products::{BLOCK_ROWS, LANES};
use crate::registers::{Lanes, in_widest, unrolled};

/// Sums of the rows of one batch. All are zero between batches.
#[derive(Default)]
pub(super) struct ScatteredRows {
    /// D + 1 blocks for each key, from key 0 on: Σx, and the rows of Σxxᵀ.
    blocks: Vec<[f64; LANES]>,
    /// The number of rows of each key.
    counts: Vec<usize>,
}

/// The sums of a key: its number of rows, Σx, and the rows of Σxxᵀ.
pub(super) struct ScatteredKey<'a> {
    pub(super) key: u32,
    pub(super) count: usize,
    pub(super) first: &'a [f64],
    products: &'a [[f64; LANES]],
}

impl ScatteredKey<'_> {
    /// Returns the rows of the upper triangle of the products.
    pub(super) fn triangle(&self) -> impl Iterator<Item = &[f64]> {
        let dimension = self.products.len();
        self.products.iter().enumerate().map(move |(i, row)| &row[i..dimension])
    }
}

impl ScatteredRows {
    /// Adds rows of `width` values; `keys` has the key of each. Gives the sums of every key that
    /// has rows, perhaps several times. Returns false, and adds nothing, if another way is faster
    /// because rows are wide, or keys have few rows.
    pub(super) fn add(
        &mut self,
        keys: &[u32],
        rows: &[f64],
        width: usize,
        mut give: impl FnMut(ScatteredKey<'_>),
    ) -> bool {
        let number = keys.iter().fold(0, |most, &key| most.max(key)) as usize + 1;
        if !(1..=LANES).contains(&width) || number.saturating_mul(PENDING_ROWS) > keys.len() {
            return false;
        }
        self.counts.resize(number, 0);
        self.blocks.resize(number * (width + 1), [0.0; LANES]);
        // If no key has more rows than a block can hold, all rows are one block.
        keys.iter().for_each(|&key| self.counts[key as usize] += 1);
        let are_few = self.counts.iter().all(|&count| count <= BLOCK_ROWS);
        if are_few {
            self.add_block(keys, rows, width, &mut give);
        } else {
            self.counts.fill(0);
            for (keys, rows) in keys.chunks(BLOCK_ROWS).zip(rows.chunks(BLOCK_ROWS * width)) {
                keys.iter().for_each(|&key| self.counts[key as usize] += 1);
                self.add_block(keys, rows, width, &mut give);
            }
        }
        true
    }

    /// Adds rows that have been counted, gives the sums, and clears them.
    fn add_block(
        &mut self,
        keys: &[u32],
        rows: &[f64],
        width: usize,
        give: &mut impl FnMut(ScatteredKey<'_>),
    ) {
        let blocks = &mut self.blocks[..];
        match width {
            1 => in_widest(AddRows { keys, rows: rows.as_chunks::<1>().0, blocks }),
            2 => in_widest(AddRows { keys, rows: rows.as_chunks::<2>().0, blocks }),
            3 => in_widest(AddRows { keys, rows: rows.as_chunks::<3>().0, blocks }),
            4 => in_widest(AddRows { keys, rows: rows.as_chunks::<4>().0, blocks }),
            5 => in_widest(AddRows { keys, rows: rows.as_chunks::<5>().0, blocks }),
            6 => in_widest(AddRows { keys, rows: rows.as_chunks::<6>().0, blocks }),
            7 => in_widest(AddRows { keys, rows: rows.as_chunks::<7>().0, blocks }),
            _ => in_widest(AddRows { keys, rows: rows.as_chunks::<LANES>().0, blocks }),
        }
        let of_keys = self.blocks.chunks_exact_mut(width + 1).zip(&mut self.counts);
        for (key, (blocks, count)) in (0..).zip(of_keys).filter(|(_, (_, count))| **count > 0) {
            if let [first, products @ ..] = &*blocks {
                give(ScatteredKey { key, count: *count, first: &first[..width], products });
            }
            blocks.fill([0.0; LANES]);
            *count = 0;
        }
    }
}

struct AddRows<'a, const D: usize> {
    keys: &'a [u32],
    rows: &'a [[f64; D]],
    blocks: &'a mut [[f64; LANES]],
}

impl<const D: usize> Lanes for AddRows<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { keys, rows, blocks } = self;
        let rows = &rows[..keys.len()];
        for position in 0..keys.len() {
            let (row, mut lanes): ([f64; D], _) = (rows[position], [0.0; LANES]);
            lanes[..D].copy_from_slice(&row);
            let start = (keys[position] as usize).wrapping_mul(D + 1);
            let Some([first, products @ ..]) = blocks.get_mut(start..) else { continue };
            let Some(products) = products.first_chunk_mut::<D>() else { continue };
            for lane in 0..LANES {
                first[lane] += lanes[lane];
            }
            unrolled!(COLUMN => {
                if COLUMN < D {
                    let mut sums: [f64; LANES] = products[COLUMN];
                    for lane in 0..LANES {
                        sums[lane] += row[COLUMN] * lanes[lane];
                    }
                    products[COLUMN] = sums;
                }
            });
        }
    }
}
