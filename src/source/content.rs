//! The content of a row, independent of the clock: its fields, converted, or the reason why they
//! can't be used.
//!
//! A row is read in two steps, because a row whose clock leaps has no effect beyond its clock. Both
//! steps depend on the row alone, so rows may be read in any order and by any process
//! ([ranges](super::ranges)). [Accepting](super::accept) them in their order then decides their
//! epochs.

use hushflow_operators::Entity;

use super::RowSurvey;
use super::roles::{FieldRoles, entity, fingerprint};
use crate::format::Defect;
use crate::format::row::Row;
use crate::pipeline::{KeyBounds, MissingPolicy, Pipeline, RowPolicies, RowPolicy};

/// The pipeline's rules for rows.
pub(super) struct RowRules {
    pub(super) roles: FieldRoles,
    pub(super) policies: RowPolicies,
    /// Whether a record with unusable values is passed on as NaN, because public counts must
    /// include it.
    counts_unusable: bool,
    pub(super) key_bounds: KeyBounds,
    /// The columns' bounds.
    bounds: Vec<(f64, f64)>,
    /// Whether later steps need to know which record came first.
    pub(super) needs_positions: bool,
}

/// Reason why a row can't be used: the defect, and its field unless the whole row is defective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnusableRow {
    pub(super) slot: Option<u16>,
    pub(super) defect: Defect,
}

impl UnusableRow {
    fn of(slot: usize) -> impl FnOnce(Defect) -> UnusableRow {
        move |defect| UnusableRow { slot: u16::try_from(slot).ok(), defect }
    }
}

/// The use of a row, once it has moved the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOutcome {
    /// No record, because of a field.
    Unusable(UnusableRow),
    /// No record: the pipeline doesn't list its key.
    Unlisted,
    /// A record.
    Record,
    /// A record that lacks values of some columns; this is the first of them.
    Partial(UnusableRow),
    /// A record without values, which counts all the same.
    Blank(UnusableRow),
}

/// The fields of a row except its clock value and its values.
#[derive(Clone, Copy)]
pub(super) struct RowContent {
    /// The event time, 0 where epochs don't need one; `None` if it can't be read.
    pub(super) event: Option<i64>,
    pub(super) outcome: RowOutcome,
    pub(super) key: u32,
    /// The entity of a record, if entities are protected.
    pub(super) entity: Option<Entity>,
    /// The fingerprint of a record, to recognise duplicates, if the pipeline names an id.
    pub(super) fingerprint: Option<u128>,
}

impl RowRules {
    pub(super) fn new(pipeline: &Pipeline, roles: FieldRoles) -> Self {
        RowRules {
            roles,
            policies: pipeline.rows,
            counts_unusable: pipeline.privacy.neighbours.counts_are_public(),
            needs_positions: pipeline.entity.is_some() || pipeline.estimator.is_some(),
            key_bounds: KeyBounds::new(&pipeline.columns, pipeline.key.as_ref()),
            bounds: pipeline.columns.iter().map(|column| (column.lower, column.upper)).collect(),
        }
    }

    /// Returns the bounds of the values of a key.
    pub(super) fn bounds_of(&self, key: u32) -> impl Iterator<Item = (f64, f64)> {
        let bounds = self.bounds.iter().enumerate();
        bounds.map(move |(column, &bounds)| self.key_bounds.of(key, column).unwrap_or(bounds))
    }

    /// Number of values of a record.
    pub(super) fn width(&self) -> usize {
        self.roles.dimension + self.roles.extra.len()
    }

    /// Reads the clock value of a row, if a column moves the clock. The survey notes a row that
    /// can't be used.
    pub(super) fn clock(&self, row: &Row, survey: &mut RowSurvey) -> Result<Option<i64>, UnusableRow> {
        let read = match (row.defect, self.roles.clock) {
            (Some(defect), _) => Err(UnusableRow { slot: None, defect }),
            (None, Some(slot)) => row.time(slot, &self.roles.times).map(Some).map_err(UnusableRow::of(slot)),
            (None, None) => Ok(None),
        };
        read.inspect_err(|unusable| self.note(row, unusable, survey))
    }

    /// Reads the other fields of a row, and adds the values of a record to `values`. The survey
    /// notes the fields that can't be used.
    pub(super) fn content(&self, row: &Row, values: &mut Vec<f64>, survey: &mut RowSurvey) -> RowContent {
        let mut content = RowContent {
            event: None,
            outcome: RowOutcome::Unlisted,
            key: 0,
            entity: None,
            fingerprint: None,
        };
        if let Err(unusable) = self.read(row, &mut content, values, survey) {
            self.note(row, &unusable, survey);
            content.outcome = RowOutcome::Unusable(unusable);
        }
        content
    }

    fn read(
        &self,
        row: &Row,
        content: &mut RowContent,
        values: &mut Vec<f64>,
        survey: &mut RowSurvey,
    ) -> Result<(), UnusableRow> {
        let event = match self.roles.time {
            Some(slot) => row.time(slot, &self.roles.times).map_err(UnusableRow::of(slot))?,
            None => 0,
        };
        content.event = Some(event);
        let Some(key) = self.key(row, survey)? else { return Ok(()) };
        content.key = key;
        content.entity = self.entity(row)?;
        let id = self.roles.id.map(|slot| row.text(slot).map_err(UnusableRow::of(slot))).transpose()?;
        let start = values.len();
        content.outcome = match self.read_values(row, values, survey) {
            Ok(None) => RowOutcome::Record,
            Ok(Some(unusable)) => {
                self.note(row, &unusable, survey);
                RowOutcome::Partial(unusable)
            }
            Err(unusable) => {
                values.truncate(start);
                if !self.counts_unusable {
                    return Err(unusable);
                }
                values.resize(start + self.width(), f64::NAN);
                self.note(row, &unusable, survey);
                RowOutcome::Blank(unusable)
            }
        };
        content.fingerprint = id.map(|id| self.fingerprint(id, content, &values[start..]));
        Ok(())
    }

    /// Returns a fingerprint of a record, to recognise duplicates. It covers everything if a record
    /// may be replaced by any other; if only values may be replaced, it leaves them out.
    fn fingerprint(&self, id: &[u8], content: &RowContent, values: &[f64]) -> u128 {
        let mut scaled = if self.counts_unusable { Vec::new() } else { values.to_vec() };
        self.key_bounds.scale(content.key, &mut scaled);
        fingerprint(id, content.key, content.event.unwrap_or(0), content.entity, &scaled)
    }

    fn note(&self, row: &Row, unusable: &UnusableRow, survey: &mut RowSurvey) {
        let slot = unusable.slot.map(usize::from);
        survey.unusable(row, slot, unusable.defect, self.roles.dimension);
    }

    fn key(&self, row: &Row, survey: &mut RowSurvey) -> Result<Option<u32>, UnusableRow> {
        let Some((slot, numbers)) = &self.roles.key else { return Ok(Some(0)) };
        let text = row.text(*slot).map_err(UnusableRow::of(*slot))?;
        let key = numbers.get(text);
        if key.is_none() {
            survey.unlisted(text);
        }
        Ok(key)
    }

    /// Returns the entity of the record, if entities are protected.
    fn entity(&self, row: &Row) -> Result<Option<Entity>, UnusableRow> {
        let Some(slot) = self.roles.entity else { return Ok(None) };
        let name = row.text(slot).map_err(UnusableRow::of(slot))?;
        Ok(Some(entity(name)))
    }

    /// Reads the values of all columns. With `missing = "by-column"` a missing one is NaN, and so
    /// is an unreadable one if `malformed` is `"skip"`. Then only a row without any value is
    /// unusable. Returns the first unusable value.
    fn read_values(
        &self,
        row: &Row,
        values: &mut Vec<f64>,
        survey: &mut RowSurvey,
    ) -> Result<Option<UnusableRow>, UnusableRow> {
        let RowPolicies { missing, malformed } = self.policies;
        let mut unusable: Option<UnusableRow> = None;
        let mut usable = 0;
        for slot in 0..self.roles.dimension {
            let value = row.number(slot).map_err(UnusableRow::of(slot));
            let value = value.or_else(|row| {
                let skips = row.defect == Defect::Missing || malformed == RowPolicy::Skip;
                if missing != MissingPolicy::ByColumn || !skips {
                    return Err(row);
                }
                unusable.get_or_insert(row);
                Ok(f64::NAN)
            })?;
            usable += usize::from(!value.is_nan());
            values.push(value);
        }
        if usable > 0 {
            self.read_extra(row, values, survey);
        }
        match unusable {
            Some(row) if usable == 0 => Err(row),
            unusable => Ok(unusable),
        }
    }

    /// Reads the values that are only for histograms. One that is missing, can't be read or is not
    /// listed is NaN, and never makes a row unusable.
    fn read_extra(&self, row: &Row, values: &mut Vec<f64>, survey: &mut RowSurvey) {
        for (slot, numbers) in (self.roles.dimension..).zip(&self.roles.extra) {
            let (value, is_missing) = match numbers {
                None => {
                    let number = row.number(slot);
                    (number.ok(), number == Err(Defect::Missing))
                }
                Some(numbers) => {
                    let text = row.text(slot);
                    let is_missing = text == Err(Defect::Missing);
                    (text.ok().and_then(|text| numbers.get(text)).map(|&at| at.into()), is_missing)
                }
            };
            survey.binned(slot, value.is_some(), is_missing);
            values.push(value.unwrap_or(f64::NAN));
        }
    }
}
