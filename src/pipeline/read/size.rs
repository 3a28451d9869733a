//! Parses sizes in bytes such as `512 MiB`.

use crate::document::Section;
use crate::pipeline::Source;

/// Units and their number of bytes.
const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Reads the limit of the journal of a source.
pub(super) fn journal_limit(section: &Section<'_>) -> u64 {
    let is_enough = |size: &u64| *size >= Source::LEAST_JOURNAL_LIMIT;
    let size = section.form("journal_limit", |text| parse(text).filter(is_enough));
    size.unwrap_or(Source::JOURNAL_LIMIT)
}

/// Returns the bytes of a size such as `512 MiB` or `2GB`.
fn parse(text: &str) -> Option<u64> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = (text[..unit].parse::<u64>().ok()?, text[unit..].trim_start());
    let (_, bytes) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_number_and_a_unit() {
        let check = |text, expected| assert_eq!(parse(text), expected, "{text:?}");
        check("1 GiB", Some(1 << 30));
        check("8MiB", Some(8 << 20));
        check("2 GB", Some(2_000_000_000));
        check("10 kB", Some(10_000));
        for odd in ["", "8", "MiB", "-1 MiB", "1.5 GiB", "8 mib", "99999999 TiB", "8 MiB more"] {
            check(odd, None);
        }
    }
}
