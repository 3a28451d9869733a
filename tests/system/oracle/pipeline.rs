//! The pipeline file of a case.

use std::fmt::Write;

use super::factors::{Case, Factor as F};
use super::rows::written;
use super::stores;

/// Lower and upper bounds of the columns.
pub(super) const BOUNDS: [[f64; 2]; 3] = [[-1.0, 1.0], [0.0, 10.0], [-5.0, 95.0]];

/// Seconds in an epoch of time.
pub(super) const LENGTH: i64 = 60;

/// Seconds by which a record may be late, if lateness is allowed.
pub(super) const LATENESS: i64 = 90;

/// Limit on jumps of the clock in seconds, if there is one.
pub(super) const JUMP: i64 = 600;

/// How many entities and ids have a bin, counted from number 0: some of the entities, and most of
/// the ids.
const ENTITIES: usize = 3;
const IDS: usize = 60;

/// The public keys.
pub(super) const KEYS: [&str; 3] = ["k0", "k1", "k2"];

impl Case {
    /// Rows of an epoch by count.
    pub(super) fn rows_per_epoch(&self) -> usize {
        match &self[F::Rows] {
            "ranges" => 3000,
            "many" => 1200,
            _ => 3,
        }
    }

    /// Names of the files of the case, by source.
    pub(super) fn files(&self) -> Vec<Vec<String>> {
        let format = &self[F::Format];
        let named = |name: &str| format!("{name}.{format}");
        match &self[F::Source] {
            "file" => vec![vec![named("a")]],
            "two files" => vec![vec![named("a"), named("b")]],
            "two sources" => vec![vec![named("a")], vec![named("b")]],
            _ => vec![vec!["-".into()]],
        }
    }

    /// The pipeline file.
    pub(super) fn pipeline(&self) -> String {
        let mut text = format!("name = 'oracle'\n{}", self.sources());
        for (name, [lower, upper]) in ["x", "y", "z"].iter().zip(BOUNDS).take(self.number(F::Columns)) {
            let _ = writeln!(text, "[[columns]]\nname = '{name}'\nlower = {lower}\nupper = {upper}");
            if self.is(F::Bounds, &["keys"]) {
                let middle = (lower + upper) / 2.0;
                let _ =
                    writeln!(text, "[columns.bounds]\nk0 = [{lower}, {middle}]\nk2 = [{middle}, {upper}]");
            }
        }
        if !self.is(F::Histograms, &["none"]) {
            text += "[[histograms]]\ncolumn = 'x'\nbins = 4\n";
        }
        let has_tree = self.is(F::Histograms, &["tree and weight"]);
        if has_tree {
            text += "branching = 2\n";
        }
        if self.is(F::Histograms, &["bins and values"]) {
            let (column, letter, listed) = match self.is(F::Unit, &["entity"]) {
                true => ("id", 'r', IDS),
                false => ("entity", 'e', ENTITIES),
            };
            let values: Vec<_> = (0..listed).map(|number| format!("{letter}{number}")).collect();
            let _ = writeln!(text, "[[histograms]]\ncolumn = '{column}'\nvalues = {values:?}");
        }
        if self.is(F::Keys, &["three"]) {
            let _ = writeln!(text, "[key]\ncolumn = 'key'\nvalues = {KEYS:?}");
        }
        if self.discovers() {
            text += "[key]\ncolumn = 'key'\ndiscover = { delta = 1e-8, most = 3 }\n";
        }
        if self.is(F::Unit, &["entity"]) {
            let [k, b, m] = self.limits();
            let several = if self[F::Limits].ends_with("average") { "average" } else { "keep" };
            let _ = writeln!(
                text,
                "[entity]\ncolumn = 'entity'\nparticipations = {k}\nmin_separation = {b}\nrecords_per_epoch = {m}\n\
                 several = '{several}'"
            );
            if !self.is(F::Sent, &["none"]) {
                let _ = writeln!(text, "sent_limit = {}", &self[F::Sent]);
            }
        }
        text += &self.epochs();
        let _ = writeln!(
            text,
            "[privacy]\nunit = '{}'\nneighbours = '{}'\nepsilon = 1\ndelta = 1e-6",
            &self[F::Unit],
            &self[F::Neighbours]
        );
        if !self.estimates() {
            let _ = writeln!(text, "second_moments = '{}'", &self[F::Moments]);
        }
        if has_tree {
            text += "histogram_weight = 0.2\n";
        }
        if self.is(F::ClipNorm, &["short"]) {
            text += "clip_norm = 0.5\n";
        }
        text += &self.release();
        if self.is(F::Watch, &["sink"]) {
            text += "[[sinks]]\npath = 'sink.jsonl'\n";
        }
        if self.is(F::Watch, &["table"]) {
            text += "[[sinks]]\npath = 'table'\nformat = 'parquet'\nrotate = '3 epochs'\n";
        }
        // This section comes last, because a world may add offsets to it.
        let _ = writeln!(text, "[simulation]\nseed = {}", self.seed % 1000);
        text
    }

    fn sources(&self) -> String {
        let missing = if self.is(F::Missing, &["by column"]) { "missing = 'by-column'\n" } else { "" };
        let id = if self.is(F::Copies, &["by id"]) { "id = 'id'\n" } else { "" };
        // Without a limit, rows may move the clock arbitrarily far; the default would stop runs.
        let jump = match self.is(F::Clock, &["records", "end-of-input"]) {
            _ if self.is(F::Jump, &["limited"]) => "largest_jump = '600s'\n",
            true => "",
            false => "largest_jump = '40000d'\n",
        };
        // Where counts are public, a run whose rows are mostly late stops, in both worlds alike and
        // without a release to compare. In all other cases private facts must stop no run by
        // default.
        let preflight =
            if self.is(F::Neighbours, &["replace-one-in-place"]) { "preflight = 'off'\n" } else { "" };
        let jump = format!("{preflight}{jump}");
        let journal = if self.is(F::Source, &["journal"]) { "journal = true\n" } else { "" };
        let files = self.files();
        let source = |(files, name): (&Vec<String>, &str)| {
            let (title, name) = match self.is(F::Source, &["two sources"]) {
                true => ("[[sources]]", format!("name = '{name}'\n")),
                false => ("[source]", String::new()),
            };
            if let Some(fields) = stores::source(self, &written(self, [].iter())) {
                return format!("{title}\n{fields}{id}{jump}{missing}");
            }
            let path = if files.len() == 1 { format!("{:?}", files[0]) } else { format!("{files:?}") };
            format!(
                "{title}\n{name}path = {path}\nformat = '{}'\n{journal}{id}{jump}{missing}",
                &self[F::Format]
            )
        };
        files.iter().zip(["north", "south"]).map(source).collect()
    }

    fn epochs(&self) -> String {
        let horizon = &self[F::Horizon];
        let clock = match &self[F::Clock] {
            "records" => {
                return format!("[epochs]\nrecords = {}\nhorizon = {horizon}\n", self.rows_per_epoch());
            }
            "arrival" => "arrival = 'arrival'".into(),
            "late folded" => format!("arrival = 'arrival'\nallowed_lateness = '{LATENESS}s'"),
            "late dropped" => format!("arrival = 'arrival'\nallowed_lateness = '{LATENESS}s'\nlate = 'drop'"),
            clock => format!("clock = '{clock}'"),
        };
        format!(
            "[epochs]\ntime = 'event'\n{clock}\nstart = '2020-01-01'\nlength = '{LENGTH}s'\nhorizon = {horizon}\n"
        )
    }

    fn release(&self) -> String {
        let method = &self[F::Method];
        if self.estimates_means() {
            let scales = vec!["1.0"; self.number(F::Columns)].join(", ");
            // Coarse nets, which are fast.
            let (corruption, range) = match method {
                "tukey" => ("0.4", "range = 1\n"),
                "resilience" if self.seed.is_multiple_of(2) => ("0.16", "range = 1\n"),
                "resilience" => ("0.16", ""),
                _ => ("0.01", ""),
            };
            return format!(
                "[release]\nmethod = '{method}'\ncorruption = {corruption}\nscale = [{scales}]\n{range}{}",
                self.windows()
            );
        }
        if self.estimates() {
            return format!("[release]\nmethod = '{method}'\n{}", self.windows());
        }
        let strategy = &self[F::Strategy];
        // Optimisers fit any weights, those of files and schedules too.
        let workload = match strategy {
            "power-law:2" => "'average'",
            "optimal" if self.seed.is_multiple_of(2) => "'matrix:dense.csv'",
            "coa" if self.seed.is_multiple_of(2) => "'momentum:0.5'\nschedule = 'linear:1'",
            _ => "'prefix'",
        };
        let second = match &self[F::Second] {
            "same" => String::new(),
            second => format!("second_strategy = '{second}'\nsecond_workload = 'prefix'\n"),
        };
        format!("[release]\nmethod = '{method}'\nstrategy = '{strategy}'\nworkload = {workload}\n{second}")
    }

    fn windows(&self) -> String {
        match self[F::Windows].split_once('/') {
            Some((window, stride)) => format!("window = {window}\nstride = {stride}\n"),
            None if self.is(F::Windows, &["growing"]) => "window = 'growing'\n".into(),
            None => String::new(),
        }
    }

    /// A lower-triangular matrix with entries of both signs, for `file:dense.csv`.
    pub(super) fn matrix(&self) -> String {
        let horizon = self.number(F::Horizon);
        let entry = |row: usize, column: usize| match row.checked_sub(column) {
            None => 0.0,
            Some(0) => 1.0 + 0.1 * (row % 3) as f64,
            Some(lag) => [0.5, -0.25, 0.125][lag % 3] / lag as f64,
        };
        let row = |row| {
            (0..horizon).map(|column| entry(row, column).to_string()).collect::<Vec<_>>().join(",") + "\n"
        };
        (0..horizon).map(row).collect()
    }
}
