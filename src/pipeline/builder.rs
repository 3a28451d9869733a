//! Pipelines made by a program. A builder writes the tables of a pipeline file and parses them like
//! a file, so both are checked alike.

use std::path::Path;

use toml::{Table, Value};

use super::{Pipeline, PipelineError};

/// Makes a [`Pipeline`] whose records come from the program itself.
///
/// ```
/// use hushflow::pipeline::Pipeline;
///
/// let builder = Pipeline::builder("visits").column("minutes", 0.0, 240.0).guarantee(1.0, 1e-6);
/// let pipeline = builder.clone().epochs("2026-01-01", "1d", 365).build()?;
/// assert_eq!(pipeline.privacy.epsilon, 1.0);
///
/// let error = builder.epochs("2026-01-01", "every day", 365).build().unwrap_err();
/// assert!(error.to_string().contains("epochs.length"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PipelineBuilder(Table);

impl Pipeline {
    /// Starts a pipeline with this name.
    pub fn builder(name: &str) -> PipelineBuilder {
        let builder = PipelineBuilder(Table::new());
        // No file is read. These fields are required of a source, and name the columns that the
        // program passes.
        builder.root("name", name).set("source", "path", "-").set("source", "format", "csv")
    }
}

impl PipelineBuilder {
    /// Adds a column with its public bounds. Values outside are clipped.
    #[must_use]
    pub fn column(mut self, name: &str, lower: f64, upper: f64) -> Self {
        let fields = [("name", name.into()), ("lower", lower.into()), ("upper", upper.into())];
        let column =
            Value::Table(fields.map(|(field, value)| (field.to_owned(), value)).into_iter().collect());
        match self.0.get_mut("columns") {
            Some(Value::Array(columns)) => columns.push(column),
            _ => self = self.root("columns", Value::Array(vec![column])),
        }
        self
    }

    /// The public list of keys. Records name a key by its index in the list.
    #[must_use]
    pub fn keys<'a>(self, name: &str, values: impl IntoIterator<Item = &'a str>) -> Self {
        let values = values.into_iter().map(Value::from).collect::<Vec<_>>();
        self.set("key", "column", name).set("key", "values", Value::Array(values))
    }

    /// Epochs by time: the start of the first, such as `2026-01-01`, their length, such as `1d`,
    /// and their number. The times at which records become known close them.
    #[must_use]
    pub fn epochs(self, start: &str, length: &str, horizon: u32) -> Self {
        let times = self.set("epochs", "time", "time").set("epochs", "arrival", "arrival");
        times.set("epochs", "start", start).set("epochs", "length", length).set("epochs", "horizon", horizon)
    }

    /// (ε, δ) of all releases together.
    #[must_use]
    pub fn guarantee(self, epsilon: f64, delta: f64) -> Self {
        self.set("privacy", "epsilon", epsilon).set("privacy", "delta", delta)
    }

    /// The ledger that all pipelines over the same data share. Without one, the state directory has
    /// its own.
    #[must_use]
    pub fn ledger(self, directory: &str, data_set: &str) -> Self {
        self.set("ledger", "directory", directory).set("ledger", "data_set", data_set)
    }

    /// Any other field of a section of pipeline files, such as `("release", "strategy",
    /// "square-root")` or `("epochs", "allowed_lateness", "6h")`.
    #[must_use]
    pub fn set(mut self, section: &str, field: &str, value: impl Into<Value>) -> Self {
        let table = self.0.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(table) = table {
            table.insert(field.to_owned(), value.into());
        }
        self
    }

    fn root(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0.insert(field.to_owned(), value.into());
        self
    }

    /// Checks everything as for a pipeline file. Relative paths are relative to the working
    /// directory.
    ///
    /// # Errors
    /// [`PipelineError::Invalid`] with all problems, by the names that the fields have in a file.
    pub fn build(self) -> Result<Pipeline, PipelineError> {
        Pipeline::parse(&self.0.to_string(), Path::new("pipeline"))
    }
}
