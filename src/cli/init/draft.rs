//! The draft that the operator makes from the proposals, checked against the files. Also the
//! properties of times and missing values in a profile.

use hushflow::format::profile::{ColumnKind, ColumnProfile, FileProfile};
use hushflow::operators::RepeatPolicy;
use hushflow::spelling::did_you_mean;
use hushflow::time::{TimeFormat, is_varying_length, parse_time};

use super::super::CliError;
use super::propose::{ARRIVALS, COUNTED_EPOCHS, UTC, is_like, quoted};
use super::values::{ColumnBounds, KeyBounds, Keys};

/// Numbers read as times before this one cause a doubt about their unit.
const RECENT: &str = "1980-01-01";

/// The contents of the pipeline file.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) columns: Vec<ColumnBounds>,
    pub(super) key: Option<Keys>,
    pub(super) key_bounds: Vec<KeyBounds>,
    /// Treatment of rows that lack a value, if they are not skipped.
    pub(super) missing: Option<String>,
    pub(super) time: Option<String>,
    pub(super) arrival: Option<String>,
    /// Format of times other than RFC 3339.
    pub(super) time_format: Option<TimeFormat>,
    pub(super) timezone: Option<String>,
    pub(super) epoch: Option<String>,
    pub(super) start: String,
    pub(super) horizon: u64,
    /// Column of the entity, unless records are protected.
    pub(super) entity: Option<String>,
    pub(super) repeat_policy: Option<RepeatPolicy>,
    /// Maximum number of records of an entity in an epoch.
    pub(super) records: Option<u64>,
    /// Maximum number of epochs in which an entity counts.
    pub(super) participations: Option<u64>,
    pub(super) epsilon: f64,
    pub(super) delta: f64,
}

impl Draft {
    /// Checks that the columns exist and hold suitable values.
    pub(super) fn check(&self, profile: &FileProfile) -> Result<(), CliError> {
        let limits = [
            ("--participations", self.participations.is_some()),
            ("--records-per-epoch", self.records.is_some()),
            ("--several", self.repeat_policy.is_some()),
        ];
        if let (Some((flag, _)), None) = (limits.iter().find(|(_, is_given)| *is_given), &self.entity) {
            return Err(CliError::usage(format!(
                "{flag} limits a person or a device: name its column with --unit, or leave it out"
            )));
        }
        if let (Some(time), true) = (&self.time, self.arrival == self.time) {
            return Err(CliError::usage(format!(
                "--arrival: {time:?} is the time of the event, which is private, and the clock is public: name another column, or leave \
                 --arrival out, and all epochs close at the end of the input"
            )));
        }
        let values = self.columns.iter().map(|column| (&column.name, Some(ColumnKind::Number)));
        let times =
            [&self.time, &self.arrival].into_iter().flatten().map(|name| (name, Some(ColumnKind::Time)));
        let others = self.key.iter().map(|key| &key.column).chain(&self.entity).map(|name| (name, None));
        for (name, kind) in values.chain(times).chain(others) {
            let Some(column) = profile.columns.iter().find(|column| column.name == *name) else {
                return Err(CliError::usage(no_column(name, profile)));
            };
            let fits = match kind {
                Some(ColumnKind::Number) => 2 * column.numbers > column.present,
                Some(ColumnKind::Time) => 2 * column.times > column.present,
                _ => true,
            };
            if !fits {
                return Err(CliError::usage(format!(
                    "most values of the column {name:?} {}",
                    unfit(column, kind)
                )));
            }
        }
        self.check_times(profile)
    }

    /// Checks that both columns of times are written alike, and can be read in one way only.
    fn check_times(&self, profile: &FileProfile) -> Result<(), CliError> {
        let found =
            |name: &Option<String>| profile.columns.iter().find(|column| Some(&column.name) == name.as_ref());
        let (Some(time), arrival) = (found(&self.time), found(&self.arrival)) else { return Ok(()) };
        if let (Some(format), Some(other)) = (&time.time_format, &time.other_format) {
            return Err(CliError::usage(format!(
                "days and months of the column {:?} may be swapped: choose --time-format '{}' or --time-format '{}'",
                time.name,
                format.name(),
                other.name()
            )));
        }
        match arrival.filter(|arrival| arrival.time_format != time.time_format) {
            Some(arrival) => Err(CliError::usage(format!(
                "the times of the columns {:?} and {:?} are written in different forms, and [source] time_format names one: \
                 leave --arrival out, or write both in the same form",
                time.name, arrival.name
            ))),
            None => Ok(()),
        }
    }

    /// Fills in the number of rows of an epoch and the limits. Months and years need a time zone.
    pub(super) fn filled(self, profile: &FileProfile) -> Self {
        let rows = || profile.rows.div_ceil(COUNTED_EPOCHS).max(1).to_string();
        let epoch = self.epoch.clone().unwrap_or_else(rows);
        let is_varying = self.time.is_some() && is_varying_length(&epoch) == Some(true);
        let timezone = self.timezone.clone().or(is_varying.then(|| UTC.into()));
        Draft {
            epoch: Some(epoch),
            timezone,
            repeat_policy: self.repeat_policy.or(Some(RepeatPolicy::Keep)),
            records: self.records.or(Some(1)),
            participations: self.participations.or(Some(self.horizon)),
            ..self
        }
    }

    /// States the choices of [`filled`](Self::filled), and the format of times.
    pub(super) fn notes(&self, profile: &FileProfile, entities: &[String]) -> Vec<String> {
        let filled = self.clone().filled(profile);
        let epoch = filled.epoch.unwrap_or_default();
        let mut notes = Vec::new();
        if let (Some(time), Some(format)) = (&self.time, &self.time_format) {
            notes.push(match format {
                TimeFormat::SinceEpoch(_) => {
                    let span = profile.span_of(time);
                    let doubt = match span.filter(|&(_, last)| Some(last) < parse_time(RECENT)) {
                        Some(_) => ", and lie before 1980: another unit may be right",
                        None => "",
                    };
                    format!("times of {time:?} are read as {} since 1970{doubt}", format.name())
                }
                TimeFormat::Pattern(pattern) => {
                    format!("times of {time:?} are read by the pattern {pattern:?}")
                }
            });
        }
        if let (Some(_), None, Some(arrival)) = (&self.time, &self.arrival, profile.arrival()) {
            notes.push(format!(
                "epochs close at the end of the input; --arrival {} would close them as rows come",
                quoted(&arrival.name)
            ));
        }
        if self.entity.is_none() && !entities.is_empty() {
            notes.push(format!(
                "single rows are protected; if {} names a person or device, --unit protects all of its rows together",
                entities.join(" or ")
            ));
        }
        if self.missing.is_none() && profile.lacks_values(self.columns.iter().map(|column| &column.name)) {
            notes.push("many rows lack a value and are skipped; --missing by-column counts them for their other columns".into());
        }
        if let (None, None) = (&self.epoch, &self.time) {
            notes.push(format!(
                "without --time and --epoch, an epoch is {epoch} rows in their order, a tenth of the file, and there are {} epochs",
                self.horizon
            ));
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

/// Says that a file has no such column, and which columns it has.
pub(super) fn no_column(name: &str, profile: &FileProfile) -> String {
    let names: Vec<_> = profile.columns.iter().map(|column| column.name.as_str()).collect();
    format!("the file has no column {name:?}, but {}{}", names.join(", "), did_you_mean(name, &names))
}

/// The fault of a column with decimal commas, and the remedy.
pub(super) const DECIMAL_COMMAS: &str = "have decimal commas, which are not read: write points, as LC_ALL=C sed -E \
    's/([0-9]),([0-9])/\\1.\\2/g' FILE > NEW does, if no comma separates fields or thousands";

/// Describes the fault of a column and the remedy.
fn unfit(column: &ColumnProfile, kind: Option<ColumnKind>) -> String {
    match (kind, &column.time_format) {
        (Some(ColumnKind::Time), Some(format)) => {
            format!("do not fit --time-format: expected {}", format.expected())
        }
        (Some(ColumnKind::Time), None) if column.numbers > 0 => {
            "are numbers: if they are seconds or parts of seconds since 1970, or dates, name the \
            form by --time-format, such as seconds, milliseconds or '%Y%m%d'"
                .into()
        }
        (Some(ColumnKind::Time), None) => {
            "are not dates or RFC 3339 times: choose another column, or name the form by --time-format, \
            such as '%d/%m/%Y %H:%M'"
                .into()
        }
        _ if column.decimal_commas > 0 => DECIMAL_COMMAS.into(),
        _ => "are not numbers: choose another".into(),
    }
}

/// Properties of times and missing values in a profile.
pub(super) trait Times {
    /// The first and the last time of a column.
    fn span_of(&self, column: &str) -> Option<(i64, i64)>;
    /// The format of the times of a column, if it is not RFC 3339.
    fn time_format(&self, column: Option<&str>) -> Option<TimeFormat>;
    /// The column that may hold arrival times: by its name, and because its times are in order.
    fn arrival(&self) -> Option<&ColumnProfile>;
    /// Whether more than a tenth of the rows lack a value of one of these columns.
    fn lacks_values<'a>(&self, columns: impl Iterator<Item = &'a String>) -> bool;
    /// Whether times of a column lack an offset from UTC.
    fn has_local_times(&self, column: &str) -> bool;
    /// A note if the times of a column may belong to a zone other than UTC.
    fn zone_note(&self, column: &str) -> Option<String>;
}

impl Times for FileProfile {
    fn span_of(&self, column: &str) -> Option<(i64, i64)> {
        self.columns.iter().find(|profile| profile.name == column)?.span
    }

    fn time_format(&self, column: Option<&str>) -> Option<TimeFormat> {
        self.columns.iter().find(|profile| Some(profile.name.as_str()) == column)?.time_format.clone()
    }

    fn arrival(&self) -> Option<&ColumnProfile> {
        let times = || self.columns.iter().filter(|column| column.kind() == ColumnKind::Time);
        let is_ordered = |column: &ColumnProfile| 100 * column.falls <= column.times;
        let ordered = || times().filter(|column| is_ordered(column));
        // The last part of a field's name is more specific than the name of its object.
        let own = |column: &&ColumnProfile| is_like(column.name.rsplit('.').next().unwrap_or(""), &ARRIVALS);
        let found = ordered().find(own).or_else(|| ordered().find(|column| is_like(&column.name, &ARRIVALS)));
        found.filter(|_| times().count() > 1)
    }

    fn lacks_values<'a>(&self, mut columns: impl Iterator<Item = &'a String>) -> bool {
        let lacks = |name: &String| {
            let column = self.columns.iter().find(|column| column.name == *name);
            column.is_some_and(|column| 10 * column.numbers < 9 * self.rows)
        };
        columns.any(lacks)
    }

    fn has_local_times(&self, column: &str) -> bool {
        self.columns.iter().any(|profile| profile.name == column && profile.local_times > 0)
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
