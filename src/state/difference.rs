//! Finds the first difference between a log's public parameters and a run's, for the message that
//! refuses the run.

use super::frames::{PublicHeader, decode};
use serde_json::Value;

/// Longer values are not printed.
const SHOWN: usize = 60;

/// Returns the path of the first difference between two headers and both values, or `None` if they
/// are equal or can't be parsed.
pub(super) fn difference(stored: &[u8], header: &[u8]) -> Option<String> {
    let (stored, header): (PublicHeader, PublicHeader) = (decode(stored).ok()?, decode(header).ok()?);
    if stored.private != header.private {
        let noise = |private| if private { "real noise" } else { "noise from a seed" };
        return Some(format!("{}, was {}", noise(header.private), noise(stored.private)));
    }
    let read = |header: &PublicHeader| serde_json::from_slice(&header.parameters).ok();
    within("", &read(&stored)?, &read(&header)?)
}

/// Returns the first difference between two values at `path`.
fn within(path: &str, stored: &Value, found: &Value) -> Option<String> {
    if stored == found {
        return None;
    }
    let dotted = |key: &str| if path.is_empty() { key.into() } else { format!("{path}.{key}") };
    match (stored, found) {
        (Value::Object(stored), Value::Object(found)) => {
            let keys = stored.keys().chain(found.keys().filter(|key| !stored.contains_key(*key)));
            let of = |map: &serde_json::Map<String, Value>, key: &String| {
                map.get(key).cloned().unwrap_or_default()
            };
            keys.filter_map(|key| within(&dotted(key), &of(stored, key), &of(found, key))).next()
        }
        (Value::Array(stored), Value::Array(found)) if stored.len() == found.len() => {
            let pairs = stored.iter().zip(found).enumerate();
            pairs
                .filter_map(|(index, (stored, found))| within(&format!("{path}[{index}]"), stored, found))
                .next()
        }
        _ => Some(format!("{path} is {}, was {}", shown(found), shown(stored))),
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let payload = |parameters: &str, private| {
            PublicHeader { parameters: parameters.into(), private }.payload().unwrap()
        };
        let check = |stored: &str, found: &str, expected: Option<&str>| {
            let difference = difference(&payload(stored, true), &payload(found, true));
            assert_eq!(difference.as_deref(), expected, "{stored} {found}");
        };
        let columns = |upper| format!(r#"{{"parameters":{{"columns":[{{"name":"x","upper":{upper}}}]}}}}"#);
        check(&columns(1), &columns(2), Some("parameters.columns[0].upper is 2, was 1"));
        check(&columns(1), &columns(1), None);
        check("{}", r#"{"a":["b"]}"#, Some("a is [\"b\"], was null"));
        check(r#"{"a":[1]}"#, r#"{"a":[1,2]}"#, Some("a is [1,2], was [1]"));
        check("x = 1", "x = 2", None);
        let long = difference(&payload("{}", true), &payload(&format!("[{:?}]", "é".repeat(99)), true));
        assert!(long.is_some_and(|long| long.chars().count() < 100));
        let seeded = difference(&payload("{}", true), &payload("{}", false));
        assert_eq!(seeded.as_deref(), Some("noise from a seed, was real noise"));
        assert_eq!(difference(b"", b"x"), None);
    }
}
