//! `[source]` or `[[sources]]`: where rows come from, their format, and when they are late.

use std::time::Duration;

use hushflow_mechanism::epochs::{ClockSource, Schedule};
use serde::{Deserialize, Serialize};

use crate::connect::{Input, journal};
use crate::format::Format;
use crate::format::profile::names;
use crate::time::TimeFormat;

/// A source of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// `name`: name of one of several sources; empty for a single source.
    pub name: String,
    /// `path`: files, standard input, a socket, or a stream on a broker, with their own fields.
    pub input: Input,
    /// `format`: by default from the file extension.
    pub format: Format,
    /// `journal`: whether the input can't be read again, so that records are kept in a journal in
    /// the state directory until they are counted. Always true for a socket.
    pub journal: bool,
    /// `journal_limit`: size of the journal in bytes at which senders are blocked.
    pub journal_limit: u64,
    /// `header`: column names of a CSV stream without a header line.
    pub header: Option<Vec<String>>,
    /// `time_format`: how times are written, if not in RFC 3339.
    pub time_format: Option<TimeFormat>,
    /// The schedule of the pipeline with the clock and lateness of this source.
    pub schedule: Schedule,
    /// `arrival`: column that advances the clock of this source, if any.
    pub arrival: Option<String>,
    /// `idle`: time without records after which this source stops holding back the clock of the
    /// others.
    pub idle: Option<Duration>,
    /// `largest_jump`: how far one row may advance the clock, in microseconds; `None` if no row
    /// moves a clock.
    pub largest_jump: Option<i64>,
}

/// Public parameters of one of several sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceClock {
    /// [`Source::name`].
    pub name: String,
    /// How long an epoch stays open for this source after its end, in microseconds of its clock.
    pub lateness: i64,
    /// Source of its clock.
    pub clock: ClockSource,
    /// [`Source::arrival`].
    pub arrival: Option<String>,
}

impl Source {
    /// Smallest `journal_limit`: a group of records always fits.
    pub const LEAST_JOURNAL_LIMIT: u64 = 8 << 20;
    /// Default of `journal_limit`.
    pub const JOURNAL_LIMIT: u64 = 1 << 30;

    /// Whether the source has no end: its run ends at the horizon, by a signal, or by
    /// `--until-idle`.
    pub fn is_endless(&self) -> bool {
        self.input.source().is_endless()
    }

    /// Returns the names of the fields in the first rows of listed NDJSON files. They are of rows,
    /// so they are private. Formats with a header refuse a column that it lacks.
    pub fn field_names(&self) -> Vec<String> {
        let files = self.input.source().files().filter(|_| self.format == Format::Ndjson);
        let first = files.and_then(|files| files.first());
        first.and_then(|path| names(path, self.format).ok()).unwrap_or_default()
    }

    /// Source tag stored with each of its positions in the private log.
    pub(crate) fn tag(&self) -> u32 {
        if self.journal { u32::from(journal::TAG) } else { self.input.tag(self.format) }
    }

    /// Returns the clock of the source; `None` if epochs count rows.
    pub fn public_clock(&self) -> Option<SourceClock> {
        let Schedule::ByTime(by) = &self.schedule else { return None };
        let (name, arrival) = (self.name.clone(), self.arrival.clone());
        Some(SourceClock { name, lateness: by.lateness, clock: by.clock, arrival })
    }
}
