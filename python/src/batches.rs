//! Batches of columns as records of epochs, by the rules for rows of a pipeline.
//!
//! A batch is checked as a whole before any record of it is sent, so a refused one counts nothing.

use hushflow::mechanism::epochs::{Clock, LatePolicy, Schedule, TimeSchedule};
use hushflow::operators::{Entity, Records};
use hushflow::pipeline::{MissingPolicy, Pipeline, RowPolicy};
use hushflow::source::entity;

use crate::errors::Failure;

/// The number of a key that the pipeline does not list.
const UNLISTED: u32 = u32::MAX;

/// Records of a batch that is sent at once.
const CHUNK: usize = 1 << 16;

/// Columns of equal length.
pub(crate) struct Batch {
    /// The values of each column.
    pub(crate) columns: Vec<Vec<f64>>,
    /// Numbers of the keys; none without keys.
    pub(crate) keys: Option<Vec<u32>>,
    /// Event times in microseconds since 1970; without them all rows join the current epoch.
    pub(crate) times: Option<Vec<i64>>,
    /// Names of the entities, empty where missing; none unless entities are protected.
    pub(crate) entities: Option<Vec<String>>,
}

/// The rules for rows.
pub(crate) struct BatchRules {
    names: Vec<String>,
    keys: Option<u32>,
    has_entities: bool,
    missing: MissingPolicy,
    malformed: RowPolicy,
    /// Whether a record with unusable values counts in the middle of the bounds, for counts are
    /// public.
    counts_unusable: bool,
    schedule: TimeSchedule,
}

impl BatchRules {
    /// # Errors
    /// For pipelines whose rows need more than their values: copies, epochs of a number of rows.
    pub(crate) fn new(pipeline: &Pipeline) -> Result<Self, Failure> {
        let refuse = |what: &str| Err(Failure::parameter(format!("{what}: only `hushflow run` does this")));
        let Schedule::ByTime(schedule) = &pipeline.epochs.schedule else {
            return refuse("epochs.records: epochs of a number of rows close by themselves");
        };
        if pipeline.id.is_some() {
            return refuse("source.id: copies of records are not left out here");
        }
        Ok(BatchRules {
            names: pipeline.columns.iter().map(|column| column.name.clone()).collect(),
            keys: pipeline.key.as_ref().map(|key| key.values.len() as u32),
            has_entities: pipeline.entity.is_some(),
            missing: pipeline.rows.missing,
            malformed: pipeline.rows.malformed,
            counts_unusable: pipeline.privacy.neighbours.counts_are_public(),
            schedule: schedule.clone(),
        })
    }

    /// Number of epochs.
    pub(crate) fn horizon(&self) -> u64 {
        self.schedule.horizon
    }

    /// Checks the batch and makes its records. `epoch` is the oldest open one, and `position` that
    /// of the first row in the stream.
    pub(crate) fn records(&self, batch: &Batch, epoch: u64, position: u64) -> Result<Vec<Records>, Failure> {
        let rows = self.check_lengths(batch)?;
        let clock = self.clock(epoch);
        let (mut chunks, mut records) = (Vec::new(), Records::default());
        let mut values = vec![0.0; self.names.len()];
        for row in 0..rows {
            // Every row is checked, also those that are left out.
            let counts = self.read(batch, row, &mut values)?;
            let named = match &batch.entities {
                Some(names) => match names[row].trim_ascii() {
                    "" if self.missing == MissingPolicy::Reject => {
                        return Err(refused(&format!("row {row}: it has no entity")));
                    }
                    "" => continue,
                    name => Some(entity(name.as_bytes())),
                },
                None => None,
            };
            let key = batch.keys.as_ref().map_or(0, |keys| keys[row]);
            if !counts || key == UNLISTED {
                continue;
            }
            let joins = match &batch.times {
                Some(times) => self.assign(times[row], clock, epoch),
                None => Some(epoch),
            };
            let Some(joins) = joins else { continue };
            push(&mut records, key, joins, &values, named.map(|entity| (entity, position + row as u64)));
            if records.keys.len() == CHUNK {
                chunks.push(std::mem::take(&mut records));
            }
        }
        chunks.push(records);
        Ok(chunks)
    }

    fn check_lengths(&self, batch: &Batch) -> Result<usize, Failure> {
        let (found, expected) = (batch.columns.len(), self.names.len());
        if found != expected {
            return Err(refused(&format!("found {found} columns, expected {expected}")));
        }
        let rows = batch.columns.first().map_or(0, Vec::len);
        let lengths = batch.columns.iter().map(Vec::len).zip(self.names.iter().map(String::as_str));
        let others = [
            ("the keys", batch.keys.as_ref().map(Vec::len), self.keys.is_some()),
            ("the entities", batch.entities.as_ref().map(Vec::len), self.has_entities),
        ];
        for (what, length, wanted) in others {
            if length.is_some() != wanted {
                let expected = if wanted { "are missing" } else { "are not wanted by the pipeline" };
                return Err(refused(&format!("{what} {expected}")));
            }
        }
        let others = others.into_iter().filter_map(|(what, length, _)| Some((length?, what)));
        let times = batch.times.as_ref().map(|times| (times.len(), "the event times"));
        for (length, what) in lengths.chain(others).chain(times) {
            if length != rows {
                let first = &self.names[0];
                return Err(refused(&format!("{what}: found {length} rows, but {first} has {rows}")));
            }
        }
        if let (Some(keys), Some(listed)) = (&batch.keys, self.keys)
            && let Some(row) = keys.iter().position(|&key| key >= listed && key != UNLISTED)
        {
            return Err(refused(&format!("row {row}: found key {}, expected one below {listed}", keys[row])));
        }
        Ok(rows)
    }

    /// Reads the values of a row, NaN where they are missing but counted. False if the row is left
    /// out.
    fn read(&self, batch: &Batch, row: usize, values: &mut [f64]) -> Result<bool, Failure> {
        let (mut usable, mut complete) = (0, true);
        for (column, value) in values.iter_mut().enumerate() {
            *value = batch.columns[column][row];
            if value.is_finite() {
                usable += 1;
                continue;
            }
            complete = false;
            let (what, refuse) = match value.is_nan() {
                true => ("no value", self.missing == MissingPolicy::Reject),
                false => ("an infinite value", self.malformed == RowPolicy::Reject),
            };
            if refuse {
                let name = &self.names[column];
                return Err(refused(&format!(
                    "column {name:?}, row {row}: found {what}, expected a finite number; missing = \"skip\" and malformed = \
                     \"skip\" leave such rows out"
                )));
            }
            *value = f64::NAN;
        }
        let by_column = self.missing == MissingPolicy::ByColumn;
        if complete || (by_column && usable > 0) {
            return Ok(true);
        }
        values.fill(f64::NAN);
        Ok(self.counts_unusable)
    }

    /// The public clock while an epoch is the oldest open one: its end, and the allowed lateness.
    fn clock(&self, epoch: u64) -> Clock {
        let end = self.schedule.start_of(epoch.saturating_add(1)).unwrap_or(i64::MAX);
        let time = end.saturating_add(self.schedule.lateness).saturating_sub(1);
        Clock { time, ..Clock::START }
    }

    /// Returns the epoch that a record joins, not before the oldest open one.
    fn assign(&self, event_time: i64, clock: Clock, oldest: u64) -> Option<u64> {
        let schedule = Schedule::ByTime(self.schedule.clone());
        let epoch = schedule.assign(event_time, clock).epoch()?;
        match epoch >= oldest {
            true => Some(epoch),
            false => (self.schedule.late == LatePolicy::Fold).then_some(oldest),
        }
    }
}

fn push(records: &mut Records, key: u32, epoch: u64, values: &[f64], entity: Option<(Entity, u64)>) {
    records.keys.push(key);
    records.epochs.push(epoch);
    records.values.extend_from_slice(values);
    if let Some((entity, position)) = entity {
        records.entities.push(entity);
        records.positions.push(position);
    }
}

fn refused(problem: &str) -> Failure {
    Failure::new("BatchError", format!("{problem}; nothing of the batch was counted"))
}
