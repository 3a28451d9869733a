//! `windows`: the records of a key in an epoch, all at once, for estimators that look at them together.
//!
//! Rows travel to the worker that owns their key, wait until their epoch closes, and are looked at together. Every declared key
//! answers for every epoch, also where it has no rows, so that which windows there are tells nothing.
//!
//! Unlike sums, an estimate is not merged from parts, so rows are exchanged here. They keep the order in which each worker read
//! them, workers after one another: never an order that depends on values, for neighbours must agree on the place of
//! every other row.

use crate::{Fault, Records};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::operator::Operator;
use zeroize::Zeroizing;

/// Which windows there are. All of it is public.
#[derive(Clone, Copy)]
pub(crate) struct Windows {
    /// Columns of a record.
    pub(crate) columns: usize,
    /// Keys, numbered from 0.
    pub(crate) keys: u32,
    /// Epochs, numbered from 1.
    pub(crate) epochs: u64,
}

/// Rows of one key on their way to its worker. Private data: they can't be printed, and are wiped when dropped.
#[derive(Clone, Serialize, Deserialize)]
struct KeyRows {
    key: u32,
    /// The worker that read them, and how many batches it had read before.
    place: (usize, u64),
    values: Zeroizing<Vec<f64>>,
}

impl Windows {
    /// What `answer` says of every key's rows in every epoch, row by row, when the epoch closes. Keys come in their order on each
    /// worker; those with the same remainder live together.
    ///
    /// Records of a key that is not declared or of another number of columns raise the fault, and so does an error of
    /// `answer`.
    pub(crate) fn answers<'scope, T: 'static>(
        self,
        records: StreamVec<'scope, u64, Records>,
        name: &str,
        fault: Fault,
        mut answer: impl FnMut(u64, u32, &[f64]) -> Result<T, String> + 'static,
    ) -> StreamVec<'scope, u64, T> {
        let (index, peers) = (records.scope().index(), records.scope().peers());
        let by_key = Exchange::new(|rows: &KeyRows| u64::from(rows.key));
        let rows = self.by_keys(records, fault.clone());
        rows.unary_frontier(by_key, name, move |mut capability, _info| {
            capability.downgrade(&1);
            let mut capability = Some(capability);
            let owned: Vec<u32> = (0..self.keys).filter(|key| *key as usize % peers == index).collect();
            let mut open: BTreeMap<u64, Vec<KeyRows>> = BTreeMap::new();
            move |(input, frontier), output| {
                input.for_each_time(|time, batches| {
                    open.entry(*time.time()).or_default().extend(batches.flat_map(|batch| batch.drain(..)));
                });
                let Some(held) = capability.as_mut() else { return };
                // On a fault the capability stays with its epoch: it must not look like an end.
                while *held.time() <= self.epochs && !frontier.less_equal(held.time()) && !fault.is_raised() {
                    let epoch = *held.time();
                    let mut rows = whole(open.remove(&epoch).unwrap_or_default());
                    let answer = |&key: &u32| answer(epoch, key, &rows.remove(&key).unwrap_or_default());
                    match owned.iter().map(answer).collect::<Result<Vec<_>, _>>() {
                        Ok(answers) => output.session(&held).give_iterator(answers.into_iter()),
                        Err(reason) => return fault.raise(reason),
                    }
                    held.downgrade(&(epoch + 1));
                }
                if *held.time() > self.epochs {
                    capability = None;
                }
            }
        })
    }

    /// Takes the records of each batch apart by key.
    fn by_keys<'scope>(
        self,
        records: StreamVec<'scope, u64, Records>,
        fault: Fault,
    ) -> StreamVec<'scope, u64, KeyRows> {
        let worker = records.scope().index();
        records.unary(Pipeline, "ByKeys", move |_capability, _info| {
            // The times of batches that could not be taken stay: a fault must not look like an end.
            let (mut batches_read, mut failed) = (0, Vec::new());
            move |input, output| {
                input.for_each_time(|time, batches| {
                    for records in batches.flat_map(|batch| batch.drain(..)) {
                        batches_read += 1;
                        match self.split(&records, (worker, batches_read)) {
                            Ok(rows) => output.session(&time).give_iterator(rows.into_values()),
                            Err(reason) => {
                                failed.push(time.retain(0));
                                fault.raise(reason);
                            }
                        }
                    }
                });
            }
        })
    }

    fn split(self, records: &Records, place: (usize, u64)) -> Result<BTreeMap<u32, KeyRows>, String> {
        let Windows { columns, keys, .. } = self;
        if columns == 0 || records.values.len() != records.len() * columns {
            return Err(format!("a batch holds records of other than {columns} columns"));
        }
        if records.keys.iter().any(|key| *key >= keys) {
            return Err(format!("a record has a key that is not among the {keys} declared ones"));
        }
        let mut by_key: BTreeMap<u32, KeyRows> = BTreeMap::new();
        for (&key, row) in records.keys.iter().zip(records.values.chunks_exact(columns)) {
            let rows =
                by_key.entry(key).or_insert_with(|| KeyRows { key, place, values: Zeroizing::default() });
            rows.values.extend_from_slice(row);
        }
        Ok(by_key)
    }
}

/// The rows of each key in their order.
fn whole(mut parts: Vec<KeyRows>) -> BTreeMap<u32, Zeroizing<Vec<f64>>> {
    parts.sort_by_key(|rows| (rows.key, rows.place));
    let mut windows: BTreeMap<u32, Zeroizing<Vec<f64>>> = BTreeMap::new();
    for rows in parts {
        windows.entry(rows.key).or_default().extend_from_slice(&rows.values);
    }
    windows
}
