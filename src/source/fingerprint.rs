//! Fingerprints of the part of a file that has been read, recorded with positions.
//!
//! A resumed run continues at the same byte. If rows before that byte have moved, they would count
//! twice or never, and the guarantee does not cover a row that counts twice. So each position is
//! stored with a checksum of the bytes before it, and a run refuses to resume if the checksum
//! differs. A packed file or a Parquet file cannot be compared up to a position, so the whole file
//! must be the same. Its length is compared, and its end, where both formats have their checksums
//! or offsets.
//!
//! The window detects rows that were inserted, removed or rewritten with another length, other
//! files, and a changed order of files. It does not detect a change that leaves all later bytes at
//! their offsets, because such a change moves no row.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use zeroize::Zeroizing;

use crate::connect::{Origin, ReadExtent, ReadPart};
use crate::state::Position;

/// Largest number of bytes before a position that a fingerprint covers.
const WINDOW: usize = 4096;

/// Number of bytes that are kept: enough that few are moved when the oldest are dropped.
const KEPT: usize = 16 * WINDOW;

/// Computes fingerprints for the positions of one source.
#[derive(Default)]
pub(super) struct Fingerprints {
    /// The file that was compared last.
    file: Option<ComparedFile>,
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
        if self.file.as_ref().is_none_or(|file| file.part != part) {
            // A pipe can't be read again.
            path.metadata().ok().filter(|found| found.is_file())?;
            self.file = Some(ComparedFile::new(part, File::open(path).ok()?));
        }
        let compared = self.file.as_mut()?;
        let end = match extent {
            ReadExtent::UpTo(end) => end,
            ReadExtent::Whole => compared.file.metadata().ok()?.len(),
        };
        let fingerprint = compared.fingerprint(end);
        if fingerprint.is_none() {
            compared.forget();
        }
        fingerprint
    }
}

/// An open file, with the bytes before the last position.
///
/// Every epoch has a fingerprint, so they must be cheap: each byte is read once and enters only two
/// checksums. Let P(x) be the checksum of the bytes from the start of the comparison up to x, and Z
/// the effect of a window of zeros on a checksum. Checksums are linear. So a window from s to e has
/// the checksum P(e) ⊕ Z(P(s)), and the fingerprint, which begins with e, is Z(crc(e) ⊕ P(s)) ⊕
/// P(e).
struct ComparedFile {
    part: u32,
    file: File,
    /// The last bytes before `end`. Private.
    bytes: Zeroizing<Vec<u8>>,
    /// e: the last position.
    end: u64,
    /// P(e).
    before_end: u32,
    /// P(s), where s is the start of the window before e.
    before_window: u32,
}

impl ComparedFile {
    fn new(part: u32, file: File) -> Self {
        let bytes = Zeroizing::new(Vec::with_capacity(KEPT + WINDOW));
        Self { part, file, bytes, end: 0, before_end: 0, before_window: 0 }
    }

    /// Makes the comparison start anew at the next position.
    fn forget(&mut self) {
        self.bytes.clear();
    }

    /// Returns the fingerprint of the bytes before `end`; `None` if they can't be read.
    fn fingerprint(&mut self, end: u64) -> Option<u32> {
        let more = end.checked_sub(self.end).and_then(|more| usize::try_from(more).ok());
        let window = match more.filter(|&more| !self.bytes.is_empty() && more <= WINDOW) {
            Some(more) => {
                let old = self.bytes.len().min(WINDOW);
                self.read(self.end, more)?;
                // The bytes that leave the window.
                let window = (old + more).min(WINDOW);
                let left = self.bytes.len() - (old + more)..self.bytes.len() - window;
                self.before_window = crc32c::crc32c_append(self.before_window, &self.bytes[left]);
                window
            }
            None => {
                self.forget();
                (self.before_end, self.before_window) = (0, 0);
                let window = end.min(WINDOW as u64) as usize;
                self.read(end - window as u64, window)?;
                window
            }
        };
        self.end = end;
        let of_end = crc32c::crc32c(&end.to_le_bytes());
        Some(match window {
            WINDOW => AFTER_WINDOW.of(of_end ^ self.before_window) ^ self.before_end,
            _ => crc32c::crc32c_append(of_end, &self.bytes[self.bytes.len() - window..]),
        })
    }

    /// Appends bytes from this offset.
    fn read(&mut self, offset: u64, length: usize) -> Option<()> {
        if self.bytes.len() + length > KEPT + WINDOW {
            let dropped = self.bytes.len() - WINDOW;
            self.bytes.copy_within(dropped.., 0);
            self.bytes.truncate(WINDOW);
        }
        let known = self.bytes.len();
        self.bytes.resize(known + length, 0);
        self.file.read_exact_at(&mut self.bytes[known..], offset).ok()?;
        self.before_end = crc32c::crc32c_append(self.before_end, &self.bytes[known..]);
        Some(())
    }
}

/// Z, by bytes of the checksum.
struct ZeroWindow([[u32; 256]; 4]);

static AFTER_WINDOW: LazyLock<ZeroWindow> = LazyLock::new(|| {
    let of_bits: [u32; 32] = std::array::from_fn(|bit| crc32c::crc32c_combine(1 << bit, 0, WINDOW));
    let after = |byte: usize, value: usize| {
        let bits = of_bits[8 * byte..][..8].iter().enumerate().filter(|(bit, _)| value >> bit & 1 == 1);
        bits.fold(0, |all, (_, of_bit)| all ^ of_bit)
    };
    ZeroWindow(std::array::from_fn(|byte| std::array::from_fn(|value| after(byte, value))))
});

impl ZeroWindow {
    fn of(&self, checksum: u32) -> u32 {
        let bytes = checksum.to_le_bytes();
        self.0.iter().zip(bytes).fold(0, |all, (of_byte, value)| all ^ of_byte[usize::from(value)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// The format's own definition.
    fn expected(bytes: &[u8], end: usize) -> u32 {
        let window = &bytes[end.saturating_sub(WINDOW)..end];
        crc32c::crc32c_append(crc32c::crc32c(&(end as u64).to_le_bytes()), window)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Positions that move forward by little or much, or back.
        #[test]
        fn fingerprints_are_those_of_the_format(
            seed in any::<u8>(),
            steps in prop::collection::vec(prop_oneof![8 => 0..90i64, 2 => 3000..5000i64, 1 => -20_000..20_000i64], 1..200),
        ) {
            let bytes: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            let (mut compared, mut end) = (ComparedFile::new(0, file), 0i64);
            for step in steps {
                end = (end + step).clamp(0, bytes.len() as i64);
                prop_assert_eq!(compared.fingerprint(end as u64), Some(expected(&bytes, end as usize)), "{}", end);
                prop_assert!(compared.bytes.capacity() == KEPT + WINDOW, "bytes were moved");
            }
            prop_assert_eq!(compared.fingerprint(bytes.len() as u64 + 1), None);
        }
    }
}
