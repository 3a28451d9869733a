//! The sizes in a page's header, read before the decoder allocates memory for them.
//!
//! A header is a structure in Thrift's compact protocol
//! (`thrift/doc/specs/thrift-compact-protocol.md`, with the fields of `parquet.thrift`). The
//! decoder does not check the types of fields that it knows. So a header whose fields have other
//! types, or occur twice, is refused: both readers find the same sizes.

use super::packed::{length, number, signed, take};

const INTEGER: u8 = 5;
const STRUCTURE: u8 = 12;

/// Nesting of structures: a header, its page's own header, and statistics.
const DEPTH: usize = 4;

/// A page's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// Bytes of the header.
    pub(super) length: usize,
    /// Bytes of the page once unpacked.
    pub(super) unpacked: usize,
    /// Bytes of the page in the file.
    pub(super) packed: usize,
    /// Bytes of the page's levels that are never packed.
    pub(super) levels: usize,
}

impl PageHeader {
    /// Reads the header at the start of `bytes`; `None` if it is malformed or incomplete.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (mut rest, mut sizes, mut levels) = (bytes, [None; 2], 0_usize);
        let mut seen = 0_u16;
        fields(&mut rest, |id, kind, rest| {
            let expected = match id {
                1..=4 => INTEGER,
                5..=8 => STRUCTURE,
                _ => return skip(rest, kind, DEPTH),
            };
            if kind != expected || seen & 1 << id != 0 {
                return None;
            }
            seen |= 1 << id;
            match id {
                2 | 3 => sizes[id as usize - 2] = Some(usize::try_from(integer(rest)?).ok()?),
                1 | 4 => drop(integer(rest)?),
                _ => fields(rest, |inner, kind, rest| {
                    if !is_known(id, inner, kind) {
                        return None;
                    }
                    if (id, kind) != (8, INTEGER) || !matches!(inner, 5 | 6) {
                        return skip(rest, kind, DEPTH - 1);
                    }
                    levels = levels.checked_add(usize::try_from(integer(rest)?).ok()?)?;
                    Some(())
                })?,
            }
            Some(())
        })?;
        let [unpacked, packed] = sizes;
        Some(PageHeader { length: bytes.len() - rest.len(), unpacked: unpacked?, packed: packed?, levels })
    }
}

/// Returns whether a field of a data page's header (5), a dictionary's (7) or a newer data page's
/// (8) has the right type.
fn is_known(page: i16, field: i16, kind: u8) -> bool {
    match (page, field) {
        (5, 1..=4) | (7, 1..=2) | (8, 1..=6) => kind == INTEGER,
        (5, 5) | (8, 8) => kind == STRUCTURE,
        (7, 3) | (8, 7) => matches!(kind, 1 | 2),
        _ => true,
    }
}

/// Takes the fields of a structure off the front. Calls `each` with a field's number and type to
/// take its value.
fn fields(bytes: &mut &[u8], mut each: impl FnMut(i16, u8, &mut &[u8]) -> Option<()>) -> Option<()> {
    let mut id = 0_i16;
    loop {
        let &first = take(bytes, 1)?.first()?;
        let kind = first & 0x0f;
        if kind == 0 {
            return Some(());
        }
        id = match i16::from(first >> 4) {
            0 => i16::try_from(signed(bytes)?).ok()?,
            step => id.checked_add(step)?,
        };
        each(id, kind, bytes)?;
    }
}

fn integer(bytes: &mut &[u8]) -> Option<i32> {
    i32::try_from(signed(bytes)?).ok()
}

/// Takes a value off the front. No header has lists or maps.
fn skip(bytes: &mut &[u8], kind: u8, depth: usize) -> Option<()> {
    match kind {
        1 | 2 => Some(()),
        3 => take(bytes, 1).map(drop),
        4..=6 => number(bytes).map(drop),
        7 => take(bytes, 8).map(drop),
        8 => {
            let length = length(bytes)?;
            take(bytes, length).map(drop)
        }
        STRUCTURE if depth > 0 => fields(bytes, |_, kind, bytes| skip(bytes, kind, depth - 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data page of 300 bytes, 100 in the file, with three rows and statistics.
    const DATA: &[u8] = &[
        0x15, 0, 0x15, 0xd8, 4, 0x15, 0xc8, 1, 0x2c, 0x15, 6, 0x15, 0, 0x15, 6, 0x15, 6, 0x1c, 0x18, 2, 7, 7,
        0, 0, 0,
    ];

    #[test]
    fn sizes_are_read() {
        let header = PageHeader { length: DATA.len(), unpacked: 300, packed: 100, levels: 0 };
        assert_eq!(PageHeader::read(DATA), Some(header));
        assert_eq!(PageHeader::read(&[DATA, &[1, 2, 3]].concat()), Some(header), "and what follows is not");
        for length in 0..DATA.len() {
            assert_eq!(PageHeader::read(&DATA[..length]), None, "cut to {length}");
        }
        let newer = [
            0x15, 6, 0x15, 20, 0x15, 10, 0x5c, 0x15, 6, 0x15, 0, 0x15, 6, 0x15, 0, 0x15, 4, 0x15, 2, 0x11, 0,
            0,
        ];
        let header = PageHeader { length: newer.len(), unpacked: 10, packed: 5, levels: 3 };
        assert_eq!(PageHeader::read(&newer), Some(header));
    }

    #[test]
    fn ambiguous_headers_are_refused() {
        for bytes in [
            // The size again, with its field number written in full.
            &[0x15, 0, 0x15, 2, 0x15, 2, 0x05, 4, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0][..],
            // A size that is not an integer, is negative, or has too many bits.
            &[0x15, 0, 0x18, 2, 0x15, 2, 0],
            &[0x15, 0, 0x15, 1, 0x15, 2, 0],
            &[0x15, 0, 0x15, 0x80, 0x80, 0x80, 0x80, 0x20, 0x15, 2, 0],
            // A field number that has too many bits.
            &[0x15, 0, 0x15, 2, 0x15, 2, 0x05, 0x84, 0x80, 8, 2, 0],
            // A count of values in letters, and a list.
            &[0x15, 0, 0x15, 2, 0x15, 2, 0x2c, 0x18, 0, 0, 0],
            &[0x15, 0, 0x15, 2, 0x15, 2, 0x69, 0, 0],
        ] {
            assert_eq!(PageHeader::read(bytes), None, "{bytes:?}");
        }
        let nested = [&[0x15, 0, 0x15, 2, 0x15, 2, 0x6c][..], &[0x1c; 1000], &[0; 1001]].concat();
        assert_eq!(PageHeader::read(&nested), None);
    }
}
