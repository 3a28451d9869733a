//! Packed integers: a common width, then every integer in that many bytes. Lossless; small integers
//! cost one byte each, the widest sixteen.

use hushflow_mechanism::moments::IntegerRow;

const WIDE: usize = size_of::<i128>();

/// Spare bytes that a buffer needs after the packed integers, so that it does not grow.
pub(super) const SLACK: usize = WIDE;

/// The fewest bytes, at least one, that hold each of some integers with its sign, and the number of
/// integers.
#[derive(Clone, Copy)]
pub(super) struct PackedWidth {
    width: usize,
    integers: usize,
}

impl PackedWidth {
    pub(super) fn of<'a>(rows: impl Iterator<Item = IntegerRow<'a>>) -> Self {
        let (mut narrow, mut wide, mut integers) = (0, 0, 0);
        for row in rows {
            integers += row.len();
            match row {
                IntegerRow::Narrow(row) => {
                    narrow = row.iter().fold(narrow, |bits, &value| bits | (value ^ (value >> 63)) as u64);
                }
                IntegerRow::Wide(row) => {
                    wide = row.iter().fold(wide, |bits, &value| bits | (value ^ (value >> 127)) as u128);
                }
            }
        }
        let bits = wide | u128::from(narrow);
        Self { width: (128 - bits.leading_zeros() as usize) / 8 + 1, integers }
    }

    /// Bytes of the packed integers.
    pub(super) fn length(self) -> usize {
        1 + self.width * self.integers
    }

    /// Appends a width byte, then `width` little-endian two's complement bytes per integer.
    pub(super) fn pack<'a>(self, rows: impl Iterator<Item = IntegerRow<'a>>, bytes: &mut Vec<u8>) {
        let (mut at, end) = (bytes.len() + 1, bytes.len() + self.length());
        bytes.push(self.width as u8);
        bytes.resize(end + SLACK, 0);
        // Copying all bytes is faster; the next integer overwrites those beyond the width.
        for row in rows {
            let length = row.len() * self.width;
            let target = &mut bytes[at..at + length + SLACK];
            match row {
                IntegerRow::Narrow(row) if self.width <= size_of::<i64>() => {
                    for (start, integer) in (0..).step_by(self.width).zip(row) {
                        target[start..start + size_of::<i64>()].copy_from_slice(&integer.to_le_bytes());
                    }
                }
                row => {
                    for (start, integer) in (0..).step_by(self.width).zip(row.iter()) {
                        target[start..start + WIDE].copy_from_slice(&integer.to_le_bytes());
                    }
                }
            }
            at += length;
        }
        bytes.truncate(end);
    }
}

/// Decodes [packed](PackedWidth::pack) integers; `None` for any other bytes.
pub(super) fn unpack(bytes: &[u8]) -> Option<Vec<i128>> {
    let (&width, packed) = bytes.split_first()?;
    let width = usize::from(width);
    if !(1..=WIDE).contains(&width) || packed.len() % width != 0 {
        return None;
    }
    // Filling from the top and shifting down extends the sign.
    let widen = |narrow: &[u8]| {
        let mut wide = [0; WIDE];
        wide[WIDE - width..].copy_from_slice(narrow);
        i128::from_le_bytes(wide) >> (8 * (WIDE - width))
    };
    Some(packed.chunks_exact(width).map(widen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pack(integers: &[i128]) -> Vec<u8> {
        let row = || [IntegerRow::Wide(integers)].into_iter();
        let mut bytes = Vec::new();
        PackedWidth::of(row()).pack(row(), &mut bytes);
        bytes
    }

    #[test]
    fn widths_are_the_smallest_that_fit() {
        let check = |values: &[i128], width: u8| {
            let bytes = pack(values);
            assert_eq!((bytes[0], bytes.len()), (width, 1 + values.len() * usize::from(width)), "{values:?}");
            assert_eq!(unpack(&bytes).as_deref(), Some(values));
        };
        check(&[], 1);
        check(&[0, -1, 127, -128], 1);
        check(&[128], 2);
        check(&[-129], 2);
        check(&[1 << 39], 6);
        check(&[-(1 << 39)], 5);
        check(&[i128::MAX, i128::MIN, 0], 16);
        check(&[(1 << 119) - 1], 15);
        check(&[1 << 119], 16);
    }

    #[test]
    fn packed_bytes_match_the_format() {
        assert_eq!(pack(&[1, -2, 300]), [2, 1, 0, 0xfe, 0xff, 0x2c, 1]);
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [&[][..], &[0], &[0, 1], &[17, 1], &[2, 1], &[16, 1, 2]] {
            assert_eq!(unpack(bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        /// Rows in 64 bits and in 128, in any order.
        #[test]
        fn rows_of_either_width_are_packed_alike(values in proptest::collection::vec(any::<i64>(), 0..20), shift in 0u32..64, cut in 0..20usize, wide in any::<i128>(), bits in 0u32..128) {
            let narrow: Vec<i64> = values.into_iter().map(|v| v >> shift).collect();
            let other = [wide >> bits];
            let (one, two) = narrow.split_at(cut.min(narrow.len()));
            let rows = [IntegerRow::Narrow(one), IntegerRow::Wide(&other), IntegerRow::Narrow(two)];
            let all: Vec<i128> = rows.iter().flat_map(|row| row.iter()).collect();
            let mut bytes = vec![9];
            PackedWidth::of(rows.into_iter()).pack(rows.into_iter(), &mut bytes);
            prop_assert_eq!(&bytes[1..], pack(&all));
        }

        #[test]
        fn integers_round_trip(values in proptest::collection::vec(any::<i128>(), 0..20), shift in 0u32..128) {
            let values: Vec<i128> = values.into_iter().map(|v| v >> shift).collect();
            prop_assert_eq!(unpack(&pack(&values)), Some(values));
        }
    }
}
