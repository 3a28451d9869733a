//! Unpacks integers as Parquet packs them
//! (`parquet.apache.org/docs/file-format/data-pages/encodings`): runs of levels, and deltas.
//! Malformed input gives `None`, and memory is allocated only for the number of values that a page
//! states.

/// Takes `count` bytes off the front.
pub(super) fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(front)
}

/// Takes a number in groups of seven bits, least significant first, off the front.
pub(super) fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..70).step_by(7) {
        let &byte = take(bytes, 1)?.first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Takes a signed number, whose last bit is the sign.
pub(super) fn signed(bytes: &mut &[u8]) -> Option<i64> {
    let number = number(bytes)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

pub(super) fn length(bytes: &mut &[u8]) -> Option<usize> {
    usize::try_from(number(bytes)?).ok()
}

/// Returns the `at`-th of numbers of `width` bits, at most 64, least significant bit first.
fn unpacked(packed: &[u8], at: usize, width: usize) -> u64 {
    let (byte, shift) = (at * width / 8, at * width % 8);
    let end = packed.len().min(byte + 9);
    let mut window = [0; 16];
    window[..end - byte].copy_from_slice(&packed[byte..end]);
    (u128::from_le_bytes(window) >> shift & ((1 << width) - 1)) as u64
}

/// Returns how many of `values` values are present: those with level `most`, the highest level.
pub(super) fn defined(mut levels: &[u8], most: u16, values: usize) -> Option<usize> {
    let width = (u16::BITS - most.leading_zeros()) as usize;
    let (mut left, mut defined) = (values, 0);
    while left > 0 {
        let header = number(&mut levels)?;
        let length = usize::try_from(header >> 1).ok()?;
        if header & 1 == 0 {
            let run = length.min(left);
            let level = unpacked(take(&mut levels, width.div_ceil(8))?, 0, 8 * width.div_ceil(8));
            defined += if level == u64::from(most) { run } else { 0 };
            left -= run;
            if level > u64::from(most) || run == 0 {
                return None;
            }
        } else {
            let packed = take(&mut levels, length.checked_mul(width)?)?;
            let run = (8 * length).min(left);
            for at in 0..run {
                let level = unpacked(packed, at, width);
                defined += usize::from(level == u64::from(most));
                if level > u64::from(most) {
                    return None;
                }
            }
            left -= run;
        }
    }
    Some(defined)
}

/// Takes delta-packed integers off the front, at most `most`.
pub(super) fn deltas(bytes: &mut &[u8], most: usize) -> Option<Vec<i64>> {
    let (block, parts, count) = (length(bytes)?, length(bytes)?, length(bytes)?);
    let mut value = signed(bytes)?;
    let part = block.checked_div(parts)?;
    if count > most || part == 0 || !part.is_multiple_of(32) || part * parts != block {
        return None;
    }
    let mut values = Vec::with_capacity(count);
    values.extend((count > 0).then_some(value));
    while values.len() < count {
        let least = signed(bytes)?;
        for &width in take(bytes, parts)? {
            // After the last value, the remaining parts have only widths.
            if values.len() == count {
                break;
            }
            let width = usize::from(width);
            if width > 64 {
                return None;
            }
            let packed = take(bytes, width.checked_mul(part / 8)?)?;
            for at in 0..part.min(count - values.len()) {
                let delta = least.wrapping_add(unpacked(packed, at, width) as i64);
                value = value.wrapping_add(delta);
                values.push(value);
            }
        }
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_counted() {
        let check = |levels: &[u8], most, values, expected| {
            assert_eq!(defined(levels, most, values), expected, "{levels:?}, {most}, {values}");
        };
        check(&[20, 1], 1, 10, Some(10));
        check(&[20, 0, 4, 1], 1, 12, Some(2));
        check(&[3, 0b1010_0110], 1, 8, Some(4));
        check(&[3, 0b1010_0110], 1, 3, Some(2));
        check(&[5, 0b1010_0110, 0xff], 1, 16, Some(12));
        check(&[3, 0b1001_0010, 0b0000_0001], 2, 5, Some(2));
        check(&[], 1, 0, Some(0));
        for damaged in
            [&[][..], &[20], &[20, 2], &[0, 1], &[3], &[0xff; 12], &[0xff, 0xff, 0xff, 0xff, 0x0f, 1]]
        {
            check(damaged, 1, 11, None);
        }
        check(&[3, 0xff, 0xff], 2, 5, None);
    }

    #[test]
    fn deltas_are_added_up() {
        // Blocks of 128 in four parts, five values from 7: the deltas 1, 0, 2, 1, with minimum 0
        // and two bits each.
        let mut bytes: &[u8] = &[0x80, 1, 4, 5, 14, 0, 2, 9, 0, 0, 0b0110_0001, 0, 0, 0, 0, 0, 0, 0, 42];
        let whole = bytes;
        assert_eq!(deltas(&mut bytes, 5), Some(vec![7, 8, 8, 10, 11]));
        assert_eq!(bytes, [42]);
        assert_eq!(deltas(&mut &*whole, 4), None, "more than there are");
        for length in 0..whole.len() - 1 {
            assert_eq!(deltas(&mut &whole[..length], 5), None, "cut to {length}");
        }
        let mut wide = whole.to_vec();
        wide[6] = 65;
        assert_eq!(deltas(&mut &wide[..], 5), None);
        for (at, byte) in [(2, 0), (2, 3), (1, 0), (3, 0xff)] {
            let mut bad = whole.to_vec();
            bad[at] = byte;
            assert_eq!(deltas(&mut &bad[..], 5), None, "{at}");
        }
        assert_eq!(deltas(&mut &[0x80, 1, 4, 0, 14][..], 5), Some(vec![]));
    }

    #[test]
    fn numbers_wrap_like_those_of_the_writer() {
        let mut bytes = vec![0x80, 1, 4, 2];
        bytes.extend([0xff; 9].iter().chain(&[1]));
        bytes.extend([1, 64, 0, 0, 0]);
        bytes.extend([0xff; 256]);
        assert_eq!(deltas(&mut &bytes[..], 2), Some(vec![i64::MIN, i64::MAX - 1]));
    }
}
