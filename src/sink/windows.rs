//! Estimates of windows, a line for every key and epoch: as a table for people, or as JSON.

use std::io::{self, Write};

use serde_json::{Map, Value};

use super::table::{SHOWN, push, push_cell, short};
use super::{Format, start_of};
use crate::estimates::{Estimator, WindowPublication};
use crate::runtime::WindowOutput;

/// Writes what is found in windows.
pub struct WindowWriter {
    publication: WindowPublication,
    format: Format,
    headed: bool,
}

impl WindowWriter {
    /// A writer of what a log of this publication says. There is no CSV of it: it is written as a table then.
    pub fn new(publication: WindowPublication, format: Format) -> Self {
        WindowWriter { publication, format, headed: false }
    }

    /// Writes what was found in one window to `out`, and the header before the first line.
    ///
    /// # Errors
    /// Whatever the output says.
    pub fn write(&mut self, output: &WindowOutput, out: &mut impl Write) -> io::Result<()> {
        if self.format == Format::Json {
            return writeln!(out, "{}", Value::Object(self.object(output)));
        }
        if !std::mem::replace(&mut self.headed, true) {
            writeln!(out, "{}", self.header())?;
        }
        writeln!(out, "{}", self.line(output))
    }

    fn start(&self, epoch: u64) -> String {
        start_of(&self.publication.parameters().epochs.schedule, epoch)
    }

    /// Which line it is, and then its fields.
    fn object(&self, output: &WindowOutput) -> Map<String, Value> {
        let parameters = self.publication.parameters();
        let mut object = Map::from_iter([("epoch".into(), output.epoch.into())]);
        let start = self.start(output.epoch);
        if !start.is_empty() {
            object.insert("start".into(), start.into());
        }
        object.insert("key".into(), parameters.key_name(output.key).into());
        object.insert("estimator".into(), self.publication.estimator().to_string().into());
        object.insert("private".into(), self.publication.is_private().into());
        object.insert("generation".into(), output.stamp.generation.into());
        object.insert("chain".into(), output.stamp.chain.short().into());
        let names: Vec<&str> = parameters.columns.iter().map(|column| column.name.as_str()).collect();
        object.insert("columns".into(), names.into());
        object.extend(output.found.clone());
        object
    }

    fn header(&self) -> String {
        let what = match self.publication.estimator() {
            Estimator::Mean { .. } => "mean",
            Estimator::Covariance { .. } => "sd",
        };
        let mut text = self.lead("epoch", "from", "key", &self.start(1));
        for column in self.publication.parameters().columns.iter().take(SHOWN) {
            push_cell(&mut text, &super::table::cut(&format!("{what} {}", column.name)));
        }
        format!("±: standard deviation of the noise\n{text}")
    }

    fn lead(&self, epoch: &str, from: &str, key: &str, start: &str) -> String {
        let from = if start.is_empty() { String::new() } else { format!("{from:<16}  ") };
        format!("{epoch:>7}  {from}{key:<8}")
    }

    fn line(&self, output: &WindowOutput) -> String {
        let (start, parameters) = (self.start(output.epoch), self.publication.parameters());
        let key = parameters.key_name(output.key);
        let mut text = self.lead(&output.epoch.to_string(), short(&start), key, &start);
        let found = &output.found;
        if let Some(message) = found.get("refusal").and_then(|refusal| refusal["message"].as_str()) {
            return text + "  no estimate: " + message;
        }
        let number = |name: &str, place: usize| found.get(name).and_then(|list| list[place].as_f64());
        for place in 0..parameters.columns.len().min(SHOWN) {
            let cell = match self.publication.estimator() {
                Estimator::Mean { .. } => (number("mean", place), number("noise", place)),
                Estimator::Covariance { .. } => {
                    let variance = found.get("covariance").and_then(|rows| rows[place][place].as_f64());
                    (variance.map(|variance| variance.max(0.0).sqrt()), None)
                }
            };
            match cell {
                (Some(value), Some(noise)) => push(&mut text, value, noise),
                (Some(value), None) => push_cell(&mut text, &format!("{value:.4}")),
                (None, _) => push_cell(&mut text, "-"),
            }
        }
        text
    }
}
