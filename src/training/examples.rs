//! The rows of a training run: features and targets in scaled units, and their gradients.
//!
//! Everything here is private. A row that lacks a value, can't be read, or has an unlisted class is
//! *blank*: its gradient is NaN, which the clipper counts as zero. It keeps its position, so what a
//! record holds never moves another one.

use std::path::{Path, PathBuf};

use hushflow_training::linear::LinearModel;
use sha2::{Digest, Sha256};
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use super::linear_model;
use crate::format::FormatError;
use crate::format::table::{MissingRows, Table};
use crate::pipeline::training::{RowOrder, Target};
use crate::pipeline::{Column, MissingPolicy, Pipeline, RowPolicies, RowPolicy, Training};

/// Seed of the public order of rows.
const ORDER_SEED: u64 = 1;

/// Why the rows can't be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExamplesError {
    /// The pipeline file trains no model, or its source is not a list of files.
    #[error("no model is trained here: the pipeline file needs a section [training] and a source of files")]
    NoTraining,
    /// A file can't be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The source has another number of rows. The number is public.
    #[error(
        "the source has {found} rows, but [training] says records = {expected}: correct it, since the guarantee counts on the \
         number"
    )]
    Records {
        /// Number of rows.
        found: u64,
        /// `records`.
        expected: u64,
    },
}

/// Rows with their features and targets. Private: wiped when dropped, and can't be printed.
pub struct Examples {
    model: Option<LinearModel>,
    training: Training,
    /// Row by row, in [−1, 1]; in their own units for gradients.
    features: Vec<f64>,
    /// In [−1, 1], or the number of the class; NaN if unusable.
    targets: Vec<f64>,
    order: Vec<usize>,
}

/// How well a model predicts rows. **Private**: it has no noise.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Evaluation {
    /// Rows that are not blank.
    pub rows: u64,
    /// Root mean square of the error in the unit of the target, for linear regression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// Mean loss, for classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Share of rows whose class is predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
}

impl Examples {
    /// Reads the source of a pipeline.
    ///
    /// # Errors
    /// [`ExamplesError`].
    pub fn of_source(pipeline: &Pipeline) -> Result<Self, ExamplesError> {
        let training = pipeline.training.as_ref().ok_or(ExamplesError::NoTraining)?;
        let files = pipeline.sources.first().and_then(|source| source.input.source().files());
        let files = files.ok_or(ExamplesError::NoTraining)?;
        let read = Self::of_files(training, files, pipeline.rows)?;
        let (found, expected) = (read.targets.len() as u64, training.records);
        if found == expected { Ok(read) } else { Err(ExamplesError::Records { found, expected }) }
    }

    /// Reads a file with the same columns, to test a model.
    ///
    /// # Errors
    /// [`ExamplesError`].
    pub fn of_test(training: &Training, file: &Path) -> Result<Self, ExamplesError> {
        let rows = RowPolicies { missing: MissingPolicy::Skip, malformed: RowPolicy::Skip };
        Self::of_files(training, &[file.to_owned()], rows)
    }

    fn of_files(training: &Training, files: &[PathBuf], rows: RowPolicies) -> Result<Self, ExamplesError> {
        let missing = match (rows.missing, rows.malformed) {
            (MissingPolicy::Reject, _) => MissingRows::Reject,
            (_, RowPolicy::Reject) => MissingRows::Keep,
            _ => MissingRows::Blank,
        };
        let mut columns = training.features.clone();
        if let Some(Target::Number(target)) = &training.target {
            columns.push(target.clone());
        }
        let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let mut examples = Self {
            model: linear_model(training),
            training: training.clone(),
            features: Vec::new(),
            targets: Vec::new(),
            order: Vec::new(),
        };
        for file in files {
            let (table, labels) = match &training.target {
                Some(Target::Class { column, .. }) => Table::read_labelled(file, &names, column, missing)?,
                _ => (Table::read(file, Some(&names), missing)?, Vec::new()),
            };
            examples.add(&columns, &table, labels);
        }
        examples.order = match training.order {
            RowOrder::Shuffled => hushflow_training::model::shuffled(examples.targets.len(), ORDER_SEED),
            RowOrder::Source => (0..examples.targets.len()).collect(),
        };
        Ok(examples)
    }

    fn add(&mut self, columns: &[Column], table: &Table, mut labels: Vec<String>) {
        let width = self.training.features.len();
        let scaled = self.model.is_some();
        self.features.reserve_exact(table.rows() * width);
        for (row, values) in table.values().chunks_exact(columns.len()).enumerate() {
            let mut values = columns.iter().zip(values).map(|(column, value)| match scaled {
                true => in_scale(column, *value),
                false => value.clamp(column.lower, column.upper),
            });
            self.features.extend(values.by_ref().take(width));
            self.targets.push(match &self.training.target {
                Some(Target::Number(_)) => values.next().unwrap_or(f64::NAN),
                Some(Target::Class { classes, .. }) => {
                    let class =
                        labels.get(row).and_then(|label| classes.iter().position(|class| class == label));
                    class.map_or(f64::NAN, |class| class as f64)
                }
                None => 0.0,
            });
        }
        labels.iter_mut().for_each(Zeroize::zeroize);
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns the number of blank rows. Private: for the operator only.
    pub fn blank(&self) -> u64 {
        (0..self.len()).filter(|&row| self.is_blank(row)).count() as u64
    }

    fn row(&self, row: usize) -> (&[f64], f64) {
        let width = self.training.features.len();
        (&self.features[row * width..][..width], self.targets[row])
    }

    fn is_blank(&self, row: usize) -> bool {
        let (features, target) = self.row(row);
        target.is_nan() || features.iter().any(|value| value.is_nan())
    }

    /// Returns a digest of the rows in their order, by which a resumed run recognises them.
    /// Private. Rows that move between two runs would take part more often than the guarantee
    /// counts.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        self.features
            .iter()
            .chain(&self.targets)
            .for_each(|value| hash.update(value.to_bits().to_le_bytes()));
        hash.finalize().into()
    }

    /// Returns the numbers of the rows at these positions of the public order.
    pub fn rows(&self, positions: &[usize]) -> Zeroizing<Vec<usize>> {
        Zeroizing::new(positions.iter().map(|&position| self.order[position]).collect())
    }

    /// Writes the gradient of each of these rows to a buffer, which is overwritten, and passes it
    /// to `give`. Coordinates of blank rows are NaN.
    pub fn gradients(&self, rows: &[usize], parameters: &[f64], give: &mut dyn FnMut(&mut [f64])) {
        let mut gradient = Zeroizing::new(vec![0.0; parameters.len()]);
        let mut outputs = Zeroizing::new(Vec::new());
        for &row in rows {
            let (features, target) = self.row(row);
            match &self.model {
                Some(model) => {
                    model.gradient(parameters, features, target, &mut outputs, &mut gradient);
                }
                None => gradient.copy_from_slice(features),
            }
            // Computed anyway, so that a blank row takes as long as any other.
            if self.is_blank(row) {
                gradient.fill(f64::NAN);
            }
            give(&mut gradient);
        }
    }

    /// Returns how well a model with these parameters predicts the rows; `None` for gradients.
    pub fn evaluate(&self, parameters: &[f64]) -> Option<Evaluation> {
        let model = self.model?;
        let mut outputs = Zeroizing::new(Vec::new());
        let (mut rows, mut loss, mut right) = (0u64, 0.0, 0u64);
        for row in (0..self.len()).filter(|&row| !self.is_blank(row)) {
            let (features, target) = self.row(row);
            loss += model.predict(parameters, features, target, &mut outputs);
            right += u64::from(model.class(&outputs) == Some(target as usize));
            rows += 1;
        }
        let share = |sum: f64| sum / rows.max(1) as f64;
        Some(match &self.training.target {
            Some(Target::Number(target)) => {
                let error = share(2.0 * loss).sqrt() * half_width(target);
                Evaluation { rows, error: Some(error), loss: None, accuracy: None }
            }
            _ => {
                Evaluation { rows, error: None, loss: Some(share(loss)), accuracy: Some(share(right as f64)) }
            }
        })
    }
}

impl Drop for Examples {
    fn drop(&mut self) {
        self.features.zeroize();
        self.targets.zeroize();
    }
}

/// Half of the distance between the bounds, without overflow.
pub(super) fn half_width(column: &Column) -> f64 {
    column.upper / 2.0 - column.lower / 2.0
}

/// The middle of the bounds.
pub(super) fn centre(column: &Column) -> f64 {
    column.upper / 2.0 + column.lower / 2.0
}

fn in_scale(column: &Column, value: f64) -> f64 {
    ((value - centre(column)) / half_width(column)).clamp(-1.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hushflow_mechanism::sampling::Scheme;
    use hushflow_training::sampling::{BatchKey, WorkerBatches};

    fn pipeline(directory: &Path, rows: &str, training: &str) -> Pipeline {
        std::fs::write(directory.join("data.csv"), rows).unwrap();
        let text = format!(
            "name = 'n'\nsource = {{ path = 'data.csv' }}\ncolumns = [{{ name = 'a', lower = 0, upper = 4 }}, \
             {{ name = 'b', lower = -1, upper = 1 }}]\ntraining = {{ {training}, learning_rate = 1 }}\n\
             privacy = {{ epsilon = 1, delta = 1e-6, neighbours = 'zero-out', clip_norm = 1 }}"
        );
        Pipeline::parse(&text, &directory.join("p.toml")).unwrap()
    }

    fn examples(rows: &str, training: &str) -> Result<Examples, String> {
        let directory = tempfile::tempdir().unwrap();
        let pipeline = pipeline(directory.path(), rows, training);
        Examples::of_source(&pipeline).map_err(|error| error.to_string())
    }

    fn gradients(examples: &Examples, step: u64, parameters: &[f64]) -> Vec<Vec<f64>> {
        let mut all = Vec::new();
        examples.gradients(&batch(examples, step), parameters, &mut |gradient| all.push(gradient.to_vec()));
        all
    }

    /// The rows of a step in order.
    fn batch(examples: &Examples, step: u64) -> Vec<usize> {
        let scheme = Scheme::InOrder { batch_size: examples.training.batch_size.into() };
        let key = BatchKey::from_bytes([0; 32]);
        let mut batches = WorkerBatches::of_key(examples.len(), scheme, key);
        examples.rows(batches.of_step(step).unwrap()).to_vec()
    }

    const STEPS: &str = "model = 'gradients', records = 23, batch_size = 5, passes = 3";

    /// The participation `k×b` of the guarantee: every row that takes part does so in every pass, b
    /// steps apart.
    #[test]
    fn a_row_takes_part_once_in_each_pass_at_the_same_step() {
        let rows = "a,b\n".to_owned() + &"1,0\n".repeat(23);
        for order in ["source", "shuffled"] {
            let examples = examples(&rows, &format!("{STEPS}, order = '{order}'")).unwrap();
            assert_eq!((examples.training.steps_per_pass(), examples.training.steps()), (4, 12));
            let mut taken: Vec<usize> = (1..=4).flat_map(|step| batch(&examples, step)).collect();
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), 20);
            assert!((1..=8).all(|step| batch(&examples, step) == batch(&examples, step + 4)));
            assert_eq!(batch(&examples, 1) == [0, 1, 2, 3, 4], order == "source");
        }
    }

    #[test]
    fn what_a_row_holds_moves_no_other_row() {
        let rows = |third: &str| format!("a,b\n1,0.5\n2,0.25\n{third}\n3,1\n4,-1\n");
        let training = "model = 'gradients', records = 5, batch_size = 5, passes = 1, order = 'source'";
        let complete = gradients(&examples(&rows("0,0"), training).unwrap(), 1, &[0.0; 2]);
        for third in [",", "1", "1,2,3", "x,1", "1e999,nan", "\"1\",\"y\""] {
            let other = examples(&rows(third), training).unwrap();
            assert_eq!(other.blank(), 1, "{third:?}");
            let found = gradients(&other, 1, &[0.0; 2]);
            assert!(found[2].iter().all(|value| value.is_nan()), "{third:?}");
            for row in [0, 1, 3, 4] {
                assert_eq!(found[row], complete[row], "{third:?}");
            }
        }
        assert_eq!(complete[0], [1.0, 0.5], "gradients keep their unit");
        let few = examples("a,b\n1,2\n", training).err().unwrap();
        assert!(few.contains("the source has 1 rows, but [training] says records = 5"), "{few}");
    }

    #[test]
    fn columns_are_scaled_and_classes_are_numbers() {
        let training = "model = 'logistic', target = 'c', classes = ['no','yes'], records = 3, batch_size = 3, \
            passes = 1, order = 'source'";
        let examples = examples("c,a,b\nno,3,9\nyes,2,0\nmaybe,2,0\n", training).unwrap();
        assert_eq!((examples.row(0), examples.row(1)), ((&[0.5, 1.0][..], 0.0), (&[0.0, 0.0][..], 1.0)));
        assert_eq!(examples.blank(), 1);
        let found = gradients(&examples, 1, &[0.0; 3]);
        assert_eq!(found[..2], [[0.25, 0.5, 0.5], [0.0, 0.0, -0.5]]);
        let evaluation = examples.evaluate(&[-9.0, 0.0, 1.0]).unwrap();
        assert_eq!((evaluation.rows, evaluation.accuracy), (2, Some(1.0)));
    }

    #[test]
    fn the_digest_depends_on_rows_and_their_order() {
        let training = "model = 'gradients', records = 2, batch_size = 1, passes = 1";
        let digest = |rows: &str| examples(rows, training).unwrap().digest();
        assert_eq!(digest("a,b\n1,0\n2,0\n"), digest("a,b\n1,0\n2,0.0\n"));
        assert_ne!(digest("a,b\n1,0\n2,0\n"), digest("a,b\n2,0\n1,0\n"));
    }
}
