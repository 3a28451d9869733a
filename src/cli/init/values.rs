//! Values of flags and answers: columns with bounds, keys, lengths, zones and times.

use std::str::FromStr;

use hushflow::operators::RepeatPolicy;
use hushflow::time::{TimeFormat, is_time_zone, is_varying_length, parse_time};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ColumnBounds {
    pub(super) name: String,
    pub(super) lower: f64,
    pub(super) upper: f64,
}

impl FromStr for ColumnBounds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("found {text:?}, expected NAME:LOWER:UPPER, such as age:0:120");
        let (rest, upper) = text.rsplit_once(':').ok_or_else(expected)?;
        let (name, lower) = rest.rsplit_once(':').ok_or_else(expected)?;
        let bounds = bounds(&format!("{lower}:{upper}"))?;
        Ok(ColumnBounds { name: name.trim().into(), lower: bounds.0, upper: bounds.1 })
    }
}

/// Columns with their bounds, separated by commas. A name may hold commas: it ends with its bounds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ColumnList(pub(super) Vec<ColumnBounds>);

impl FromStr for ColumnList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut columns, mut name) = (Vec::new(), String::new());
        for part in text.split(',') {
            name += part;
            match name.parse() {
                Ok(column) => {
                    columns.push(column);
                    name.clear();
                }
                Err(_) => name.push(','),
            }
        }
        match name.strip_suffix(',') {
            Some(rest) => Err(rest.parse::<ColumnBounds>().err().unwrap_or_default()),
            None => Ok(ColumnList(columns)),
        }
    }
}

/// Reads `LOWER:UPPER`.
pub(super) fn bounds(text: &str) -> Result<(f64, f64), String> {
    let expected = || format!("found {text:?}, expected two numbers as LOWER:UPPER, the smaller first");
    let (lower, upper) = text.split_once(':').ok_or_else(expected)?;
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    let pair = number(lower).zip(number(upper)).filter(|(lower, upper)| lower < upper);
    pair.ok_or_else(expected)
}

/// Bounds of a column for one value of the key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeyBounds {
    pub(super) key: String,
    pub(super) column: ColumnBounds,
}

impl FromStr for KeyBounds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || format!("found {text:?}, expected VALUE=NAME:LOWER:UPPER, such as sodium=value:100:180");
        let (key, column) =
            text.split_once('=').filter(|(key, _)| !key.trim().is_empty()).ok_or_else(expected)?;
        Ok(KeyBounds { key: key.trim().into(), column: column.parse()? })
    }
}

/// A column of keys and its values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Keys {
    pub(super) column: String,
    pub(super) values: Vec<String>,
}

impl FromStr for Keys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = text.split_once('=').filter(|(column, _)| !column.is_empty());
        let (column, values) =
            pair.ok_or_else(|| format!("found {text:?}, expected COLUMN=A,B,…, such as city=Oslo,Rome"))?;
        let values = listed(values);
        match values.is_empty() {
            true => Err(format!("found {text:?}, which lists no value: expected COLUMN=A,B,…")),
            false => Ok(Keys { column: column.trim().into(), values }),
        }
    }
}

/// Reads values separated by commas; one in quotes may hold commas, as in CSV.
fn listed(text: &str) -> Vec<String> {
    let (mut values, mut is_quoted) = (vec![String::new()], false);
    let mut rest = text.chars().peekable();
    while let (Some(letter), Some(value)) = (rest.next(), values.last_mut()) {
        match letter {
            '"' if is_quoted && rest.next_if_eq(&'"').is_some() => value.push('"'),
            '"' if is_quoted || value.trim().is_empty() => is_quoted = !is_quoted,
            ',' if !is_quoted => values.push(String::new()),
            letter => value.push(letter),
        }
    }
    values.into_iter().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()).collect()
}

/// Formats values for [`listed`].
pub(super) fn list(values: &[String]) -> String {
    let quoted = |value: &String| match value.contains([',', '"']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value.clone(),
    };
    values.iter().map(quoted).collect::<Vec<_>>().join(",")
}

/// Reads the treatment of surplus records of an entity in an epoch.
pub(super) fn repeat_policy(text: &str) -> Result<RepeatPolicy, String> {
    match text {
        "keep" => Ok(RepeatPolicy::Keep),
        "average" => Ok(RepeatPolicy::Average),
        _ => Err(format!("found {text:?}, expected keep or average")),
    }
}

/// Returns the word that [`repeat_policy`] reads.
pub(super) fn repeat_policy_word(repeat_policy: RepeatPolicy) -> &'static str {
    match repeat_policy {
        RepeatPolicy::Keep => "keep",
        RepeatPolicy::Average => "average",
    }
}

/// Reads the form of times.
pub(super) fn time_format(text: &str) -> Result<TimeFormat, String> {
    let expected = "expected seconds, milliseconds, microseconds, nanoseconds, or a pattern with a date such as '%d/%m/%Y %H:%M'";
    TimeFormat::parse(text).ok_or_else(|| format!("found {text:?}, {expected}"))
}

/// Reads a length of epochs.
pub(super) fn length(text: &str) -> Result<String, String> {
    let expected = || format!("found {text:?}, expected a length such as 1d, 6h, 15min, week or month");
    is_varying_length(text).map(|_| text.to_owned()).ok_or_else(expected)
}

/// Reads the length of epochs of time, or a number of rows.
pub(super) fn length_or_rows(text: &str) -> Result<String, String> {
    if text.parse().is_ok_and(|rows: u64| rows > 0) { Ok(text.into()) } else { length(text) }
}

/// Reads the name of a time zone.
pub(super) fn time_zone(text: &str) -> Result<String, String> {
    let expected =
        || format!("found {text:?}, expected a name of the time zone database such as America/New_York");
    is_time_zone(text).then(|| text.to_owned()).ok_or_else(expected)
}

/// Reads a time.
pub(super) fn time(text: &str) -> Result<String, String> {
    let expected = || format!("found {text:?}, expected a date or a time such as 2013-01-01T05:00:00Z");
    parse_time(text).map(|_| text.to_owned()).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_keys_are_read() {
        let column = |name: &str, lower, upper| ColumnBounds { name: name.into(), lower, upper };
        assert_eq!("a:b:-1:2.5".parse(), Ok(column("a:b", -1.0, 2.5)));
        for wrong in ["age", "age:1", "age:2:1", "age:x:1", "age:0:inf"] {
            assert!(wrong.parse::<ColumnBounds>().is_err(), "{wrong}");
        }
        assert_eq!(
            " city = Oslo, Rome ".parse(),
            Ok(Keys { column: "city".into(), values: vec!["Oslo".into(), "Rome".into()] })
        );
        assert!("city".parse::<Keys>().is_err() && "city=".parse::<Keys>().is_err());
    }

    #[test]
    fn names_and_values_may_hold_commas() {
        let list: ColumnList = "wind speed:0:60,a, b:-1:1,c:0:2".parse().unwrap();
        let names: Vec<&str> = list.0.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["wind speed", "a, b", "c"]);
        for wrong in ["", "a", "a:0:1,b", "a:1:0"] {
            assert!(wrong.parse::<ColumnList>().is_err(), "{wrong}");
        }
        let values = ["New York, NY", "Oslo", "a\"b"].map(String::from);
        let keys: Keys = format!("city={}", super::list(&values)).parse().unwrap();
        assert_eq!(keys.values, values);
        assert_eq!("k= \"a,b\" , c".parse::<Keys>().unwrap().values, ["a,b", "c"]);
    }
}
