//! Packed integers: a common width, then every integer in that many bytes. Lossless; small integers
//! cost one byte each, the widest sixteen.

use zeroize::Zeroizing;

const WIDE: usize = size_of::<i128>();

/// Encodes a width byte, then `width` little-endian two's complement bytes per value.
pub(super) fn pack(values: &[i128]) -> Zeroizing<Vec<u8>> {
    let width = common_width(values);
    let length = 1 + width * values.len();
    let mut bytes = Zeroizing::new(vec![0; length + WIDE]);
    bytes[0] = width as u8;
    for (at, value) in (1..).step_by(width).zip(values) {
        // Copying all sixteen bytes is faster; the next value overwrites those beyond the width.
        bytes[at..at + WIDE].copy_from_slice(&value.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Decodes the output of [`pack`]; `None` for any other bytes.
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

/// Returns the fewest bytes, at least one, that hold each value with its sign.
fn common_width(values: &[i128]) -> usize {
    let magnitude_bits = values.iter().fold(0, |bits, &value| bits | (value ^ (value >> 127)) as u128);
    (128 - magnitude_bits.leading_zeros() as usize) / 8 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        assert_eq!(**pack(&[1, -2, 300]), [2, 1, 0, 0xfe, 0xff, 0x2c, 1]);
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [&[][..], &[0], &[0, 1], &[17, 1], &[2, 1], &[16, 1, 2]] {
            assert_eq!(unpack(bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn integers_round_trip(values in proptest::collection::vec(any::<i128>(), 0..20), shift in 0u32..128) {
            let values: Vec<i128> = values.into_iter().map(|v| v >> shift).collect();
            prop_assert_eq!(unpack(&pack(&values)), Some(values));
        }
    }
}
