//! Proposals for a pipeline file from the columns of a file.

use std::collections::BTreeMap;
use std::path::Path;

use hushflow::format::profile::{ColumnKind, ColumnProfile, FileProfile, Ranges};
use hushflow::mechanism::accounting::{Delta, Epsilon};
use hushflow::operators::RepeatPolicy;
use hushflow::time::epochs_over;

use super::super::output::number;
use super::InitArguments;
use super::draft::{DECIMAL_COMMAS, Draft, Times};
use super::limits::LimitSearch;
use super::values::{ColumnBounds, KeyBounds, Keys, list, repeat_policy_word};

/// Number of epochs of a stream without times.
pub(super) const COUNTED_EPOCHS: u64 = 10;

/// The default time zone.
pub(super) const UTC: &str = "UTC";

/// Maximum number of keys that are proposed.
const KEYS: usize = 20;

/// Bounds that a name suggests, for any content of the file.
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

/// Proposals, to be confirmed. Private: they come from the data.
pub(super) struct Proposal {
    pub(super) columns: Vec<ColumnBounds>,
    /// Columns that may hold keys. Kinds of measurement come first, then fewer values before more.
    pub(super) keys: Vec<Keys>,
    /// Bounds of single keys that are much narrower than those of the column.
    pub(super) key_bounds: Vec<KeyBounds>,
    /// Whether many rows lack a value.
    pub(super) lacks_values: bool,
    pub(super) times: Vec<String>,
    pub(super) time: Option<String>,
    pub(super) arrival: Option<String>,
    pub(super) epoch: String,
    pub(super) start: String,
    pub(super) horizon: u64,
    /// Columns that may name a person or a device, the most likely first.
    pub(super) entities: Vec<String>,
    /// Columns of numbers that look like identifiers instead of values.
    pub(super) identifiers: Vec<String>,
    /// Columns of numbers with decimal commas, which are not read.
    pub(super) decimal_commas: Vec<String>,
}

impl Proposal {
    /// Returns proposals for everything that the flags do not give.
    pub(super) fn of(profile: &FileProfile, arguments: &InitArguments) -> Self {
        let of_kind = |kind| profile.columns.iter().filter(move |column| column.kind() == kind);
        // The names of people are not a public list.
        let is_unit = |column: &&ColumnProfile| column.names_unit() && !is_like(&column.name, &KINDS);
        let mut keys: Vec<_> = of_kind(ColumnKind::Word)
            .filter(|column| !is_unit(column) && !has_decimal_commas(column))
            .filter_map(|column| {
                let words = column.words.as_ref().filter(|words| words.len() <= KEYS)?;
                Some(Keys { column: column.name.clone(), values: words.keys().cloned().collect() })
            })
            .collect();
        keys.sort_by_key(|key| (!is_like(&key.column, &KINDS), key.values.len()));
        let times: Vec<&ColumnProfile> = of_kind(ColumnKind::Time).collect();
        let arrival = profile.arrival();
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
        let names = of_kind(ColumnKind::Name).chain(of_kind(ColumnKind::Word).filter(is_unit));
        let names = names.filter(|column| !has_decimal_commas(column));
        let mut entities: Vec<_> = names.filter(|column| column.distinct < column.present).collect();
        // A column with fewer values has more rows for each of them.
        entities.sort_by_key(|column| (!column.names_unit(), column.distinct));
        let identifiers = of_kind(ColumnKind::Name).filter(|column| column.numbers > 0);
        let columns: Vec<_> = of_kind(ColumnKind::Number).map(proposed_bounds).collect();
        Proposal {
            lacks_values: profile.lacks_values(columns.iter().map(|column| &column.name)),
            columns,
            keys,
            key_bounds: Vec::new(),
            times: times.iter().map(|column| column.name.clone()).collect(),
            time: time.map(|column| column.name.clone()),
            arrival: arrival.map(|column| column.name.clone()),
            epoch,
            start,
            horizon,
            entities: entities.iter().map(|column| column.name.clone()).collect(),
            identifiers: identifiers.map(|column| column.name.clone()).collect(),
            decimal_commas: profile
                .columns
                .iter()
                .filter(|column| has_decimal_commas(column))
                .map(|column| column.name.clone())
                .collect(),
        }
    }

    /// Explains why a column is proposed as the unit, if one is: rows repeat its values.
    pub(super) fn explain_unit(&self) -> Option<String> {
        let (first, others) = self.entities.split_first()?;
        let others = match others {
            [] => String::new(),
            others => format!(", as {} might too", others.join(", ")),
        };
        Some(format!(
            "{first:?} may name a person or a device{others}, and rows repeat its values. As the unit it protects all rows of each \
             together; record protects single rows."
        ))
    }

    /// Explains the unit and the columns of the proposed command.
    pub(super) fn remarks(&self, arguments: &InitArguments) -> String {
        let mut remarks = String::new();
        if let (None, Some(explanation)) = (&arguments.unit, self.explain_unit()) {
            remarks += &format!(
                "\n\n{explanation} --unit names it. If every row is of another person, write --unit record."
            );
        }
        if arguments.columns.is_empty() {
            let left_out = self.left_out();
            remarks += &left_out.iter().map(|remark| format!("\n\n{remark}")).collect::<String>();
        }
        remarks
    }

    /// States which columns of numbers are not proposed, and why.
    pub(super) fn left_out(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if !self.identifiers.is_empty() {
            remarks.push(format!(
                "Left out, because they look like identifiers: {}.",
                self.identifiers.join(", ")
            ));
        }
        if !self.decimal_commas.is_empty() {
            remarks.push(format!(
                "Left out, because their values {DECIMAL_COMMAS}: {}.",
                self.decimal_commas.join(", ")
            ));
        }
        remarks
    }

    /// Returns the proposed pipeline, with the values of the flags that are given.
    fn draft(&self, profile: &FileProfile, arguments: &InitArguments) -> Draft {
        let given = arguments.columns();
        let columns = if given.is_empty() { self.columns.clone() } else { given };
        let key = arguments.key.as_ref().or(self.keys.first()).cloned();
        let own = if arguments.key_bounds.is_empty() { &self.key_bounds } else { &arguments.key_bounds };
        let is_listed = |own: &&KeyBounds| {
            key.as_ref().is_some_and(|key| key.values.contains(&own.key))
                && columns.iter().any(|column| column.name == own.column.name)
        };
        let key_bounds = own.iter().filter(is_listed).cloned().collect();
        let by_column = || self.lacks_values.then(|| "by-column".into());
        let time = arguments.time.as_ref().or(self.time.as_ref()).cloned();
        let arrival = arguments.arrival.as_ref().or(self.arrival.as_ref()).cloned();
        let is_local = time.as_deref().is_some_and(|time| profile.has_local_times(time));
        let horizon = if time.is_some() { self.horizon } else { COUNTED_EPOCHS };
        let unit = arguments.unit.as_ref().or(self.entities.first()).cloned();
        Draft {
            columns,
            key,
            key_bounds,
            missing: arguments.missing.clone().or_else(by_column),
            arrival: arrival.filter(|_| time.is_some()),
            time_format: profile.time_format(time.as_deref()),
            time,
            timezone: arguments.timezone.clone().or(is_local.then(|| UTC.into())),
            epoch: Some(arguments.epoch.as_ref().unwrap_or(&self.epoch).clone()),
            start: arguments.start.as_ref().unwrap_or(&self.start).clone(),
            horizon: arguments.horizon.unwrap_or(horizon),
            entity: unit.filter(|unit| unit != "record"),
            repeat_policy: arguments.repeat_policy,
            records: arguments.records_per_epoch,
            participations: arguments.participations,
            epsilon: arguments.epsilon.map_or(1.0, Epsilon::value),
            delta: arguments.delta.map_or(1e-6, Delta::value),
        }
    }

    /// Returns a command that makes the proposed pipeline, with the flags that are given.
    pub(super) fn command(
        &self,
        profile: &FileProfile,
        arguments: &InitArguments,
        output: &Path,
        search: &dyn Fn(&Draft) -> Option<LimitSearch>,
    ) -> String {
        let files: Vec<_> = arguments.files.iter().map(|path| quoted(&path.display().to_string())).collect();
        let mut command =
            format!("hushflow init {} --output {}", files.join(" "), quoted(&output.display().to_string()));
        let draft = self.draft(profile, arguments);
        let mut add = |flag: &str, value: &str| command += &format!(" \\\n    {flag} {}", quoted(value));
        draft.columns.iter().for_each(|column| add("--columns", &bounds_text(column)));
        if let Some(key) = &draft.key {
            add("--key", &format!("{}={}", key.column, list(&key.values)));
        }
        for own in &draft.key_bounds {
            add("--key-bounds", &key_bounds_text(own));
        }
        draft.missing.iter().for_each(|missing| add("--missing", missing));
        if let Some(time) = &draft.time {
            add("--time", time);
            draft.arrival.iter().for_each(|arrival| add("--arrival", arrival));
            arguments.time_format.iter().for_each(|format| add("--time-format", format.name()));
            draft.timezone.iter().for_each(|zone| add("--timezone", zone));
            add("--start", &draft.start);
        }
        if draft.time.is_some() || arguments.horizon.is_some() {
            add("--horizon", &draft.horizon.to_string());
        }
        draft.epoch.iter().for_each(|epoch| add("--epoch", epoch));
        match &draft.entity {
            Some(unit) => {
                add("--unit", unit);
                let given = (draft.repeat_policy, draft.records, draft.participations);
                if let Some(limits) = search(&draft).map(|search| search.proposed(given.0, given.1, given.2))
                {
                    if limits.repeat_policy == RepeatPolicy::Average {
                        add("--several", repeat_policy_word(limits.repeat_policy));
                    }
                    add("--records-per-epoch", &limits.records.to_string());
                    add("--participations", &limits.participations.to_string());
                }
            }
            None => arguments.unit.iter().for_each(|unit| add("--unit", unit)),
        }
        add("--epsilon", &draft.epsilon.to_string());
        add("--delta", &format!("{:e}", draft.delta));
        command
    }
}

/// Returns bounds of the keys whose values lie in a small part of those of their column. The ranges
/// are those of these columns.
pub(super) fn bounds_by_key(columns: &[ColumnBounds], ranges: &BTreeMap<String, Ranges>) -> Vec<KeyBounds> {
    let all = |slot: usize| {
        let ranges = ranges.values().filter_map(|ranges| ranges[slot]);
        ranges.reduce(|(least, greatest), range| (range.0.min(least), range.1.max(greatest)))
    };
    let all: Vec<_> = (0..columns.len()).map(all).collect();
    let mut own = Vec::new();
    for (key, ranges) in ranges {
        for ((column, range), all) in columns.iter().zip(ranges).zip(&all) {
            let Some(((least, greatest), all)) = range.zip(*all) else { continue };
            let (lower, upper) = outwards(least, greatest);
            if 4.0 * (upper - lower) <= (all.1 - all.0).min(column.upper - column.lower) {
                let column = ColumnBounds { name: column.name.clone(), lower, upper };
                own.push(KeyBounds { key: key.clone(), column });
            }
        }
    }
    own
}

/// Formats bounds of a key for `--key-bounds`.
pub(super) fn key_bounds_text(own: &KeyBounds) -> String {
    format!("{}={}", own.key, bounds_text(&own.column))
}

fn bounds_text(column: &ColumnBounds) -> String {
    format!("{}:{}:{}", column.name, number(column.lower), number(column.upper))
}

/// Parts of names of columns with the time when a row arrived.
pub(super) const ARRIVALS: [&str; 8] =
    ["arriv", "record", "receiv", "ingest", "load", "creat", "insert", "updat"];

/// Parts of names of columns with kinds of measurement.
const KINDS: [&str; 12] = [
    "kind", "type", "test", "analyte", "measure", "param", "metric", "quantity", "variable", "item",
    "sensor", "signal",
];

/// Whether most values are numbers with a decimal comma.
fn has_decimal_commas(column: &ColumnProfile) -> bool {
    2 * column.decimal_commas > column.present
}

pub(super) fn is_like(name: &str, parts: &[&str]) -> bool {
    let name = name.to_lowercase();
    parts.iter().any(|part| name.contains(part))
}

/// Quotes a word for the shell, if necessary.
pub(super) fn quoted(word: &str) -> String {
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

/// Rounds a range outwards to one digit of its larger end. A range that starts near 0 starts at 0.
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

/// Returns the longest length with at least seven epochs in the span; a day if there is none.
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
        // Weeks begin on the last Monday before the first row, however many make an epoch.
        let (_, start, horizon) = epochs(year, "9 weeks", UTC);
        assert_eq!((start.as_str(), horizon), ("2012-12-31", 6));
    }
}
