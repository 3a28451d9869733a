//! An artificial stream, and the exact sums of any pipeline over CSV files, computed by plain
//! loops.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;

use hushflow::mechanism::epochs::{ClockSource, LatePolicy, Schedule};
use hushflow::mechanism::moments::{Clipper, QuantisedRows};
use hushflow::pipeline::{Pipeline, Source};
use hushflow::time::parse_time;

use super::Lab;

/// A row that joins an epoch.
#[derive(Clone)]
pub(crate) struct Assigned {
    /// The epoch, from 1.
    pub(crate) epoch: usize,
    pub(crate) key: usize,
    /// The entity of the row; empty if single records are protected.
    pub(crate) entity: String,
    pub(crate) values: Vec<f64>,
}

/// Returns the number of epochs and, in order, the rows of a pipeline that join an epoch, computed
/// by plain loops. Each source is one CSV file.
pub(crate) fn assigned(pipeline: &Pipeline) -> (usize, Vec<Assigned>) {
    let mut seen = HashSet::new();
    let read: Vec<_> = pipeline.sources.iter().map(|source| read(pipeline, source, &mut seen)).collect();
    let last = read.iter().map(|(last, _)| *last).max().expect("a source");
    (last, read.into_iter().flat_map(|(_, rows)| rows).collect())
}

/// Returns the last epoch of one source and its complete rows with their epochs, without duplicates
/// of the rows in `seen`.
fn read(
    pipeline: &Pipeline,
    source: &Source,
    seen: &mut HashSet<(i64, Vec<String>)>,
) -> (usize, Vec<Assigned>) {
    let Schedule::ByTime(by) = &source.schedule else { panic!("epochs are made of time") };
    let epoch_at = |time: i64| 1 + (time - by.start).div_euclid(by.length);
    let clock_column =
        if by.clock == ClockSource::EventTime { &pipeline.epochs.time } else { &source.arrival };

    let (mut rows, mut last, mut clock) = (Vec::new(), 0, i64::MIN);
    let mut reader = csv::Reader::from_path(source.input.to_string()).expect("the data");
    let header = reader.headers().expect("a header").clone();
    let index = |name: &str| header.iter().position(|found| found == name).expect("the column");
    let time_of = |row: &csv::StringRecord, column: &Option<String>| {
        parse_time(&row[index(column.as_ref().expect("a column of times"))]).expect("a time")
    };
    for row in reader.records() {
        let row = row.expect("a row");
        let arrival = time_of(&row, clock_column);
        if source.largest_jump.is_some_and(|jump| arrival > clock.max(by.start) + jump) {
            continue;
        }
        clock = clock.max(arrival);
        let (oldest, newest) = (epoch_at(clock - by.lateness).max(1), epoch_at(clock));
        last = last.max(newest.clamp(0, by.horizon as i64) as usize);
        let values: Option<Vec<f64>> =
            pipeline.columns.iter().map(|column| row[index(&column.name)].parse().ok()).collect();
        let own = epoch_at(time_of(&row, &pipeline.epochs.time)).min(newest);
        let epoch = own.max(oldest);
        let key = pipeline
            .key
            .as_ref()
            .map_or(Some(0), |key| key.values.iter().position(|value| *value == row[index(&key.column)]));
        let (Some(values), Some(key)) = (values, key) else { continue };
        let dropped = own < oldest && by.late == LatePolicy::Drop;
        if clock < by.start || epoch > by.horizon as i64 || dropped {
            continue;
        }
        let entity =
            pipeline.entity.as_ref().map_or(String::new(), |entity| row[index(&entity.column)].into());
        if pipeline.id.is_none() || seen.insert((epoch, row.iter().map(String::from).collect())) {
            rows.push(Assigned { epoch: epoch as usize, key, entity, values });
        }
    }
    (last, rows)
}

/// The exact sums of rows, epoch by epoch.
pub(crate) fn sums_of(pipeline: &Pipeline, epochs: usize, rows: &[Assigned]) -> Vec<Vec<i128>> {
    let bounds: Vec<_> = pipeline.columns.iter().map(|column| (column.lower, column.upper)).collect();
    let clipper = Clipper::new(&bounds, pipeline.privacy.clip_norm).expect("bounds");
    let d = bounds.len();
    let width = 1 + d + d * (d + 1) / 2;
    let keys = pipeline.key.as_ref().map_or(1, |key| key.values.len());
    let mut sums = vec![vec![0; keys * width]; epochs];
    for row in rows {
        let mut quantised = QuantisedRows::new(d);
        clipper.quantise(&row.values, &mut quantised).expect("finite values");
        let q: Vec<i128> = quantised.values().iter().map(|&value| value as i128).collect();
        let products = (0..d).flat_map(|i| (i..d).map(move |j| (i, j))).map(|(i, j)| q[i] * q[j]);
        let record = [1].into_iter().chain(q.iter().copied()).chain(products);
        let indices = sums[row.epoch - 1][row.key * width..].iter_mut();
        indices.zip(record).for_each(|(sum, part)| *sum += part);
    }
    sums
}

/// Returns the sums expected of a pipeline over CSV files that protects single records.
pub(crate) fn expected_sums(pipeline: &Path) -> Vec<Vec<i128>> {
    let pipeline = Pipeline::load(pipeline).expect("a pipeline");
    let (epochs, rows) = assigned(&pipeline);
    sums_of(&pipeline, epochs, &rows)
}

/// Splitmix64 (Steele, Lea & Flood 2014): test data from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

/// An artificial stream: five columns, seven keys, one row per second of arrival, and events up to
/// `LATENESS` seconds before or, every hundredth row, after the arrival.
pub(crate) struct Stream {
    pub(crate) rows: u64,
    pub(crate) epochs: u64,
}

const LATENESS: u64 = 90;

impl Stream {
    /// Writes the stream as `data.csv` in a new lab. Returns the lab, the header, the rows with
    /// their line ends, and the expected sums.
    pub(crate) fn laid_out(&self) -> (Lab, String, Vec<String>, Vec<Vec<i128>>) {
        let (lab, text) = (Lab::new(), self.csv());
        lab.write("data.csv", &text);
        let expected = expected_sums(&lab.write("file.toml", self.pipeline("data.csv", "")));
        let mut lines = text.split_inclusive('\n').map(String::from);
        let header = lines.next().expect("a header");
        (lab, header, lines.collect(), expected)
    }

    pub(crate) fn csv(&self) -> String {
        let mut random = Random(self.rows);
        let mut text = String::from("event,arrival,key,a,b,c,d,e\n");
        for second in 0..self.rows {
            let early = second % 100 == 99;
            let offset = random.below(LATENESS);
            let event = if early { second + offset } else { second.saturating_sub(offset) };
            let _ = write!(text, "{},{},k{}", time(event), time(second), random.below(8));
            for _ in 0..5 {
                let _ = write!(text, ",{}.{:03}", random.below(24) as i64 - 12, random.below(1000));
            }
            text.push('\n');
        }
        text
    }

    /// The pipeline over `path`, which keeps all sums, with more sections at its end.
    pub(crate) fn pipeline(&self, path: &str, more: &str) -> String {
        let column = |name| format!("[[columns]]\nname = '{name}'\nlower = -10\nupper = 10\n");
        let columns: String = ["a", "b", "c", "d", "e"].map(column).concat();
        format!(
            "name = 'stream'
[source]
path = '{path}'
format = 'csv'
{columns}[key]
column = 'key'
values = ['k0', 'k1', 'k2', 'k3', 'k4', 'k5', 'k6']
[epochs]
time = 'event'
arrival = 'arrival'
start = '2020-01-01'
length = '{}s'
allowed_lateness = '{LATENESS}s'
horizon = {}
[privacy]
epsilon = 1
delta = 1e-6
clip_norm = 1.5
[state]
keep = 'all'
[release]
strategy = 'square-root'
{more}",
            self.rows / self.epochs,
            self.epochs,
        )
    }
}

fn time(second: u64) -> String {
    let (day, hour, minute) = (1 + second / 86_400, second / 3600 % 24, second / 60 % 60);
    format!("2020-01-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}
