//! Two worlds of a case: neighbours as docs/privacy.md and docs/entities.md define them.
//!
//! | claim | difference between the worlds |
//! |---|---|
//! | a record, `replace-one` | everything in one row except its arrival and its framing |
//! | a record, `zero-out` | the same, and in one world it is unusable |
//! | a record, `replace-one-in-place` | the values of one row |
//! | an entity, `replace-one` | rows that hold records of that entity, or nothing usable |
//! | an entity, `zero-out` | the same, and in one world none of them is usable |
//! | an entity, `replace-one-in-place` | the values of all rows of an entity |
//!
//! *Extreme* pairs are the worst ones according to the theorems: full length, opposite signs,
//! another cell, as many records as the bounds of entities admit, as early as possible. *Random*
//! pairs try everything else.

use hushflow::mechanism::sensitivity::Neighbours;

use super::factors::{Case, Factor as F};
use super::pipeline::{KEYS, LENGTH};
use super::rows::{Maker, Record, StreamRow, time};

/// Two worlds, and the number of rows before the kill, restart or inspection in the middle of the
/// stream.
pub(super) struct Pair {
    pub(super) worlds: [Vec<StreamRow>; 2],
    pub(super) cut: usize,
}

/// A row that other readers parse ahead, as they do those behind it: they are not among the first
/// rows, and fill several ranges.
const PARSED_AHEAD: usize = 9500;

/// The protected entity.
const PROTECTED: &str = "e0";

pub(super) fn pair(case: &Case) -> Pair {
    let mut maker = Maker::new(case);
    let mut stream = maker.stream();
    maker.add_competing_records(&mut stream);
    let (first, more) = match &case[F::Rows] {
        "ranges" => (PARSED_AHEAD, 2000),
        "many" => (4150, 100),
        _ => (stream.len() / 2, stream.len() / 2),
    };
    let cut = first + maker.random.below(more as u64) as usize;
    let mut worlds = [stream.clone(), stream];
    let differing = maker.differing(&worlds[0]);
    for index in differing {
        let records = maker.counterparts(index, &worlds[0]);
        for (world, record) in worlds.iter_mut().zip(records) {
            world[index].record = record;
        }
    }
    if maker.chance(50) {
        worlds.reverse();
    }
    Pair { worlds, cut }
}

impl Maker<'_> {
    fn is_extreme(&self) -> bool {
        self.case.is(F::Pair, &["extreme"])
    }

    /// Gives the protected entity more records than may pass. Only one of them differs: whether
    /// that record passes affects the others.
    fn add_competing_records(&mut self, rows: &mut [StreamRow]) {
        let (claim, _) = self.case.claim();
        if !self.is_extreme() || self.case.is(F::Unit, &["record"]) || claim.entities {
            return;
        }
        let own_time = !self.case.is(F::Clock, &["records"]);
        for row in rows.iter_mut().skip(1).filter(|row| row.arrival % 2 == 0) {
            row.record.entity = PROTECTED.into();
            row.record.values = self.corner(true);
            if own_time {
                row.record.event = time(row.arrival);
            }
        }
    }

    /// The rows in which the worlds differ.
    fn differing(&mut self, rows: &[StreamRow]) -> Vec<usize> {
        let (claim, _) = self.case.claim();
        let number = rows.len() as u64;
        let first = if self.case.is(F::Rows, &["ranges"]) { PARSED_AHEAD } else { 0 };
        match (claim.entities, self.is_extreme()) {
            (false, true) => vec![first],
            (false, false) => vec![first + self.random.below(number - first as u64) as usize],
            (true, true) => self.pattern(rows),
            (true, false) => {
                let mut indices: Vec<_> =
                    (0..1 + self.random.below(12)).map(|_| self.random.below(number) as usize).collect();
                indices.sort_unstable();
                indices.dedup();
                indices
            }
        }
    }

    /// The first m rows of as many epochs as an entity may take part in, as close together as
    /// allowed; all rows of these epochs if the number of sent records is released.
    fn pattern(&self, rows: &[StreamRow]) -> Vec<usize> {
        let [k, b, m] = self.case.limits();
        let most = if self.case.is(F::Sent, &["none"]) { m } else { usize::MAX };
        let epoch_of = |(index, row): (usize, &StreamRow)| match &self.case[F::Clock] {
            "records" => index / self.case.rows_per_epoch(),
            _ => (row.arrival / LENGTH) as usize,
        };
        let indices = (0..k).flat_map(|participation| {
            let epoch = participation * b;
            let of_epoch = rows.iter().enumerate().filter(move |index| epoch_of(*index) == epoch);
            of_epoch.take(most).map(|(index, _)| index).collect::<Vec<_>>()
        });
        indices.collect()
    }

    /// Returns the contents of a row in both worlds.
    fn counterparts(&mut self, index: usize, rows: &[StreamRow]) -> [Record; 2] {
        let (claim, _) = self.case.claim();
        let of_entity = self.case.is(F::Unit, &["entity"]);
        let StreamRow { arrival, ref record, .. } = rows[index];
        let copies = self.case.is(F::Copies, &["by id"]);
        let mut one = match self.is_extreme() {
            true => self.extreme(record, arrival),
            // A copy of another record, so both count as one.
            false if copies && self.chance(30) => {
                self.one_of(&rows.iter().collect::<Vec<_>>()).record.clone()
            }
            false => self.record(arrival),
        };
        if claim.neighbours == Neighbours::ReplaceOneInPlace && !self.is_extreme() {
            one = Record { values: one.values, ..record.clone() };
        }
        if claim.entities || (of_entity && self.is_extreme()) {
            one.entity = PROTECTED.into();
        }
        let mut other = match claim.neighbours {
            Neighbours::ReplaceOneInPlace => self.in_place(&one),
            Neighbours::ZeroOut => self.blank(&one),
            Neighbours::ReplaceOne => self.replaced(&one, index, arrival),
        };
        if claim.entities && claim.neighbours == Neighbours::ReplaceOne && !other.entity.is_empty() {
            other.entity = PROTECTED.into();
        }
        if !self.is_extreme()
            && claim.entities
            && claim.neighbours == Neighbours::ReplaceOne
            && self.chance(20)
        {
            one = self.blank(&one);
        }
        [one, other]
    }

    /// A record of full length in the epoch of its arrival.
    fn extreme(&mut self, record: &Record, arrival: i64) -> Record {
        // Records of one entity add up if they point in the same direction.
        let upper = self.case.seed.is_multiple_of(2);
        Record { event: time(arrival), key: KEYS[0].into(), values: self.corner(upper), ..record.clone() }
    }

    fn in_place(&mut self, record: &Record) -> Record {
        let values = if self.is_extreme() && !(self.case.seed / 2).is_multiple_of(5) {
            self.opposite(record)
        } else if self.chance(30) {
            let blank = self.one_of(&["", "NaN", "x", "inf", "1e400"]);
            vec![blank.to_owned(); record.values.len()]
        } else {
            (0..record.values.len()).map(|column| self.value(column)).collect()
        };
        Record { values, ..record.clone() }
    }

    fn opposite(&self, record: &Record) -> Vec<String> {
        let upper = self.corner(true);
        if record.values == upper { self.corner(false) } else { upper }
    }

    /// Any other record at the same position, or an unusable one.
    fn replaced(&mut self, record: &Record, index: usize, arrival: i64) -> Record {
        let values = self.opposite(record);
        let (claim, _) = self.case.claim();
        // All rows of an extreme pair are replaced in the same way.
        match self.case.seed / 2 % 10 {
            _ if !self.is_extreme() && self.chance(25) => self.blank(record),
            _ if !self.is_extreme() => {
                let mut other = self.record(arrival);
                if !claim.entities && self.chance(50) {
                    other.entity.clone_from(&record.entity);
                }
                other
            }
            0..4 if self.case.is(F::Keys, &["three"]) => {
                Record { key: KEYS[1 + index % 2].into(), ..record.clone() }
            }
            // A key that no other row has, or one that others have.
            0..3 if self.case.discovers() => Record { key: "alone".into(), ..record.clone() },
            3 if self.case.discovers() => Record { key: KEYS[1 + index % 2].into(), ..record.clone() },
            4 | 5 if self.case.is(F::Clock, &["end-of-input"]) => {
                Record { event: time(arrival + 3 * LENGTH), ..record.clone() }
            }
            9 => self.blank(record),
            _ => Record { values, ..record.clone() },
        }
    }
}
