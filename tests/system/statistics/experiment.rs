//! An experiment: a pipeline, its rows, runs of the real binary, and the comparison of their
//! releases with the sums of the rows.

use std::path::PathBuf;
use std::process::Command;

use hushflow::mechanism::accounting::{Delta, Epsilon, gaussian};
use hushflow::mechanism::moments::{Clipper, QuantisedRows};
use hushflow::state::PublicReader;
use nalgebra::DMatrix;
use serde_json::Value;

use super::dense;
use crate::harness::Lab;

/// Bounds of every column: the middle is not 0, the width not 2.
pub(crate) const BOUNDS: (f64, f64) = (-1.0, 4.0);

/// A pipeline.
#[derive(Clone, Copy)]
pub(crate) struct ExperimentCase {
    pub(crate) method: &'static str,
    pub(crate) strategy: &'static str,
    /// The workload that the strategy is made for.
    pub(crate) made_for: &'static str,
    /// 0 for a pipeline without keys.
    pub(crate) keys: usize,
    pub(crate) dimension: usize,
    pub(crate) epochs: usize,
    pub(crate) neighbours: &'static str,
    pub(crate) second_moments: &'static str,
    pub(crate) clip_norm: f64,
    pub(crate) second_moment_weight: Option<f64>,
    pub(crate) epsilon: f64,
    pub(crate) views: &'static [&'static str],
}

impl ExperimentCase {
    /// Index pairs of the released second moments.
    pub(crate) fn second_entries(&self) -> Vec<(usize, usize)> {
        if self.method == "pp" {
            return Vec::new();
        }
        let full = self.second_moments == "full";
        let entries = (0..self.dimension).flat_map(|i| (i..self.dimension).map(move |j| (i, j)));
        entries.filter(|(i, j)| full || i == j).collect()
    }

    /// Coordinates of one key: count, first and second moments.
    pub(crate) fn coordinates(&self) -> usize {
        1 + self.dimension + self.second_entries().len()
    }

    const DELTA: f64 = 1e-3;

    /// σ for continuous noise: the grid's cost in δ is far below what these tests can detect.
    pub(crate) fn noise_multiplier(&self) -> f64 {
        let epsilon = Epsilon::new(self.epsilon).expect("an epsilon");
        let delta = Delta::new(Self::DELTA).expect("a delta");
        gaussian::noise_multiplier(epsilon, delta).value()
    }

    /// The pipeline file.
    fn text(&self) -> String {
        let (lower, upper) = BOUNDS;
        let columns: Vec<String> = (0..self.dimension)
            .map(|j| format!("{{ name = 'x{j}', lower = {lower}, upper = {upper} }}"))
            .collect();
        let keys: Vec<String> = (0..self.keys).map(|key| format!("'k{key}'")).collect();
        let key = match self.keys {
            0 => String::new(),
            _ => format!("key = {{ column = 'key', values = [{}] }}", keys.join(", ")),
        };
        let views: Vec<String> = (self.views.iter())
            .map(|view| format!("{{ name = '{view}', workload = '{view}', estimate = 'moments' }}"))
            .collect();
        let weight = self
            .second_moment_weight
            .map_or(String::new(), |lambda| format!("second_moment_weight = {lambda}"));
        format!(
            "name = 'statistics'
source.path = 'rows.csv'
columns = [{}]
{key}
views = [{}]
[epochs]
time = 'at'
clock = 'end-of-input'
start = '2024-01-01'
length = '1d'
horizon = {}
[release]
method = '{}'
strategy = '{}'
workload = '{}'
[privacy]
epsilon = {}
delta = {}
neighbours = '{}'
second_moments = '{}'
clip_norm = {}
{weight}
",
            columns.join(", "),
            views.join(", "),
            self.epochs,
            self.method,
            self.strategy,
            self.made_for,
            self.epsilon,
            Self::DELTA,
            self.neighbours,
            self.second_moments,
            self.clip_norm,
        )
    }
}

/// A record; key and epoch count from 0.
#[derive(Clone)]
pub(crate) struct ExperimentRow {
    pub(crate) key: usize,
    pub(crate) epoch: usize,
    pub(crate) values: Vec<f64>,
}

/// A case with its rows, and all noise-free quantities that follow from them.
pub(crate) struct Experiment {
    pub(crate) case: ExperimentCase,
    lab: Lab,
    /// Exact sums: a row per epoch, a column per coordinate of a key.
    pub(crate) sums: DMatrix<f64>,
    pub(crate) strategy: DMatrix<f64>,
    /// Standard deviation of the noise of C's output in each column.
    pub(crate) levels: Vec<f64>,
}

impl Experiment {
    pub(crate) fn new(case: ExperimentCase, rows: &[ExperimentRow]) -> Self {
        let lab = Lab::new();
        lab.write("pipeline.toml", case.text());
        lab.write("rows.csv", csv(&case, rows));
        let strategy = dense::strategy(case.strategy, case.made_for, case.epochs);
        let levels = dense::levels(&case, case.noise_multiplier(), &strategy).repeat(case.keys.max(1));
        Experiment { case, lab, sums: sums(&case, rows), strategy, levels }
    }

    /// Returns the unit of released integers: the coarsest of 0 to 40 binary places on which the
    /// noise is above 2⁴¹ units.
    fn grid(&self, column: usize) -> f64 {
        let grid = |bits| unit(&self.case, column) * 0.5f64.powi(bits);
        (0..40).map(grid).find(|grid| self.levels[column] > 2f64.powi(41) * grid).unwrap_or(grid(40))
    }

    pub(crate) fn decoder(&self, view: &str) -> DMatrix<f64> {
        dense::decoder(&dense::workload(view, self.case.epochs), &self.strategy)
    }

    fn state(&self, run: usize) -> PathBuf {
        self.lab.path(&format!("state-{run}"))
    }

    fn command(&self, run: usize) -> Command {
        let mut command = hushflow("run");
        command.arg(self.lab.path("pipeline.toml")).arg("--state").arg(self.state(run));
        command
    }

    /// Runs the pipeline once, from an empty state and with fresh noise. Returns each view as
    /// released: a row per epoch, a column per coordinate of a key. Compares all printed noise
    /// levels with their closed form.
    pub(crate) fn run(&self, run: usize) -> Vec<DMatrix<f64>> {
        let lines = lines(&mut self.command(run));
        assert_eq!(lines.len(), self.case.views.len() * self.case.epochs * self.case.keys.max(1));
        let of_view = |view: &&str| {
            let lines: Vec<_> = lines.iter().filter(|line| line["view"] == *view).collect();
            self.matrix(&lines, &self.decoder(view))
        };
        self.case.views.iter().map(of_view).collect()
    }

    /// Runs the pipeline once. Returns y from the public log in real units, in the same layout.
    pub(crate) fn release(&self, run: usize) -> DMatrix<f64> {
        lines(self.command(run).arg("--quiet"));
        let mut log = PublicReader::open(self.state(run)).expect("a public log");
        let mut releases = DMatrix::zeros(self.sums.nrows(), self.sums.ncols());
        for mut row in releases.row_iter_mut() {
            let frame = log.next_frame().expect("a sound log").expect("every epoch");
            row.iter_mut().zip(frame.values).enumerate().for_each(|(column, (real, integer))| {
                *real = integer as f64 * self.grid(column);
            });
        }
        releases
    }

    /// Reads the views of an earlier run again from its log.
    pub(crate) fn tail(&self, run: usize) -> Vec<DMatrix<f64>> {
        let of_view = |view: &&str| {
            let mut command = hushflow("tail");
            command.arg(self.state(run)).args(["--view", "moments", "--workload", view]);
            self.matrix(&lines(&mut command).iter().collect::<Vec<_>>(), &self.decoder(view))
        };
        self.case.views.iter().map(of_view).collect()
    }

    fn matrix(&self, lines: &[&Value], decoder: &DMatrix<f64>) -> DMatrix<f64> {
        let width = self.case.coordinates();
        let mut matrix = DMatrix::from_element(self.sums.nrows(), self.sums.ncols(), f64::NAN);
        for line in lines {
            let t = line["epoch"].as_u64().expect("an epoch") as usize - 1;
            let key = line["key"].as_str().and_then(|key| key[1..].parse().ok()).unwrap_or(0);
            let row_norm = decoder.row(t).norm();
            let columns = key * width..(key + 1) * width;
            for (column, (value, noise)) in columns.zip(moments(&self.case, line)) {
                matrix[(t, column)] = value;
                let expected = self.levels[column] * row_norm;
                // Scales are rounded up by at most 2⁻¹⁹.
                assert!(
                    (noise - expected).abs() <= 2e-6 * expected,
                    "noise {noise}, expected {expected}: {line}"
                );
            }
        }
        matrix
    }

    /// Returns released minus exact values of one view, in units of the noise of C's output. Public
    /// counts must be exact.
    pub(crate) fn errors(&self, view: &str, released: &DMatrix<f64>) -> DMatrix<f64> {
        let errors = released - dense::workload(view, self.case.epochs) * &self.sums;
        for (error, _) in errors.column_iter().zip(&self.levels).filter(|(_, level)| **level == 0.0) {
            assert!(error.amax() < 1e-9, "a public count is off by {}", error.amax());
        }
        self.in_noise_units(errors)
    }

    /// Columns without noise become 0.
    pub(crate) fn in_noise_units(&self, mut values: DMatrix<f64>) -> DMatrix<f64> {
        for (mut column, &level) in values.column_iter_mut().zip(&self.levels) {
            column *= if level > 0.0 { level.recip() } else { 0.0 };
        }
        values
    }

    /// Columns of counts, first, squared and mixed second moments, if they have noise.
    pub(crate) fn kinds(&self) -> Vec<(&'static str, Vec<usize>)> {
        let entries = self.case.second_entries();
        let kind = |column: usize| match column % self.case.coordinates() {
            0 => "counts",
            index if index <= self.case.dimension => "first moments",
            index if matches!(entries[index - 1 - self.case.dimension], (i, j) if i == j) => "squares",
            _ => "products",
        };
        let columns = |name| {
            let noisy = (0..self.levels.len()).filter(|&column| self.levels[column] > 0.0);
            (name, noisy.filter(|&column| kind(column) == name).collect::<Vec<_>>())
        };
        let kinds = ["counts", "first moments", "squares", "products"].map(columns);
        kinds.into_iter().filter(|(_, columns)| !columns.is_empty()).collect()
    }
}

fn hushflow(subcommand: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hushflow"));
    command.args([subcommand, "--json"]);
    command
}

fn lines(command: &mut Command) -> Vec<Value> {
    let output = command.output().expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("output is UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

/// Returns values and noise levels of a line, in the order of the coordinates.
fn moments(case: &ExperimentCase, line: &Value) -> Vec<(f64, f64)> {
    let number = |value: &Value| value.as_f64().expect("a number");
    let count = (number(&line["count"]), number(&line["count_noise"]));
    let first = (0..case.dimension).map(|j| (number(&line["first"][j]), number(&line["first_noise"])));
    let second = case.second_entries().into_iter().map(|(i, j)| {
        let at = |field: &str| match case.second_moments {
            "full" => number(&line[field][i][j]),
            _ => number(&line[field][j]),
        };
        (at("second"), at("second_noise"))
    });
    std::iter::once(count).chain(first).chain(second).collect()
}

fn csv(case: &ExperimentCase, rows: &[ExperimentRow]) -> String {
    let names: Vec<String> = (0..case.dimension).map(|j| format!("x{j}")).collect();
    let line = |row: &ExperimentRow| {
        let values: Vec<String> = row.values.iter().map(f64::to_string).collect();
        format!("k{},2024-01-{:02}T12:00:00Z,{}\n", row.key, row.epoch + 1, values.join(","))
    };
    let lines: String = rows.iter().map(line).collect();
    format!("key,at,{}\n{lines}", names.join(","))
}

/// Returns exact sums of the clipped and quantised rows, in centred and scaled coordinates.
fn sums(case: &ExperimentCase, rows: &[ExperimentRow]) -> DMatrix<f64> {
    let clipper =
        Clipper::new(&vec![BOUNDS; case.dimension], case.clip_norm).expect("bounds and a clip norm");
    let joint = (case.method == "joint-clip").then_some(dense::JOINT_WEIGHT);
    let clipper = joint.map_or(clipper.clone(), |weight| clipper.jointly(weight).expect("a weight"));
    let width = case.coordinates();
    let mut sums = DMatrix::zeros(case.epochs, case.keys.max(1) * width);
    for row in rows {
        let mut quantised = QuantisedRows::new(case.dimension);
        clipper.quantise(&row.values, &mut quantised).expect("a finite record");
        let (q, p) = quantised.values().split_at(case.dimension);
        let p = if joint.is_some() { p } else { q };
        let products = case.second_entries().into_iter().map(|(i, j)| p[i] * p[j]);
        let record = std::iter::once(1.0).chain(q.iter().copied()).chain(products);
        (row.key * width..).zip(record).for_each(|(column, value)| sums[(row.epoch, column)] += value);
    }
    let units = (0..sums.ncols()).map(|column| unit(case, column)).collect::<Vec<_>>();
    sums.column_iter_mut().zip(units).for_each(|(mut sums, unit)| sums *= unit);
    sums
}

/// Returns the value of 1 in the integer sums of a column: 1, ζ/2²⁰ or the square of that, divided
/// by √ν if records are clipped together with their squares.
fn unit(case: &ExperimentCase, column: usize) -> f64 {
    let first = case.clip_norm / f64::from(1 << 20);
    match column % case.coordinates() {
        0 => 1.0,
        index if index <= case.dimension => first,
        _ if case.method == "joint-clip" => first * first / dense::JOINT_WEIGHT.sqrt(),
        _ => first * first,
    }
}
