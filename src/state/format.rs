//! Byte layout of the files of a state directory: file headers, frame headers, checksums. Pure
//! functions.
//!
//! `docs/formats.md` is the specification; the constants are its table of offsets.

use crc32c::{crc32c, crc32c_append};

/// The format version in every file header. A file with any other is refused.
pub(super) const VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"hushflow";
/// Length of a file header: bytes before the first frame.
pub(super) const FILE_HEADER_LENGTH: usize = 16;
/// Length of a frame header: bytes before the payload.
pub(super) const FRAME_HEADER_LENGTH: usize = 24;
/// The hard limit on a payload in bytes: 33 million coordinates at the full sixteen bytes for sum
/// and value.
pub const MAX_PAYLOAD: u64 = 1 << 30;

/// Purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FileRole {
    PrivateLog = 1,
    PublicLog = 2,
    Checkpoint = 3,
    Anchor = 4,
    Ledger = 5,
    Enrolment = 6,
    IngestJournal = 7,
    Followed = 8,
    Entities = 9,
}

/// Frame kinds. Zero is unused, so zeros are never a frame.
pub(super) mod kind {
    pub(in crate::state) const HEADER: u8 = 1;
    pub(in crate::state) const GENERATION: u8 = 2;
    pub(in crate::state) const EPOCH: u8 = 3;
    pub(in crate::state) const RELEASE: u8 = 4;
    pub(in crate::state) const CHECKPOINT: u8 = 5;
    pub(in crate::state) const SEGMENT: u8 = 6;
    pub(in crate::state) const ANCHOR: u8 = 7;
    pub(in crate::state) const LEDGER: u8 = 8;
    pub(in crate::state) const ENROLMENT: u8 = 9;
    pub(in crate::state) const ENTITY_EPOCH: u8 = 10;
    pub(in crate::state) const FOLLOWED: u8 = 11;
    pub(in crate::state) const ENTITY_CHECKPOINT: u8 = 12;
    pub(in crate::state) const ENTITIES: u8 = 13;
    pub(in crate::state) const INGEST_SEGMENT: u8 = 16;
    pub(in crate::state) const INGEST_RECORDS: u8 = 17;
}

/// Reasons to refuse a file header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderFlaw {
    /// Torn, zero or damaged.
    Unreadable,
    /// Intact, of another version.
    Version(u16),
    /// Intact, of another role.
    Role,
}

pub(super) fn file_header(role: FileRole) -> [u8; FILE_HEADER_LENGTH] {
    let mut bytes = [0; FILE_HEADER_LENGTH];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10] = role as u8;
    let checksum = crc32c(&bytes[0..12]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Checks that these bytes are a header written by [`file_header`].
pub(super) fn check_file_header(bytes: &[u8], role: FileRole) -> Result<(), HeaderFlaw> {
    let intact = bytes.len() == FILE_HEADER_LENGTH
        && bytes[0..8] == MAGIC
        && crc32c(&bytes[0..12]).to_le_bytes() == bytes[12..16];
    if !intact {
        return Err(HeaderFlaw::Unreadable);
    }
    match u16::from_le_bytes([bytes[8], bytes[9]]) {
        VERSION if bytes == file_header(role) => Ok(()),
        VERSION => Err(HeaderFlaw::Role),
        other => Err(HeaderFlaw::Version(other)),
    }
}

/// Fields before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// Bytes of payload.
    pub(super) length: u32,
    /// One of [`kind`].
    pub(super) kind: u8,
    /// The file was known to be on disk up to this length when the frame was written.
    pub(super) synced_length: u64,
    /// CRC-32C of the payload.
    pub(super) payload_checksum: u32,
}

impl FrameHeader {
    /// Builds the header of `payload`. The caller has checked its length against [`MAX_PAYLOAD`].
    pub(super) fn of(kind: u8, synced_length: u64, payload: &[u8]) -> Self {
        Self::of_parts(kind, synced_length, &[payload])
    }

    /// Builds the header of a payload given in consecutive parts.
    pub(super) fn of_parts(kind: u8, synced_length: u64, payload: &[&[u8]]) -> Self {
        let length = payload.iter().map(|part| part.len()).sum::<usize>();
        let length = u32::try_from(length).expect("payloads are encoded under MAX_PAYLOAD");
        let payload_checksum = payload.iter().fold(0, |before, part| crc32c_append(before, part));
        Self { length, kind, synced_length, payload_checksum }
    }

    pub(super) fn to_bytes(self) -> [u8; FRAME_HEADER_LENGTH] {
        let mut bytes = [0; FRAME_HEADER_LENGTH];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4] = self.kind;
        bytes[8..16].copy_from_slice(&self.synced_length.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.payload_checksum.to_le_bytes());
        let checksum = crc32c(&bytes[0..20]);
        bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses the header at the start of `bytes`; `None` unless it is intact.
    pub(super) fn from_bytes(bytes: &[u8; FRAME_HEADER_LENGTH]) -> Option<Self> {
        let [l0, l1, l2, l3, kind, 0, 0, 0, s0, s1, s2, s3, s4, s5, s6, s7, p0, p1, p2, p3, checksum @ ..] =
            *bytes
        else {
            return None;
        };
        let header = Self {
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            kind,
            synced_length: u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            payload_checksum: u32::from_le_bytes([p0, p1, p2, p3]),
        };
        let plausible = kind != 0 && u64::from(header.length) <= MAX_PAYLOAD;
        (plausible && crc32c(&bytes[0..20]).to_le_bytes() == checksum).then_some(header)
    }

    /// Bytes of the whole frame.
    pub(super) fn frame_length(self) -> u64 {
        FRAME_HEADER_LENGTH as u64 + u64::from(self.length)
    }

    pub(super) fn accepts(self, payload: &[u8]) -> bool {
        #[cfg(test)]
        if planted::SKIP_CHECKSUMS.get() {
            return true;
        }
        payload.len() == self.length as usize && crc32c(payload) == self.payload_checksum
    }
}

/// A bug that a test enables for its own thread.
#[cfg(test)]
pub(super) mod planted {
    use std::cell::Cell;

    thread_local! {
        pub(in crate::state) static SKIP_CHECKSUMS: Cell<bool> = const { Cell::new(false) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc_32c() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283, "the check value of the Castagnoli polynomial");
    }

    #[test]
    fn a_file_header_has_these_bytes() {
        let bytes = file_header(FileRole::PublicLog);
        assert_eq!(&bytes[..12], b"hushflow\x01\x00\x02\x00");
        assert_eq!(bytes[12..], crc32c(&bytes[..12]).to_le_bytes());
    }

    #[test]
    fn a_file_header_is_accepted_for_its_role_and_version_only() {
        let good = file_header(FileRole::PrivateLog);
        assert_eq!(check_file_header(&good, FileRole::PrivateLog), Ok(()));
        assert_eq!(check_file_header(&good, FileRole::PublicLog), Err(HeaderFlaw::Role));
        assert_eq!(check_file_header(&good[..15], FileRole::PrivateLog), Err(HeaderFlaw::Unreadable));
        for version in [0, 2, 256] {
            let mut other = good;
            other[8..10].copy_from_slice(&u16::to_le_bytes(version));
            let checksum = crc32c(&other[..12]).to_le_bytes();
            other[12..].copy_from_slice(&checksum);
            assert_eq!(check_file_header(&other, FileRole::PrivateLog), Err(HeaderFlaw::Version(version)));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_detected() {
        let good = file_header(FileRole::PrivateLog);
        for bit in 0..8 * FILE_HEADER_LENGTH {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                check_file_header(&bad, FileRole::PrivateLog),
                Err(HeaderFlaw::Unreadable),
                "bit {bit}"
            );
        }
        let good = FrameHeader::of(kind::EPOCH, 40, b"payload").to_bytes();
        for bit in 0..8 * FRAME_HEADER_LENGTH {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::from_bytes(&bad), None, "bit {bit}");
        }
    }

    #[test]
    fn a_frame_header_round_trips_and_zeros_are_refused() {
        let header = FrameHeader::of(kind::RELEASE, u64::MAX, b"123456789");
        assert_eq!(FrameHeader::from_bytes(&header.to_bytes()), Some(header));
        assert!(
            header.accepts(b"123456789") && !header.accepts(b"123456788") && !header.accepts(b"12345678")
        );
        assert_eq!(header.payload_checksum, 0xE306_9283);
        assert_eq!(FrameHeader::from_bytes(&[0; FRAME_HEADER_LENGTH]), None);
    }
}
