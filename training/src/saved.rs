//! The bytes of a saved run: a version, the parts with their lengths, and a checksum.

use zeroize::Zeroizing;

/// First bytes, with the version.
const MAGIC: [u8; 8] = *b"hushadm2";

/// Number of bytes of the checksum at the end.
const CHECKSUM: usize = 4;

/// Joins the parts of a state.
pub(crate) fn join(parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    // Growing would leave copies of sums in freed memory.
    let length = MAGIC.len() + parts.iter().map(|part| 8 + part.len()).sum::<usize>() + CHECKSUM;
    let mut state = Zeroizing::new(Vec::with_capacity(length));
    state.extend(MAGIC);
    for part in parts {
        state.extend((part.len() as u64).to_le_bytes());
        state.extend(*part);
    }
    let checksum = crc32c::crc32c(&state);
    state.extend(checksum.to_le_bytes());
    state
}

/// Returns the parts of a state with their lengths, or why there are none.
pub(crate) fn parts(state: &[u8]) -> Result<&[u8], &'static str> {
    let rest = state.strip_prefix(&MAGIC).ok_or("it is not a saved training run")?;
    let (rest, checksum) = rest.split_last_chunk::<CHECKSUM>().ok_or("it is cut off")?;
    match u32::from_le_bytes(*checksum) == crc32c::crc32c(&state[..state.len() - CHECKSUM]) {
        true => Ok(rest),
        false => Err("its checksum is wrong, so it is damaged"),
    }
}

/// Reads a part of numbers.
pub(crate) fn numbers(bytes: &[u8]) -> Option<Vec<f64>> {
    let (numbers, rest) = bytes.as_chunks();
    rest.is_empty().then(|| numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
}

/// Puts a version and a checksum around parts.
#[cfg(test)]
pub(crate) fn sealed(parts: Vec<u8>) -> Vec<u8> {
    let mut state = [&MAGIC[..], &parts].concat();
    let checksum = crc32c::crc32c(&state);
    state.extend(checksum.to_le_bytes());
    state
}
