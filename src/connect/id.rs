//! Ids of two numbers, written `7-0`: those of entries in Redis, `milliseconds-number`, and those by which any server knows a line that
//! a sink writes, `epoch-line`.

use std::io;

use super::wire::{garbled, number};

/// In the order of the entries.
pub(crate) type Id = (u64, u64);

pub(crate) fn parse(id: &[u8]) -> io::Result<Id> {
    let dash = id.iter().position(|&byte| byte == b'-').ok_or_else(garbled)?;
    Ok((number(&id[..dash])?, number(&id[dash + 1..])?))
}

pub(crate) fn shown((first, second): Id) -> String {
    format!("{first}-{second}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_two_numbers() {
        assert_eq!(parse(b"1526919030474-55").ok(), Some((1_526_919_030_474, 55)));
        assert!(["", "-", "5", "5-", "-5", "a-b", "1-2-3"].iter().all(|id| parse(id.as_bytes()).is_err()));
        assert_eq!(shown((7, 0)), "7-0");
    }
}
