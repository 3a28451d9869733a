//! Turns batches of columns into records of epochs, by the pipeline's rules for rows.
//!
//! A batch is checked as a whole before any of its records is sent, so no record of a refused batch
//! counts.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hushflow::mechanism::epochs::{Clock, LatePolicy, Schedule};
use hushflow::mechanism::moments::wipe;
use hushflow::operators::{Entity, Records};
use hushflow::pipeline::{MissingPolicy, Pipeline, RowPolicy};
use hushflow::source::entity;
use numpy::ndarray::{ArrayView1, Axis, Slice};

use crate::errors::Failure;

/// The number of a key that the pipeline does not list.
const UNLISTED: u32 = u32::MAX;

/// Number of rows that are sent at once: few enough that their values fit a processor's own cache.
pub(crate) const CHUNK: usize = 1 << 12;

/// Number of chunks whose memory is kept for later batches: those of a million rows.
pub(crate) const KEPT_CHUNKS: usize = (1 << 20) / CHUNK;

/// Memory of sent chunks, wiped and reused. New pages of the operating system would take longer
/// than the work on the values.
#[derive(Clone, Default)]
pub(crate) struct ChunkPool(Arc<Mutex<Vec<Vec<f64>>>>);

impl ChunkPool {
    fn chunks(&self) -> MutexGuard<'_, Vec<Vec<f64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a chunk of this length. Its values are arbitrary.
    fn take(&self, length: usize) -> Vec<f64> {
        let mut chunk = self.chunks().pop().unwrap_or_default();
        if chunk.capacity() < length {
            chunk = Vec::with_capacity(length);
        }
        chunk.resize(length, 0.0);
        chunk
    }

    /// Wipes a chunk and takes it back.
    pub(crate) fn give(&self, mut chunk: Vec<f64>) {
        wipe(&mut chunk);
        let mut chunks = self.chunks();
        if chunks.len() < KEPT_CHUNKS {
            chunks.push(chunk);
        }
    }
}

/// Columns of equal length, in the memory of Python.
pub(crate) struct Columns<'a> {
    /// The values of each column.
    pub(crate) values: Vec<ArrayView1<'a, f64>>,
    /// Numbers of the keys; `None` without keys.
    pub(crate) keys: Option<ArrayView1<'a, u32>>,
    /// Event times in microseconds since 1970; without them all rows join the current epoch.
    pub(crate) times: Option<ArrayView1<'a, i64>>,
    /// Names of the entities, empty where missing; `None` unless entities are protected.
    pub(crate) entities: Option<Vec<String>>,
}

/// A copy of columns, of checked lengths.
pub(crate) struct Batch {
    pub(crate) rows: usize,
    /// `CHUNK` rows each.
    chunks: Vec<Chunk>,
    keys: Option<Vec<u32>>,
    times: Option<Vec<i64>>,
    entities: Option<Vec<String>>,
}

/// Some rows of a batch.
struct Chunk {
    /// The values row by row, in memory of a [`ChunkPool`].
    values: Vec<f64>,
    /// Whether all values are finite.
    is_complete: bool,
}

/// The rules for rows.
pub(crate) struct BatchRules {
    names: Vec<String>,
    keys: Option<u32>,
    has_entities: bool,
    missing: MissingPolicy,
    malformed: RowPolicy,
    /// Whether a record with unusable values counts as the middle of the bounds, because counts are
    /// public.
    counts_unusable: bool,
    schedule: Schedule,
}

impl BatchRules {
    /// # Errors
    /// For pipelines whose rows may be duplicates.
    pub(crate) fn new(pipeline: &Pipeline) -> Result<Self, Failure> {
        if pipeline.id.is_some() {
            return Err(Failure::parameter(
                "source.id: duplicates are not left out here: only `hushflow run` does this",
            ));
        }
        if pipeline.discovery().is_some() {
            return Err(Failure::parameter(
                "key.discover: only `hushflow run` discovers keys; list them in values",
            ));
        }
        let is_column = |name: &str| pipeline.columns.iter().any(|column| column.name == name);
        if let Some(other) = pipeline.histograms.iter().find(|histogram| !is_column(&histogram.column)) {
            return Err(Failure::parameter(format!(
                "histograms: {:?} is not one of the columns; only `hushflow run` reads others",
                other.column
            )));
        }
        Ok(BatchRules {
            names: pipeline.columns.iter().map(|column| column.name.clone()).collect(),
            keys: pipeline.key.as_ref().map(|key| key.values.len() as u32),
            has_entities: pipeline.entity.is_some(),
            missing: pipeline.rows.missing,
            malformed: pipeline.rows.malformed,
            counts_unusable: pipeline.privacy.neighbours.counts_are_public(),
            schedule: pipeline.epochs.schedule.clone(),
        })
    }

    /// Number of epochs.
    pub(crate) fn horizon(&self) -> u64 {
        self.schedule.horizon()
    }

    /// Rows of an epoch, if epochs close by themselves.
    pub(crate) fn epoch_rows(&self) -> Option<u64> {
        match &self.schedule {
            Schedule::ByCount(by) => Some(by.records_per_epoch),
            Schedule::ByTime(_) => None,
        }
    }

    /// Returns the number of rows if all of them count as they are: they belong to the open epoch,
    /// and have a listed key and finite values. Then [`chunk_of`](Self::chunk_of) makes their
    /// records. Calls `pause` after each column.
    pub(crate) fn plain_rows(
        &self,
        columns: &Columns<'_>,
        mut pause: impl FnMut(),
    ) -> Result<Option<usize>, Failure> {
        let rows = self.check_lengths(columns)?;
        let (listed, keys) = (self.keys.unwrap_or(0), columns.keys.as_ref());
        let are_plain = columns.times.is_none()
            && columns.entities.is_none()
            && self.epoch_rows().is_none()
            && keys.is_none_or(|keys| all(keys, |&key| key < listed))
            && columns.values.iter().all(|column| {
                pause();
                all(column, |value| value.is_finite())
            });
        Ok(are_plain.then_some(rows))
    }

    /// Makes the records of the rows from `start` on, at most `CHUNK`, of a batch whose rows are
    /// plain.
    ///
    /// # Errors
    /// If a value or key has changed since.
    pub(crate) fn chunk_of(
        &self,
        columns: &Columns<'_>,
        start: usize,
        epoch: u64,
        pool: &ChunkPool,
    ) -> Result<Records, Failure> {
        let all = columns.values.first().map_or(0, ArrayView1::len);
        let rows = start..all.min(start + CHUNK);
        let Chunk { values, is_complete } = gather(&columns.values, rows.clone(), pool);
        let keys = match &columns.keys {
            Some(keys) => keys.slice_axis(Axis(0), Slice::from(rows)).to_vec(),
            None => vec![0; rows.len()],
        };
        if !is_complete || !(self.keys.is_none() || keys.iter().all(|&key| Some(key) < self.keys)) {
            return Err(Failure::new("RunError", CHANGED));
        }
        Ok(Records { epochs: vec![epoch; keys.len()], keys, values, ..Records::default() })
    }

    /// Copies columns, which another thread may change, if their lengths agree.
    pub(crate) fn copy(&self, columns: Columns<'_>, pool: &ChunkPool) -> Result<Batch, Failure> {
        let rows = self.check_lengths(&columns)?;
        let starts = (0..rows).step_by(CHUNK);
        Ok(Batch {
            rows,
            chunks: starts
                .map(|start| gather(&columns.values, start..rows.min(start + CHUNK), pool))
                .collect(),
            keys: columns.keys.map(|keys| keys.to_vec()),
            times: columns.times.map(|times| times.to_vec()),
            entities: columns.entities,
        })
    }

    /// Checks the batch and makes its records. `epoch` is the oldest open one, and `position` that
    /// of the first row in the stream.
    pub(crate) fn records(
        &self,
        mut batch: Batch,
        epoch: u64,
        position: u64,
    ) -> Result<Vec<Records>, Failure> {
        if let (Some(keys), Some(listed)) = (&batch.keys, self.keys)
            && let Some(row) = keys.iter().position(|&key| key >= listed && key != UNLISTED)
        {
            return Err(refused(&format!("row {row}: found key {}, expected one below {listed}", keys[row])));
        }
        if let Some(epoch_rows) = self.epoch_rows() {
            let (found, horizon) = (batch.rows as u64, self.horizon());
            let left = horizon.saturating_mul(epoch_rows).saturating_sub(position);
            if found > left {
                let problem = format!("found {found} rows, but only {left} more fill the {horizon} epochs");
                return Err(refused(&problem));
            }
        }
        let chunks = std::mem::take(&mut batch.chunks).into_iter().enumerate();
        chunks.map(|(number, chunk)| self.chunk(&batch, number * CHUNK, chunk, epoch, position)).collect()
    }

    /// Makes the records of the rows from `start` on.
    fn chunk(
        &self,
        batch: &Batch,
        start: usize,
        Chunk { mut values, is_complete }: Chunk,
        epoch: u64,
        position: u64,
    ) -> Result<Records, Failure> {
        let rows = start..start + values.len() / self.names.len();
        let keys = match &batch.keys {
            Some(keys) => keys[rows.clone()].to_vec(),
            None => vec![0; rows.len()],
        };
        // In the common case all rows of a chunk count.
        let one_epoch = batch.times.is_none() && self.epoch_rows().is_none();
        let listed = keys.iter().fold(true, |all, &key| all & (key != UNLISTED));
        if one_epoch && is_complete && listed && batch.entities.is_none() {
            return Ok(Records { epochs: vec![epoch; keys.len()], keys, values, ..Records::default() });
        }
        let mut records = Records::default();
        let clock = self.clock(epoch);
        for ((row, &key), values) in rows.zip(&keys).zip(values.chunks_exact_mut(self.names.len())) {
            // Every row is checked, including those that are left out.
            let counts = self.read(row, values)?;
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
            if !counts || key == UNLISTED {
                continue;
            }
            let position = position + row as u64;
            let joins = match &batch.times {
                _ if self.epoch_rows().is_some() => self.assign(0, Clock { row: position, ..clock }, epoch),
                Some(times) => self.assign(times[row], clock, epoch),
                None => Some(epoch),
            };
            let Some(joins) = joins else { continue };
            push(&mut records, key, joins, values, named.map(|entity| (entity, position)));
        }
        Ok(records)
    }

    fn check_lengths(&self, columns: &Columns<'_>) -> Result<usize, Failure> {
        let (found, expected) = (columns.values.len(), self.names.len());
        if found != expected {
            return Err(refused(&format!("found {found} columns, expected {expected}")));
        }
        let rows = columns.values.first().map_or(0, ArrayView1::len);
        let lengths = columns.values.iter().map(ArrayView1::len).zip(self.names.iter().map(String::as_str));
        let others = [
            ("the keys", columns.keys.as_ref().map(ArrayView1::len), self.keys.is_some()),
            ("the entities", columns.entities.as_ref().map(Vec::len), self.has_entities),
        ];
        for (what, length, wanted) in others {
            if length.is_some() != wanted {
                let expected = if wanted { "are missing" } else { "are not wanted by the pipeline" };
                return Err(refused(&format!("{what} {expected}")));
            }
        }
        let others = others.into_iter().filter_map(|(what, length, _)| Some((length?, what)));
        let times = columns.times.as_ref().map(|times| (times.len(), "the event times"));
        for (length, what) in lengths.chain(others).chain(times) {
            if length != rows {
                let first = &self.names[0];
                return Err(refused(&format!("{what}: found {length} rows, but {first} has {rows}")));
            }
        }
        Ok(rows)
    }

    /// Checks the values of a row, and makes them NaN where they are missing but counted. False if
    /// the row is left out.
    fn read(&self, row: usize, values: &mut [f64]) -> Result<bool, Failure> {
        let (mut usable, mut complete) = (0, true);
        for (column, value) in values.iter_mut().enumerate() {
            if value.is_finite() {
                usable += 1;
                continue;
            }
            complete = false;
            let (what, refuse, remedy) = match value.is_nan() {
                true => ("no value", self.missing == MissingPolicy::Reject, "missing = \"skip\" leaves"),
                false => (
                    "an infinite value",
                    self.malformed == RowPolicy::Reject,
                    "missing = \"skip\", or in a pipeline file malformed = \"skip\", leaves",
                ),
            };
            if refuse {
                let name = &self.names[column];
                return Err(refused(&format!(
                    "column {name:?}, row {row}: found {what}, expected a finite number; {remedy} such rows out"
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
        let Schedule::ByTime(by) = &self.schedule else { return Clock::START };
        let end = by.start_of(epoch.saturating_add(1)).unwrap_or(i64::MAX);
        Clock { time: end.saturating_add(by.lateness).saturating_sub(1), ..Clock::START }
    }

    /// Returns the epoch that a record joins, not before the oldest open one.
    fn assign(&self, event_time: i64, clock: Clock, oldest: u64) -> Option<u64> {
        let epoch = self.schedule.assign(event_time, clock).epoch()?;
        match &self.schedule {
            _ if epoch >= oldest => (epoch <= self.horizon()).then_some(epoch),
            Schedule::ByTime(by) => (by.late == LatePolicy::Fold).then_some(oldest),
            Schedule::ByCount(_) => None,
        }
    }
}

/// Reason for the end of a publication whose records can't be taken back.
const CHANGED: &str = "another thread changed the arrays of a batch while they were read, so the publication \
     is closed, and the records of its open epoch are forgotten: open it again, and give it copies";

/// Whether a condition holds for all items. Takes many of them before it looks at the result.
fn all<T>(items: &ArrayView1<'_, T>, holds: impl Fn(&T) -> bool) -> bool {
    match items.as_slice() {
        Some(items) => items.chunks(CHUNK).all(|run| run.iter().fold(true, |all, item| all & holds(item))),
        None => items.iter().all(holds),
    }
}

/// Number of rows that are transposed together: few enough that they fit the nearest cache.
const TRANSPOSED_ROWS: usize = 64;

/// Returns the values of some rows, row by row.
fn gather(columns: &[ArrayView1<'_, f64>], rows: Range<usize>, pool: &ChunkPool) -> Chunk {
    let width = columns.len();
    let mut values = pool.take(rows.len() * width);
    let mut is_complete = true;
    for (transposed, start) in
        values.chunks_mut(TRANSPOSED_ROWS * width.max(1)).zip(rows.step_by(TRANSPOSED_ROWS))
    {
        let run = start..start + transposed.len() / width;
        for (index, column) in columns.iter().enumerate() {
            let part = column.slice_axis(Axis(0), Slice::from(run.clone()));
            let slots = transposed[index..].iter_mut().step_by(width);
            match part.as_slice() {
                Some(part) => slots.zip(part).for_each(|(slot, &value)| *slot = value),
                None => slots.zip(part.iter()).for_each(|(slot, &value)| *slot = value),
            }
        }
        is_complete &= transposed.iter().fold(true, |all, value| all & value.is_finite());
    }
    Chunk { values, is_complete }
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
    Failure::new("BatchError", format!("{problem}; no record of the batch was counted"))
}
