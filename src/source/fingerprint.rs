//! Fingerprints of the part of a file that has been read, recorded with positions.
//!
//! A resumed run continues at the same byte. If rows before that byte have moved, they would count
//! twice or never, and the guarantee does not cover a row that counts twice. So each position comes
//! with a checksum of the bytes before it, and a run refuses to resume where it differs. A file
//! that cannot be compared up to a position (packed, Parquet) must be the same as a whole: its
//! length and its end are compared, where both formats keep their checksums or offsets.
//!
//! The window detects rows that were inserted, removed or rewritten with another length, other
//! files, and a changed order of files. It does not detect a change that leaves all later bytes at
//! their offsets, because such a change moves no row.

use std::fs::File;
use std::os::unix::fs::FileExt;

use zeroize::Zeroizing;

use crate::connect::{Origin, ReadExtent, ReadPart};
use crate::state::Position;

/// Largest number of bytes before a position that a fingerprint covers.
const WINDOW: u64 = 4096;

/// Computes fingerprints for the positions of one source.
#[derive(Default)]
pub(super) struct Fingerprints {
    /// The file that was compared last, open, with its part number.
    file: Option<(u32, File)>,
    /// The last result: many epochs may share a position.
    last: Option<(Position, Option<u32>)>,
}

impl Fingerprints {
    /// Returns the fingerprint of the bytes read before a position; `None` if nothing was read, or
    /// if the source has no files that can be compared.
    pub(super) fn before(&mut self, origin: &dyn Origin, position: Position) -> Option<u32> {
        if let Some((last, fingerprint)) = self.last
            && last == position
        {
            return fingerprint;
        }
        let fingerprint = origin.read_before(position).and_then(|part| self.compute(part));
        self.last = Some((position, fingerprint));
        fingerprint
    }

    /// An unreadable file has no fingerprint; opening it reports why.
    fn compute(&mut self, ReadPart { part, path, extent }: ReadPart) -> Option<u32> {
        if self.file.as_ref().is_none_or(|&(open, _)| open != part) {
            self.file = Some((part, File::open(path).ok()?));
        }
        let (_, file) = self.file.as_ref()?;
        let end = match extent {
            ReadExtent::UpTo(end) => end,
            ReadExtent::Whole => file.metadata().ok()?.len(),
        };
        let start = end.saturating_sub(WINDOW);
        let mut window = Zeroizing::new(vec![0; (end - start) as usize]);
        file.read_exact_at(&mut window, start).ok()?;
        Some(crc32c::crc32c_append(crc32c::crc32c(&end.to_le_bytes()), &window))
    }
}
