//! Sums of records with few columns, added one record at a time.
//!
//! As in `products`, entries are integers whose products add up exactly in `f64` for up to
//! [`BLOCK_ROWS`](super::products::BLOCK_ROWS) rows, in any order.

use super::{Layout, SecondMoment};

/// Most coordinates of a key whose records are added one by one: eight cache lines of 64 bytes.
const COORDINATES: usize = 64;

/// Most columns whose count, sums and products fit into [`COORDINATES`].
const COLUMNS: usize = 9;

/// Returns whether each record is added at once to all sums of its key.
pub(super) fn is_narrow(layout: Layout) -> bool {
    layout.coordinates() <= COORDINATES
}

/// Adds a record to sums in the order of a narrow layout. First moments come from its first d
/// values, products from its last d.
pub(super) fn add_record(sums: &mut [f64], record: &[f64], layout: Layout) {
    let dimension = layout.dimension;
    let (lower, second) = sums.split_at_mut(1 + dimension);
    lower[Layout::COUNT] += 1.0;
    lower[1..].iter_mut().zip(record).for_each(|(sum, value)| *sum += value);
    let row = &record[record.len() - dimension..];
    match layout.second {
        SecondMoment::None => {}
        SecondMoment::Diagonal => second.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * value),
        SecondMoment::Full => ADD_PRODUCTS[dimension](second, row),
    }
}

/// Adds the products of a row's entries to sums.
type AddProducts = fn(&mut [f64], &[f64]);

/// One branch-free loop for each number of columns.
const ADD_PRODUCTS: [AddProducts; COLUMNS + 1] = [
    add_products::<0>,
    add_products::<1>,
    add_products::<2>,
    add_products::<3>,
    add_products::<4>,
    add_products::<5>,
    add_products::<6>,
    add_products::<7>,
    add_products::<8>,
    add_products::<9>,
];

/// Adds the upper triangle of q qᵀ, row by row.
fn add_products<const D: usize>(sums: &mut [f64], row: &[f64]) {
    let (sums, row) = (&mut sums[..D * (D + 1) / 2], &row[..D]);
    let mut start = 0;
    for i in 0..D {
        for j in i..D {
            sums[start + j - i] += row[i] * row[j];
        }
        start += D - i;
    }
}
