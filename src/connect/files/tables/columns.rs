//! Records as columns, in the form of Parquet and Arrow.

use std::collections::HashMap;

use crate::estimates::{EstimateRecord, FieldValue};

/// The rows of a table, by column.
#[derive(Default)]
pub(super) struct TableColumns {
    columns: Vec<TableColumn>,
    /// Index of each column by its name.
    indices: HashMap<String, usize>,
    rows: usize,
    is_private: bool,
}

/// A column: its name, and a value or null for each row.
pub(super) struct TableColumn {
    pub(super) name: String,
    pub(super) values: ColumnValues,
}

pub(super) enum ColumnValues {
    Epochs(Vec<i64>),
    /// Microseconds since 1970.
    Times(Vec<Option<i64>>),
    Words(Vec<Option<String>>),
    Numbers(Vec<Option<f64>>),
}

impl ColumnValues {
    /// Adds nulls up to this number of rows. Epochs are never null.
    fn fill(&mut self, rows: usize) {
        match self {
            ColumnValues::Epochs(_) => {}
            ColumnValues::Times(times) => times.resize(rows, None),
            ColumnValues::Words(words) => words.resize(rows, None),
            ColumnValues::Numbers(numbers) => numbers.resize(rows, None),
        }
    }
}

impl TableColumns {
    /// Adds a row. Views with other fields have nulls in the columns of this one.
    pub(super) fn push(&mut self, record: &EstimateRecord) {
        self.is_private = record.private;
        if let ColumnValues::Epochs(epochs) = self.column("epoch", || ColumnValues::Epochs(Vec::new())) {
            epochs.push(record.epoch.cast_signed());
        }
        if let Some(start) = record.start
            && let ColumnValues::Times(times) = self.column("start", || ColumnValues::Times(Vec::new()))
        {
            times.push(Some(start));
        }
        self.word("key", &record.key);
        self.word(record.by, &record.view);
        for field in &record.fields {
            match &field.value {
                FieldValue::Word(word) => self.word(&field.title(), word),
                FieldValue::Number(number) => {
                    let column = self.column(&field.title(), || ColumnValues::Numbers(Vec::new()));
                    if let ColumnValues::Numbers(numbers) = column {
                        numbers.push(*number);
                    }
                }
            }
        }
        self.rows += 1;
        for column in &mut self.columns {
            column.values.fill(self.rows);
        }
    }

    fn word(&mut self, name: &str, word: &str) {
        if let ColumnValues::Words(words) = self.column(name, || ColumnValues::Words(Vec::new())) {
            words.push(Some(word.into()));
        }
    }

    /// Whether there are no rows.
    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the values of a column with this name, or new ones with nulls for the rows so far.
    fn column(&mut self, name: &str, values: impl FnOnce() -> ColumnValues) -> &mut ColumnValues {
        let index = match self.indices.get(name) {
            Some(&index) => index,
            None => {
                let mut values = values();
                values.fill(self.rows);
                self.columns.push(TableColumn { name: name.into(), values });
                self.indices.insert(name.into(), self.columns.len() - 1);
                self.columns.len() - 1
            }
        };
        &mut self.columns[index].values
    }

    pub(super) fn columns(&self) -> &[TableColumn] {
        &self.columns
    }

    /// Whether the releases are differentially private.
    pub(super) fn is_private(&self) -> bool {
        self.is_private
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimates::{EstimateField, FieldPart};

    #[test]
    fn views_with_other_fields_share_a_table() {
        let record = |view: &str, statistic| EstimateRecord {
            epoch: 1,
            start: None,
            key: "k".into(),
            by: "view",
            view: view.into(),
            private: false,
            fields: vec![EstimateField::number(statistic, FieldPart::Value, &[], 1.0)],
        };
        let mut table = TableColumns::default();
        for (view, statistic) in [("a", "x"), ("b", "y"), ("a", "x")] {
            table.push(&record(view, statistic));
        }
        let names: Vec<_> = table.columns().iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["epoch", "key", "view", "x", "y"]);
        let numbers = |index: usize| match &table.columns()[index].values {
            ColumnValues::Numbers(numbers) => numbers.clone(),
            _ => Vec::new(),
        };
        assert_eq!(numbers(3), [Some(1.0), None, Some(1.0)]);
        assert_eq!(numbers(4), [None, Some(1.0), None]);
        assert!(!table.is_private());
    }
}
