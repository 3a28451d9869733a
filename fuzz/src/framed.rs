//! Files of frames whose checksums are right whatever the input says, so that what stands behind the checksums is reached.
//!
//! An input is a list of frames: two bytes of length, one of kind, one of synced length in units of eight bytes, a payload.

/// The format version that the project reads.
pub const VERSION: u16 = 1;

const FILE_HEADER: usize = 16;
const FRAME_HEADER: usize = 24;

/// The file that an input stands for.
pub fn file(role: u8, version: u16, mut input: &[u8]) -> Vec<u8> {
    let mut file = b"hushflow".to_vec();
    file.extend(version.to_le_bytes());
    file.extend([role, 0]);
    file.extend(crc32c::crc32c(&file).to_le_bytes());
    while let [low, high, kind, synced, payload @ ..] = input {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(payload.len());
        let (payload, behind) = payload.split_at(length);
        let mut header = (length as u32).to_le_bytes().to_vec();
        header.extend([*kind, 0, 0, 0]);
        header.extend((8 * u64::from(*synced)).to_le_bytes());
        header.extend(crc32c::crc32c(payload).to_le_bytes());
        header.extend(crc32c::crc32c(&header).to_le_bytes());
        file.extend(header);
        file.extend(payload);
        input = behind;
    }
    file
}

/// The input that stands for a file, but for synced lengths, which are rounded down.
pub fn input(file: &[u8]) -> Vec<u8> {
    let (mut rest, mut input) = (&file[FILE_HEADER..], Vec::new());
    while rest.len() >= FRAME_HEADER {
        let (header, behind) = rest.split_at(FRAME_HEADER);
        let length = u16::from_le_bytes([header[0], header[1]]);
        let (payload, behind) = behind.split_at(length.into());
        let synced = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes")) / 8;
        input.extend([header[0], header[1], header[4], synced.min(255) as u8]);
        input.extend(payload);
        rest = behind;
    }
    input
}
