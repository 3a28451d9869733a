//! Proposals for a pipeline file from the columns of a file, and the draft that the operator makes
//! of them.

use std::str::FromStr;

use hushflow::format::profile::{ColumnKind, ColumnProfile, FileProfile};
use hushflow::time::{parse_duration, parse_time, time_text};

use super::super::CliError;
use super::super::output::number;
use super::InitArguments;

/// Epochs of a stream without times.
pub(super) const COUNTED_EPOCHS: u64 = 10;

/// Most epochs in which an entity counts, unless the operator gives another number.
const PARTICIPATIONS: u64 = 10;

/// Most keys that are proposed.
const KEYS: usize = 20;

/// Bounds that a name suggests, whatever the file holds.
const KNOWN: [(&[&str], f64, f64); 8] = [
    (&["age"], 0.0, 120.0),
    (&["percent", "percentage", "pct", "humid", "humidity"], 0.0, 100.0),
    (&["share", "fraction", "ratio", "probability", "rate"], 0.0, 1.0),
    (&["lat", "latitude"], -90.0, 90.0),
    (&["lon", "lng", "longitude"], -180.0, 180.0),
    (&["hour"], 0.0, 24.0),
    (&["glucose"], 0.0, 500.0),
    (&["heartrate", "pulse", "bpm"], 0.0, 250.0),
];

/// A column and its bounds.
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

/// Reads `LOWER:UPPER`.
pub(super) fn bounds(text: &str) -> Result<(f64, f64), String> {
    let expected = || format!("found {text:?}, expected two numbers as LOWER:UPPER, the smaller first");
    let (lower, upper) = text.split_once(':').ok_or_else(expected)?;
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    let pair = number(lower).zip(number(upper)).filter(|(lower, upper)| lower < upper);
    pair.ok_or_else(expected)
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
        let values: Vec<String> = values
            .split(',')
            .map(|value| value.trim().into())
            .filter(|value: &String| !value.is_empty())
            .collect();
        match values.is_empty() {
            true => Err(format!("found {text:?}, which lists no value: expected COLUMN=A,B,…")),
            false => Ok(Keys { column: column.trim().into(), values }),
        }
    }
}

/// What the pipeline file will say.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) columns: Vec<ColumnBounds>,
    pub(super) key: Option<Keys>,
    pub(super) time: Option<String>,
    pub(super) arrival: Option<String>,
    pub(super) epoch: Option<String>,
    pub(super) start: String,
    pub(super) horizon: u64,
    /// Column of the entity, unless records are protected.
    pub(super) entity: Option<String>,
    pub(super) participations: Option<u64>,
    pub(super) epsilon: f64,
    pub(super) delta: f64,
}

impl Draft {
    /// Checks what the file can tell: that the columns exist and hold what they are for.
    pub(super) fn check(&self, profile: &FileProfile) -> Result<(), CliError> {
        let values = self.columns.iter().map(|column| (&column.name, Some(ColumnKind::Number)));
        let times =
            [&self.time, &self.arrival].into_iter().flatten().map(|name| (name, Some(ColumnKind::Time)));
        let others = self.key.iter().map(|key| &key.column).chain(&self.entity).map(|name| (name, None));
        for (name, kind) in values.chain(times).chain(others) {
            let Some(column) = profile.columns.iter().find(|column| column.name == *name) else {
                let names: Vec<_> = profile.columns.iter().map(|column| column.name.as_str()).collect();
                return Err(CliError::usage(format!(
                    "the file has no column {name:?}, but {}",
                    names.join(", ")
                )));
            };
            let fits = match kind {
                Some(ColumnKind::Number) => 2 * column.numbers > column.present,
                Some(ColumnKind::Time) => 2 * column.times > column.present,
                _ => true,
            };
            if !fits {
                let what = if kind == Some(ColumnKind::Time) { "dates or RFC 3339 times" } else { "numbers" };
                return Err(CliError::usage(format!(
                    "most values of the column {name:?} are no {what}: choose another"
                )));
            }
        }
        Ok(())
    }

    /// Fills in what is not published from the data: the lengths of epochs and the limits.
    pub(super) fn filled(self, profile: &FileProfile) -> Self {
        let epoch = self.epoch.clone().unwrap_or_else(|| match &self.time {
            Some(_) => "1d".into(),
            None => profile.rows.div_ceil(COUNTED_EPOCHS).max(1).to_string(),
        });
        let participations = self.participations.unwrap_or(self.horizon.min(PARTICIPATIONS));
        Draft { epoch: Some(epoch), participations: Some(participations), ..self }
    }
}

/// Proposals, to be confirmed. Private: they come from the data.
pub(super) struct Proposal {
    pub(super) columns: Vec<ColumnBounds>,
    /// Columns that may hold keys, the one with the fewest values first.
    pub(super) keys: Vec<Keys>,
    pub(super) times: Vec<String>,
    pub(super) time: Option<String>,
    pub(super) arrival: Option<String>,
    pub(super) epoch: String,
    pub(super) start: String,
    pub(super) horizon: u64,
    /// Columns that may name a person or a device.
    pub(super) entities: Vec<String>,
}

impl Proposal {
    pub(super) fn of(profile: &FileProfile) -> Self {
        let of_kind = |kind| profile.columns.iter().filter(move |column| column.kind() == kind);
        let mut keys: Vec<_> = of_kind(ColumnKind::Word)
            .filter_map(|column| {
                let words = column.words.as_ref().filter(|words| words.len() <= KEYS)?;
                Some(Keys { column: column.name.clone(), values: words.keys().cloned().collect() })
            })
            .collect();
        keys.sort_by_key(|key| key.values.len());
        let times: Vec<&ColumnProfile> = of_kind(ColumnKind::Time).collect();
        let arrival =
            times.iter().find(|column| is_like(&column.name, &ARRIVALS)).filter(|_| times.len() > 1);
        let time = times.iter().find(|column| arrival.is_none_or(|arrival| arrival.name != column.name));
        let span = time.and_then(|time| time.span).unwrap_or((0, 0));
        let (epoch, start, horizon) = match time {
            Some(_) => epochs(span),
            None => (profile.rows.div_ceil(COUNTED_EPOCHS).max(1).to_string(), String::new(), COUNTED_EPOCHS),
        };
        let entities = of_kind(ColumnKind::Name).filter(|column| column.distinct < column.present);
        Proposal {
            columns: of_kind(ColumnKind::Number).map(proposed_bounds).collect(),
            keys,
            times: times.iter().map(|column| column.name.clone()).collect(),
            time: time.map(|column| column.name.clone()),
            arrival: arrival.map(|column| column.name.clone()),
            epoch,
            start,
            horizon,
            entities: entities.map(|column| column.name.clone()).collect(),
        }
    }

    /// Returns a command that makes the proposed pipeline, with the flags that are given.
    pub(super) fn command(&self, arguments: &InitArguments, output: &std::path::Path) -> String {
        let files: Vec<_> = arguments.files.iter().map(|path| quoted(&path.display().to_string())).collect();
        let mut command =
            format!("hushflow init {} --output {}", files.join(" "), quoted(&output.display().to_string()));
        let given = &arguments.columns;
        let columns = if given.is_empty() { &self.columns } else { given };
        let columns: Vec<_> = columns
            .iter()
            .map(|column| format!("{}:{}:{}", column.name, number(column.lower), number(column.upper)))
            .collect();
        let mut add = |flag: &str, value: &str| command += &format!(" \\\n    {flag} {}", quoted(value));
        add("--columns", &columns.join(","));
        if let Some(key) = arguments.key.as_ref().or(self.keys.first()) {
            add("--key", &format!("{}={}", key.column, key.values.join(",")));
        }
        let time = arguments.time.as_ref().or(self.time.as_ref());
        if let Some(time) = time {
            add("--time", time);
            if let Some(arrival) = arguments.arrival.as_ref().or(self.arrival.as_ref()) {
                add("--arrival", arrival);
            }
            add("--start", arguments.start.as_ref().unwrap_or(&self.start));
            add("--horizon", &arguments.horizon.unwrap_or(self.horizon).to_string());
        }
        add("--epoch", arguments.epoch.as_ref().unwrap_or(&self.epoch));
        add("--epsilon", &arguments.epsilon.map_or("1".into(), |epsilon| epsilon.value().to_string()));
        add("--delta", &arguments.delta.map_or("1e-6".into(), |delta| format!("{:e}", delta.value())));
        command
    }
}

/// Parts of names of columns with the time when a row arrived.
const ARRIVALS: [&str; 8] = ["arriv", "record", "receiv", "ingest", "load", "creat", "insert", "updat"];

fn is_like(name: &str, parts: &[&str]) -> bool {
    let name = name.to_lowercase();
    parts.iter().any(|part| name.contains(part))
}

/// Quotes a word for the shell, if it needs that.
fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_alphanumeric() || "-_./:,=+%@".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Returns the bounds that the name suggests, or the range of the values rounded outwards.
fn proposed_bounds(column: &ColumnProfile) -> ColumnBounds {
    let name = column.name.to_lowercase();
    let parts: Vec<&str> = name.split(|character: char| !character.is_alphanumeric()).collect();
    let (least, greatest) = column.range.unwrap_or((0.0, 1.0));
    let known = KNOWN.iter().find(|(names, lower, upper)| {
        names.iter().any(|name| parts.contains(name)) && *lower <= least && greatest <= *upper
    });
    let (lower, upper) = known.map_or_else(|| outwards(least, greatest), |&(_, lower, upper)| (lower, upper));
    ColumnBounds { name: column.name.clone(), lower, upper }
}

/// Rounds a range outwards to one digit of its larger end; a range near 0 begins there.
fn outwards(least: f64, greatest: f64) -> (f64, f64) {
    let largest = least.abs().max(greatest.abs());
    if largest == 0.0 {
        return (0.0, 1.0);
    }
    let unit = 10f64.powf(largest.log10().floor());
    let step = if largest / unit < 2.0 { unit / 10.0 * 5.0 } else { unit };
    let clean = |value: f64| format!("{value:.6e}").parse().unwrap_or(value);
    let lower = clean((least / step).floor() * step);
    let upper = clean((greatest / step).ceil() * step);
    let lower = if least >= 0.0 && lower < step { 0.0 } else { lower };
    if lower < upper { (lower, upper) } else { (lower, lower + step) }
}

/// Returns length, start and number of epochs that cover a span of microseconds.
fn epochs((first, last): (i64, i64)) -> (String, String, u64) {
    const HOUR: i64 = 3_600_000_000;
    const LENGTHS: [(&str, i64); 4] =
        [("1d", 24 * HOUR), ("1h", HOUR), ("1min", HOUR / 60), ("1s", HOUR / 3600)];
    let span = last.saturating_sub(first);
    let (name, length) = LENGTHS.into_iter().find(|(_, length)| span / length >= 7).unwrap_or(LENGTHS[0]);
    let day = 24 * HOUR;
    let start = if length == day { first.div_euclid(day) * day } else { first.div_euclid(HOUR) * HOUR };
    let horizon = (last.saturating_sub(start) / length + 1).max(1).unsigned_abs();
    let text = time_text(start);
    let text = text.strip_suffix("T00:00:00Z").map_or_else(|| text.clone(), String::from);
    (name.into(), text, horizon)
}

/// Reads a length of time.
pub(super) fn length(text: &str) -> Result<String, String> {
    let is_length = parse_duration(text).is_some_and(|length| length > 0);
    let expected = || format!("found {text:?}, expected a length such as 1d, 6h or 15min");
    is_length.then(|| text.to_owned()).ok_or_else(expected)
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
    fn ranges_are_rounded_outwards() {
        let check = |least, greatest, lower, upper| assert_eq!(outwards(least, greatest), (lower, upper));
        check(-43.0, 1301.0, -500.0, 1500.0);
        check(0.0, 87.0, 0.0, 90.0);
        check(17.0, 2586.0, 0.0, 3000.0);
        check(0.001, 0.0042, 0.001, 0.005);
        check(0.0, 0.0, 0.0, 1.0);
        check(5.0, 5.0, 5.0, 6.0);
    }

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
    fn epochs_cover_a_span() {
        let time = |text| parse_time(text).unwrap();
        let check = |first, last, expected: (&str, &str, u64)| {
            let (length, start, horizon) = epochs((time(first), time(last)));
            assert_eq!((length.as_str(), start.as_str(), horizon), expected);
        };
        check("2013-01-01T10:17:00Z", "2013-02-01T05:54:00Z", ("1d", "2013-01-01", 32));
        check("2013-01-01T10:17:00Z", "2013-01-02T05:54:00Z", ("1h", "2013-01-01T10:00:00Z", 20));
    }
}
