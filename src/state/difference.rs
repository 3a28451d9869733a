//! Finds the first difference between a log's public parameters and a run's, for the message that
//! refuses the run.

use hushflow_mechanism::epochs::{Schedule, TimeSchedule};
use serde_json::Value;

use super::frames::{PublicHeader, decode};
use crate::time::epoch_start;

/// Maximum length of a printed value.
const SHOWN: usize = 60;

/// Maximum number of epochs whose boundaries are compared.
const COMPARED_EPOCHS: u64 = 1 << 20;

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
    if path.ends_with("epochs.schedule")
        && let Some(difference) = of_boundaries(stored, found)
    {
        return Some(difference);
    }
    let dotted = |key: &str| if path.is_empty() { key.into() } else { format!("{path}.{key}") };
    match (stored, found) {
        (Value::Object(stored), Value::Object(found)) => {
            let keys = stored.keys().chain(found.keys().filter(|key| !stored.contains_key(*key)));
            let value_of = |map: &serde_json::Map<String, Value>, key: &String| {
                map.get(key).cloned().unwrap_or_default()
            };
            keys.filter_map(|key| within(&dotted(key), &value_of(stored, key), &value_of(found, key))).next()
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

/// Returns the first difference between the time zones and the boundaries of two schedules of time.
fn of_boundaries(stored: &Value, found: &Value) -> Option<String> {
    let read = |value: &Value| match serde_json::from_value(value.clone()) {
        Ok(Schedule::ByTime(by)) => Some(by),
        _ => None,
    };
    let (stored, found) = (read(stored)?, read(found)?);
    let zone = |by: &TimeSchedule| {
        by.calendar.as_ref().map_or("absent".into(), |calendar| format!("{:?}", calendar.time_zone))
    };
    let (zones, epochs) =
        ([&found, &stored].map(zone), found.horizon.min(stored.horizon).min(COMPARED_EPOCHS));
    let zone = (zones[0] != zones[1]).then(|| format!("timezone is {}, was {}", zones[0], zones[1]));
    let boundary =
        (1..=epochs + 1).find(|&epoch| stored.start_of(epoch) != found.start_of(epoch)).map(|epoch| {
            let [is, was] = [&found, &stored].map(|by| epoch_start(by, epoch));
            format!("epoch {epoch} begins at {is}, began at {was}")
        });
    let parts: Vec<String> = zone.into_iter().chain(boundary).collect();
    (!parts.is_empty()).then(|| parts.join(": "))
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
        let schedule = |time: &str| {
            format!(
                r#"{{"parameters":{{"epochs":{{"schedule":{{"by-time":{{{time},"lateness":0,"horizon":9,"late":"fold",
                "clock":"end-of-input"}}}}}}}}}}"#
            )
        };
        let day = |start: u64| schedule(&format!(r#""start":{start},"length":86400000000"#));
        let zone = |name: &str, offset: i64| {
            let start = 86_400_000_000 - 1_000_000 * offset;
            let run = format!(r#"{{"first":1,"start":{start},"length":86400000000,"offset":{offset}}}"#);
            schedule(&format!(
                r#""start":{start},"length":86400000000,"calendar":{{"time_zone":"{name}","runs":[{run}]}}"#
            ))
        };
        check(
            &day(0),
            &day(86_400_000_000),
            Some("epoch 1 begins at 1970-01-02T00:00:00Z, began at 1970-01-01T00:00:00Z"),
        );
        check(
            &zone("Europe/Oslo", 3600),
            &zone("America/New_York", -18000),
            Some(
                "timezone is \"America/New_York\", was \"Europe/Oslo\": epoch 1 begins at 1970-01-02T00:00:00-05:00, began at \
                 1970-01-02T00:00:00+01:00",
            ),
        );
        check(
            &zone("Europe/Oslo", 3600),
            &zone("Europe/Paris", 3600),
            Some("timezone is \"Europe/Paris\", was \"Europe/Oslo\""),
        );
        let shorter = schedule(r#""start":0,"length":3600000000"#);
        check(
            &day(0),
            &shorter,
            Some("epoch 2 begins at 1970-01-01T01:00:00Z, began at 1970-01-02T00:00:00Z"),
        );
        let long = difference(&payload("{}", true), &payload(&format!("[{:?}]", "é".repeat(99)), true));
        assert!(long.is_some_and(|long| long.chars().count() < 100));
        let seeded = difference(&payload("{}", true), &payload("{}", false));
        assert_eq!(seeded.as_deref(), Some("noise from a seed, was real noise"));
        assert_eq!(difference(b"", b"x"), None);
    }
}
