//! Rows of a case: arrival times, contents, and text.

use std::fmt::Write;

use hushflow::time::parse_time;

use super::factors::{Case, Factor as F};
use super::pipeline::{BOUNDS, KEYS, LATENESS, LENGTH};
use crate::harness::Random;

/// Number of rows for which a clock falls back: above a fiftieth and below a tenth of the rows.
const FALLEN: i64 = 120;

/// One byte more than a key may have.
const LONG_KEY: &str = match str::from_utf8(&[b'k'; 257]) {
    Ok(key) => key,
    Err(_) => "",
};

/// Contents of a row without its arrival.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub(super) event: String,
    pub(super) key: String,
    pub(super) entity: String,
    pub(super) id: String,
    pub(super) values: Vec<String>,
}

/// A row; its arrival and source are public.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StreamRow {
    /// Seconds from the start of the first epoch.
    pub(super) arrival: i64,
    pub(super) source: usize,
    pub(super) record: Record,
}

/// Seconds from the start as text.
pub(super) fn time(second: i64) -> String {
    match second {
        0.. => format!("2020-01-01T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60),
        _ => format!("2019-12-31T23:{:02}:{:02}Z", 59 + (second + 1) / 60, (59 + (second + 1) % 60)),
    }
}

/// Makes the rows of a case.
pub(super) struct Maker<'a> {
    pub(super) case: &'a Case,
    pub(super) random: Random,
    next_id: u64,
}

impl<'a> Maker<'a> {
    pub(super) fn new(case: &'a Case) -> Self {
        Maker { case, random: Random(case.seed), next_id: 0 }
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    pub(super) fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.below(of.len() as u64) as usize]
    }

    /// All rows, up to the end of the last epoch by count or by arrival.
    pub(super) fn stream(&mut self) -> Vec<StreamRow> {
        let (horizon, per) = (self.case.number(F::Horizon), self.case.rows_per_epoch());
        let by_count = self.case.is(F::Clock, &["records"]);
        let sources = self.case.files().len() as u64;
        let mut rows: Vec<StreamRow> = Vec::new();
        for epoch in 0..horizon {
            // With many rows, one epoch holds more than a batch of the reader.
            let number = match (by_count, per) {
                (false, 1200) if epoch == 0 => 4300,
                (false, 1200) => 3,
                _ => per,
            };
            for index in 0..number {
                let within = index as i64 * (LENGTH - 10) / number as i64 + self.random.below(3) as i64;
                let arrival = epoch as i64 * LENGTH + within;
                let source = self.random.below(sources) as usize;
                let mut record = self.record(arrival);
                if self.case.is(F::Copies, &["by id"]) && self.chance(20) && !rows.is_empty() {
                    record = rows[self.random.below(rows.len() as u64) as usize].record.clone();
                }
                rows.push(StreamRow { arrival, source, record });
            }
        }
        if self.case.is(F::Jump, &["limited"]) {
            let index = self.random.below(rows.len() as u64) as usize;
            rows[index].arrival += 20 * 3600;
        }
        if self.case.is(F::Jump, &["back"]) {
            for arrival in (0..FALLEN).map(|row| row % LENGTH) {
                let source = self.random.below(sources) as usize;
                rows.push(StreamRow { arrival, source, record: self.record(arrival) });
            }
        }
        rows
    }

    /// A record that arrives at this time.
    pub(super) fn record(&mut self, arrival: i64) -> Record {
        self.next_id += 1;
        let keyed = !self.case.is(F::Keys, &["none"]);
        let key = if keyed && self.chance(5) { "other" } else { self.one_of(&KEYS) };
        Record {
            event: self.event(arrival),
            key: key.into(),
            // Discovery counts the entities of a key, so it needs many.
            entity: format!("e{}", 1 + self.random.below(if self.case.discovers() { 100_000 } else { 4 })),
            id: format!("r{}", self.next_id),
            values: (0..self.case.number(F::Columns)).map(|column| self.value(column)).collect(),
        }
    }

    fn event(&mut self, arrival: i64) -> String {
        let end = self.case.number(F::Horizon) as i64 * LENGTH;
        let reach = |most: i64, random: &mut Random| random.below(most as u64) as i64;
        let random = &mut self.random;
        let offset = match &self.case[F::Clock] {
            "end-of-input" => return time(reach(end + 2 * LENGTH, random) - LENGTH),
            "late folded" | "late dropped" => reach(2 * LATENESS, random),
            "event-time" if random.below(5) > 0 => 0,
            _ => reach(LENGTH / 2, random),
        };
        let early = self.chance(5);
        time(if early { arrival + offset } else { arrival - offset })
    }

    /// A value of this column, of the case's kind of values.
    pub(super) fn value(&mut self, column: usize) -> String {
        let [lower, upper] = BOUNDS[column];
        if self.case.is(F::Missing, &["by column"]) && self.chance(25) {
            return self.one_of(&["", "NaN", "inf", "x"]).into();
        }
        match &self.case[F::Values] {
            "odd" if self.chance(30) => self
                .one_of(&["NaN", "inf", "-inf", "", "x", "1e309", "-0.0", "0x10", "1_000", "5e-324"])
                .into(),
            "huge" if self.chance(50) => self
                .one_of(&[
                    "1e308",
                    "-1e308",
                    "1.7976931348623157e308",
                    "1e-310",
                    "-5e-324",
                    "9007199254740993",
                    "1e17",
                ])
                .into(),
            _ => format!("{:.4}", lower + (upper - lower) * self.random.below(10_001) as f64 / 10_000.0),
        }
    }

    /// Values at the corner of all upper bounds, or of all lower ones: the longest record that
    /// clipping allows.
    pub(super) fn corner(&self, upper: bool) -> Vec<String> {
        let columns = BOUNDS.iter().take(self.case.number(F::Columns));
        columns.map(|[lower, bound]| if upper { bound } else { lower }.to_string()).collect()
    }

    /// An unusable version of a record.
    pub(super) fn blank(&mut self, record: &Record) -> Record {
        let mut blank = record.clone();
        let timed = !self.case.is(F::Clock, &["records"]);
        match self.random.below(7) {
            0 if self.case.is(F::Keys, &["three"]) => blank.key = self.one_of(&["other", ""]).into(),
            // Any text is a key except these.
            0 if self.case.discovers() => blank.key = self.one_of(&["", "\u{1}", LONG_KEY]).into(),
            1 if self.case.is(F::Unit, &["entity"]) => blank.entity = String::new(),
            2 if timed => blank.event = self.one_of(&["", "soon", "2020-13-01T00:00:00Z"]).into(),
            3 if self.case.is(F::Copies, &["by id"]) => blank.id = String::new(),
            4 => {
                blank.values = vec![String::new(); blank.values.len()];
                (blank.key, blank.entity, blank.id) = Default::default();
            }
            // Here a record is usable if it lacks some of its values, but not if it lacks all.
            _ if self.case.is(F::Missing, &["by column"]) => {
                let values = blank.values.iter().map(|_| self.one_of(&["", "NaN", "inf", "x"]).to_owned());
                blank.values = values.collect();
            }
            _ => {
                let column = self.random.below(blank.values.len() as u64) as usize;
                blank.values[column] = self.one_of(&["", "NaN", "inf", "x", "1e999"]).into();
            }
        }
        blank
    }
}

/// Column names of a file.
const NAMES: [&str; 8] = ["arrival", "event", "key", "entity", "id", "x", "y", "z"];

impl StreamRow {
    /// Its event time in seconds from the start; far before the start if it is unreadable.
    pub(super) fn event_second(&self) -> i64 {
        let micros = |text| parse_time(text).unwrap_or(i64::MIN / 2);
        (micros(&self.record.event) - micros("2020-01-01T00:00:00Z")) / 1_000_000
    }

    fn fields(&self) -> Vec<String> {
        let Record { event, key, entity, id, values } = &self.record;
        let texts = [&time(self.arrival), event, key, entity, id].map(String::clone);
        texts.into_iter().chain(values.iter().cloned()).collect()
    }

    fn write(&self, format: &str, note: &str, text: &mut String) {
        let fields = self.fields();
        if format == "csv" {
            let _ = writeln!(text, "{}{note}", fields.join(","));
            return;
        }
        let field = |(at, (name, field)): (usize, (&&str, &String))| {
            let is_number = at >= 5 && serde_json::from_str::<f64>(field).is_ok();
            if is_number { format!("{name:?}:{field}") } else { format!("{name:?}:{field:?}") }
        };
        let fields: Vec<_> = NAMES.iter().zip(&fields).enumerate().map(field).collect();
        let _ = writeln!(text, "{{{}}}", fields.join(","));
    }
}

/// The text of a file, or of piped input, with these rows and their header.
pub(super) fn written<'a>(case: &Case, rows: impl Iterator<Item = &'a StreamRow>) -> String {
    let (mut text, mut note) = (String::new(), String::new());
    let title = if case.is(F::Rows, &["ranges"]) { ",note" } else { "" };
    if case.is(F::Format, &["csv"]) {
        text = NAMES[..5 + case.number(F::Columns)].join(",") + title + "\n";
        // Ends of lines that end no row.
        note = title.replace("note", &format!("\"{}\"", "a note,\n".repeat(25)));
    }
    rows.for_each(|row| row.write(&case[F::Format], &note, &mut text));
    text
}
