//! Names of keys as integers. The names that an epoch shows come after the values of its slots.
//!
//! A name is its length in bytes, then its bytes. Each integer holds as many bytes as fit.

/// Number of bytes in an integer of a public name: at most the width of a released value.
pub(super) const PUBLIC: usize = 7;

/// Number of bytes in an integer of a private name.
pub(super) const PRIVATE: usize = 15;

/// Appends a name.
pub(super) fn push_name(integers: &mut Vec<i128>, name: &str, width: usize) {
    integers.push(name.len() as i128);
    let packed = |bytes: &[u8]| bytes.iter().rev().fold(0, |packed, &byte| packed << 8 | i128::from(byte));
    integers.extend(name.as_bytes().chunks(width).map(packed));
}

/// Takes a name from the front; `None` if there is none.
pub(super) fn take_name(integers: &mut &[i128], width: usize) -> Option<String> {
    let (&length, rest) = integers.split_first()?;
    let length = usize::try_from(length).ok()?;
    let (packed, rest) = rest.split_at_checked(length.div_ceil(width))?;
    let mut bytes = Vec::with_capacity(length);
    for (&packed, number) in packed.iter().zip(0..) {
        let own = (length - number * width).min(width);
        let all = packed.to_le_bytes();
        if all[own..].iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend_from_slice(&all[..own]);
    }
    *integers = rest;
    String::from_utf8(bytes).ok()
}

/// Returns the names that an epoch shows, from the integers after the values of its slots. `None`
/// if the integers are not a list of names.
pub fn names_of(mut integers: &[i128]) -> Option<Vec<String>> {
    let mut names = Vec::new();
    while !integers.is_empty() {
        names.push(take_name(&mut integers, PUBLIC)?);
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_return(names in prop::collection::vec(".{0,40}", 0..5)) {
            for width in [PUBLIC, PRIVATE] {
                let mut integers = Vec::new();
                names.iter().for_each(|name| push_name(&mut integers, name, width));
                let mut rest = &integers[..];
                for name in &names {
                    let found = take_name(&mut rest, width);
                    prop_assert_eq!(found.as_ref(), Some(name));
                }
                prop_assert!(rest.is_empty());
                if width == PUBLIC {
                    prop_assert_eq!(names_of(&integers), Some(names.clone()));
                }
            }
        }

        #[test]
        fn other_integers_are_refused(integers in prop::collection::vec(-3i128..300, 1..6)) {
            if let Some(names) = names_of(&integers) {
                let mut again = Vec::new();
                names.iter().for_each(|name| push_name(&mut again, name, PUBLIC));
                prop_assert_eq!(again, integers);
            }
        }
    }
}
