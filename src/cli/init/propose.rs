//! Proposals for a pipeline file from the columns of a file, and the draft that the operator makes
//! of them.

use hushflow::format::profile::{ColumnKind, ColumnProfile, FileProfile};
use hushflow::time::{epochs_over, is_varying_length, parse_time_in};

use super::super::CliError;
use super::super::output::number;
use super::InitArguments;
use super::values::{ColumnBounds, Keys, list};

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

/// What the pipeline file will say.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) columns: Vec<ColumnBounds>,
    pub(super) key: Option<Keys>,
    pub(super) time: Option<String>,
    pub(super) arrival: Option<String>,
    pub(super) timezone: Option<String>,
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

    /// Fills in the length of epochs and the limits. Months and years need a time zone.
    pub(super) fn filled(self, profile: &FileProfile) -> Self {
        let epoch = self.epoch.clone().unwrap_or_else(|| match &self.time {
            Some(time) => self.usual_length(profile.span_of(time)).unwrap_or("1d").into(),
            None => profile.rows.div_ceil(COUNTED_EPOCHS).max(1).to_string(),
        });
        let is_varying = self.time.is_some() && is_varying_length(&epoch) == Some(true);
        let timezone = self.timezone.clone().or(is_varying.then(|| UTC.into()));
        let participations = self.participations.unwrap_or(self.horizon.min(PARTICIPATIONS));
        Draft { epoch: Some(epoch), timezone, participations: Some(participations), ..self }
    }

    /// Returns the shortest length by which the epochs of the horizon reach the last time.
    fn usual_length(&self, span: Option<(i64, i64)>) -> Option<&'static str> {
        const LENGTHS: [&str; 6] = ["1min", "1h", "1d", "1 week", "1 month", "1 year"];
        let zone = self.timezone.as_deref().unwrap_or(UTC);
        let span = span.map(|(first, last)| (parse_time_in(&self.start, zone).unwrap_or(first), last));
        let reaches = |length: &&&str| {
            let epochs = span.and_then(|span| epochs_over(span, length, zone));
            epochs.is_some_and(|(_, epochs)| epochs <= self.horizon)
        };
        LENGTHS.iter().find(reaches).copied()
    }

    /// States what [`filled`](Self::filled) will choose, and how times are read.
    pub(super) fn notes(&self, profile: &FileProfile) -> Vec<String> {
        let filled = self.clone().filled(profile);
        let epoch = filled.epoch.unwrap_or_default();
        let mut notes = Vec::new();
        match (&self.epoch, &self.time) {
            (None, Some(time)) => notes.push(match self.usual_length(profile.span_of(time)) {
                Some(_) => format!(
                    "without --epoch, an epoch is {epoch}: of a minute, hour, day, week, month and year the shortest by which {} epochs \
                     reach the last row",
                    self.horizon
                ),
                None => format!("without --epoch, an epoch is {epoch}; {} epochs don't reach the last row", self.horizon),
            }),
            (None, None) => notes.push(format!(
                "without --time and --epoch, an epoch is {epoch} rows in their order, a tenth of the file, and there are {} epochs",
                self.horizon
            )),
            _ => {}
        }
        if self.timezone.is_none() {
            notes.extend(
                filled
                    .timezone
                    .map(|_| "months and years are those of UTC: --timezone names another zone".into()),
            );
        }
        notes.extend(
            self.time.as_ref().filter(|_| self.timezone.is_none()).and_then(|time| profile.zone_note(time)),
        );
        notes
    }
}

/// The usual time zone.
pub(super) const UTC: &str = "UTC";

/// What a profile says of times.
pub(super) trait Times {
    /// The first and the last time of a column.
    fn span_of(&self, column: &str) -> Option<(i64, i64)>;
    /// Whether the times of a column belong to a zone other than UTC, in words.
    fn zone_note(&self, column: &str) -> Option<String>;
}

impl Times for FileProfile {
    fn span_of(&self, column: &str) -> Option<(i64, i64)> {
        self.columns.iter().find(|profile| profile.name == column)?.span
    }

    fn zone_note(&self, column: &str) -> Option<String> {
        let profile = self.columns.iter().find(|profile| profile.name == column)?;
        let offsets: Vec<&str> = profile.offsets.iter().map(String::as_str).take(3).collect();
        match (offsets.is_empty(), profile.local_times) {
            (false, _) => Some(format!(
                "times carry offsets ({}): without --timezone, such as America/New_York, days begin at midnight UTC",
                offsets.join(", ")
            )),
            (true, 0) => None,
            (true, _) => Some(
                "times without an offset are read as UTC: if they are local, give --timezone, such as America/New_York"
                    .into(),
            ),
        }
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
    /// Returns proposals beside what the flags give.
    pub(super) fn of(profile: &FileProfile, arguments: &InitArguments) -> Self {
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
        let zone = arguments.timezone.as_deref().unwrap_or(UTC);
        let (epoch, start, horizon) = match time {
            Some(time) => {
                let span = time.span.unwrap_or((0, 0));
                let length = arguments.epoch.as_deref().unwrap_or_else(|| length_for(span));
                epochs(span, length, zone)
            }
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
        let given = arguments.columns();
        let columns = if given.is_empty() { &self.columns } else { &given };
        let columns: Vec<_> = columns
            .iter()
            .map(|column| format!("{}:{}:{}", column.name, number(column.lower), number(column.upper)))
            .collect();
        let mut add = |flag: &str, value: &str| command += &format!(" \\\n    {flag} {}", quoted(value));
        add("--columns", &columns.join(","));
        if let Some(key) = arguments.key.as_ref().or(self.keys.first()) {
            add("--key", &format!("{}={}", key.column, list(&key.values)));
        }
        let time = arguments.time.as_ref().or(self.time.as_ref());
        if let Some(time) = time {
            add("--time", time);
            if let Some(arrival) = arguments.arrival.as_ref().or(self.arrival.as_ref()) {
                add("--arrival", arrival);
            }
            arguments.timezone.iter().for_each(|zone| add("--timezone", zone));
            add("--start", arguments.start.as_ref().unwrap_or(&self.start));
            add("--horizon", &arguments.horizon.unwrap_or(self.horizon).to_string());
        }
        add("--epoch", arguments.epoch.as_ref().unwrap_or(&self.epoch));
        if let Some(unit) = &arguments.unit {
            add("--unit", unit);
            arguments.participations.iter().for_each(|number| add("--participations", &number.to_string()));
        }
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

/// Returns a length by which a span has at least seven epochs, or a day.
pub(super) fn length_for((first, last): (i64, i64)) -> &'static str {
    const HOUR: i64 = 3_600_000_000;
    const LENGTHS: [(&str, i64); 4] =
        [("1d", 24 * HOUR), ("1h", HOUR), ("1min", HOUR / 60), ("1s", HOUR / 3600)];
    let span = last.saturating_sub(first);
    LENGTHS.into_iter().find(|(_, length)| span / length >= 7).unwrap_or(LENGTHS[0]).0
}

/// Returns length, start and number of epochs that cover a span of microseconds.
pub(super) fn epochs(span: (i64, i64), length: &str, zone: &str) -> (String, String, u64) {
    let (start, horizon) = epochs_over(span, length, zone).unwrap_or_default();
    (length.into(), start, horizon.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hushflow::time::parse_time;

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
    fn epochs_cover_a_span() {
        let time = |text| parse_time(text).unwrap();
        let check = |first, last, expected: (&str, &str, u64)| {
            let span = (time(first), time(last));
            let (length, start, horizon) = epochs(span, length_for(span), UTC);
            assert_eq!((length.as_str(), start.as_str(), horizon), expected);
        };
        check("2013-01-01T10:17:00Z", "2013-02-01T05:54:00Z", ("1d", "2013-01-01", 32));
        check("2013-01-01T10:17:00Z", "2013-01-02T05:54:00Z", ("1h", "2013-01-01T10:00:00Z", 20));
        let year = (time("2013-01-01T05:00:00Z"), time("2013-12-31T23:00:00Z"));
        let (_, start, horizon) = epochs(year, "1 month", "America/New_York");
        assert_eq!((start.as_str(), horizon), ("2013-01-01", 12));
        let (_, start, horizon) = epochs(year, "1 week", UTC);
        assert_eq!((start.as_str(), horizon), ("2012-12-31", 53));
    }
}
