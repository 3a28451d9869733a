//! Steps of training as a table or as JSON lines.

use std::io::{self, Write, stdout};

use hushflow::publication::MomentPublication;
use hushflow::training::{Evaluation, Examples, ModelReport, OutputReport, TrainedModel};
use serde::Serialize;

use super::super::CliError;
use super::super::output::{number, print_json, print_wrapped, table};

/// A released step.
#[derive(Serialize)]
struct StepLine<'a> {
    step: u64,
    pass: u32,
    /// ε of the passes that have begun.
    epsilon: f64,
    /// Norm of the change of the parameters since the last line.
    change: f64,
    parameters: &'a [f64],
    /// **Private**: quality of the predictions of the mean parameters on the rows of a test file.
    #[serde(skip_serializing_if = "Option::is_none")]
    test: Option<Evaluation>,
}

/// Prints steps.
pub(super) struct StepTable {
    json: bool,
    publication: MomentPublication,
    /// The last pass that was printed, and ε after it.
    spent: (u32, f64),
    test: Option<Examples>,
    last: Vec<f64>,
    begun: bool,
}

const WIDTHS: [usize; 5] = [8, 6, 10, 12, 14];

impl StepTable {
    pub(super) fn new(publication: &MomentPublication, test: Option<Examples>, json: bool) -> Self {
        let publication = publication.clone();
        Self { json, publication, spent: (0, 0.0), test, last: Vec::new(), begun: false }
    }

    /// Prints a step.
    pub(super) fn print(&mut self, model: &TrainedModel) -> Result<(), CliError> {
        if model.pass() != self.spent.0 {
            self.spent = (model.pass(), self.publication.spent_after(model.pass())?.unwrap_or_default());
        }
        let test = self.test.as_ref().and_then(|test| test.evaluate(&model.mean()));
        let before = self.last.iter().copied().chain(std::iter::repeat(0.0));
        let squares = model.parameters().iter().zip(before).map(|(now, before)| (now - before).powi(2));
        let line = StepLine {
            step: model.step(),
            pass: model.pass(),
            epsilon: self.spent.1,
            change: squares.sum::<f64>().sqrt(),
            parameters: model.parameters(),
            test,
        };
        if self.json { print_json(&line) } else { self.print_row(&line) }?;
        self.last = model.parameters().to_vec();
        Ok(())
    }

    fn print_row(&mut self, line: &StepLine<'_>) -> io::Result<()> {
        let mut out = stdout().lock();
        let mut print = |cells: [String; 5]| {
            let cells: String =
                cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:>width$}")).collect();
            writeln!(out, "{}", cells.trim_end())
        };
        let measure = line.test.map(|test| match (test.error, test.accuracy) {
            (Some(error), _) => ("test error", number(error)),
            (_, accuracy) => ("accuracy", number(accuracy.unwrap_or(f64::NAN))),
        });
        if !std::mem::replace(&mut self.begun, true) {
            let title = measure.as_ref().map_or(String::new(), |(title, _)| format!("{title} *"));
            print(["step".into(), "pass".into(), "ε".into(), "change".into(), title])?;
        }
        let measured = measure.map(|(_, value)| value).unwrap_or_default();
        print([
            line.step.to_string(),
            line.pass.to_string(),
            number(line.epsilon),
            number(line.change),
            measured,
        ])
    }

    pub(super) fn print_model(&mut self, report: &ModelReport, model: &TrainedModel) -> io::Result<()> {
        if self.json {
            return print_json(report);
        }
        let mut text = String::new();
        if self.test.is_some() {
            text += "* PRIVATE unless the test file is public: no noise is in it.\n";
        }
        text += &format!(
            "\nε = {} at δ = {}; change: norm of the change of the parameters since the line before\n",
            number(report.epsilon),
            number(report.delta)
        );
        let width = model.training().features.len();
        if width <= 40 && report.outputs.len() <= 10 {
            text += "\n";
            text += &coefficients(report);
        }
        print_wrapped(&text)
    }
}

/// A row for each column, a column for each output.
fn coefficients(report: &ModelReport) -> String {
    let outputs = &report.outputs;
    let Some(first) = outputs.first() else { return String::new() };
    let title = |output: &OutputReport| match (&output.class, &report.target) {
        (Some(class), _) => class.clone(),
        (None, target) => target.clone().unwrap_or_default(),
    };
    let row = |name: &str, value: &dyn Fn(&OutputReport) -> f64| -> Vec<String> {
        std::iter::once(name.to_owned()).chain(outputs.iter().map(|output| number(value(output)))).collect()
    };
    let heading = std::iter::once("coefficient".to_owned()).chain(outputs.iter().map(title)).collect();
    let names = first.coefficients.keys();
    let columns =
        names.map(|name| row(name, &|output| output.coefficients.get(name).copied().unwrap_or(0.0)));
    let intercept = row("(intercept)", &|output| output.intercept);
    table(&std::iter::once(heading).chain(columns).chain([intercept]).collect::<Vec<_>>())
}
