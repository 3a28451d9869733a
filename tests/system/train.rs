//! `hushflow train`: models of real and made-up rows, and steps that are released once despite
//! kills. The oracle (`oracle/training.rs`) has everything public about neighbouring rows.
//!
//! Noise has a seed where results are compared with bounds, so no test fails by chance.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hushflow::publication::MomentPublication;
use hushflow::state::PublicReader;
use serde_json::Value;

use crate::harness::{Ended, Lab, Random, finish, hushflow, releases, wait};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/digits_8x8.csv");
const FLIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/flights_jan2013.csv");

/// Rows of y = 3 + 2a − b with a little deviation, and a class.
fn rows(number: usize) -> String {
    let mut random = Random(5);
    let mut text = "a,b,y,class\n".to_owned();
    for _ in 0..number {
        let mut uniform = || random.below(2001) as f64 / 1000.0 - 1.0;
        let (a, b, deviation) = (uniform(), 5.0 + 5.0 * uniform(), 0.1 * uniform());
        let y = 3.0 + 2.0 * a - b + deviation;
        let class = if y > -2.0 { "high" } else { "low" };
        let _ = writeln!(text, "{a},{b},{y},{class}");
    }
    text
}

/// A pipeline file over `data.csv` with these sections.
fn pipeline(training: &str, more: &str) -> String {
    let columns = match training.contains("target = 'y'") {
        true => "[[columns]]\nname = 'y'\nlower = -10\nupper = 10\n",
        false => "",
    };
    format!(
        "name = 'model'\n[source]\npath = 'data.csv'\n[[columns]]\nname = 'a'\nlower = -1\nupper = 1\n\
         [[columns]]\nname = 'b'\nlower = 0\nupper = 10\n{columns}\
         [training]\n{training}\n\
         [privacy]\nepsilon = 2\ndelta = 1e-6\nneighbours = 'replace-one-in-place'\nclip_norm = 1\n{more}"
    )
}

const LINEAR: &str = "model = 'linear'\ntarget = 'y'\nrecords = 4000\nbatch_size = 400\npasses = 10\n\
    optimiser = 'momentum'\nlearning_rate = 0.3\nmomentum = 0.5";

const SEEDED: &str = "[simulation]\nseed = 3\n";

struct Bench {
    lab: Lab,
    pipeline: PathBuf,
}

impl Bench {
    fn new(training: &str, more: &str) -> Self {
        Self::over(&rows(4000), &pipeline(training, more))
    }

    fn over(data: &str, pipeline: &str) -> Self {
        let lab = Lab::new();
        lab.write("data.csv", data);
        let pipeline = lab.write("pipeline.toml", pipeline);
        Self { lab, pipeline }
    }

    fn state(&self, name: &str) -> PathBuf {
        self.lab.path(name)
    }

    fn command(&self, state: &str) -> std::process::Command {
        let mut command = hushflow(["train"]);
        command.arg(&self.pipeline).arg("--state").arg(self.state(state));
        command
    }

    fn train(&self, state: &str) -> Ended {
        finish(&mut self.command(state))
    }

    fn model(&self, state: &str) -> Value {
        self.train(state).succeeded();
        model(&self.state(state))
    }
}

fn model(state: &Path) -> Value {
    let text = std::fs::read(state.join("model.json")).expect("a model");
    serde_json::from_slice(&text).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

fn check_near(found: &Value, expected: f64, within: f64) {
    let found = number(found);
    assert!((found - expected).abs() < within, "{found}, expected {expected} ± {within}");
}

#[test]
fn a_linear_model_has_the_coefficients_of_the_rows() {
    for optimiser in
        ["optimiser = 'sgd'\nlearning_rate = 0.6", "learning_rate = 0.3", "optimiser = 'momentum'"]
    {
        let training = match optimiser {
            "optimiser = 'momentum'" => LINEAR.to_owned(),
            "learning_rate = 0.3" => LINEAR.replace(
                "optimiser = 'momentum'\nlearning_rate = 0.3\nmomentum = 0.5",
                "optimiser = 'dp-adam-bc'\nlearning_rate = 0.05",
            ),
            other => LINEAR.replace("optimiser = 'momentum'\nlearning_rate = 0.3\nmomentum = 0.5", other),
        };
        let bench = Bench::new(&training, SEEDED);
        let model = bench.model("state");
        let output = &model["outputs"][0];
        check_near(&output["coefficients"]["a"], 2.0, 0.5);
        check_near(&output["coefficients"]["b"], -1.0, 0.1);
        assert_eq!((model["steps"].as_u64(), model["private"].as_bool()), (Some(100), Some(false)));
        check_near(&model["epsilon"], 2.0, 1e-6);
    }
}

#[test]
fn every_optimiser_and_model_trains() {
    for optimiser in ["sgd", "momentum", "dp-adam", "dp-adam-bc", "scale-then-privatise", "jme", "joint-clip"]
    {
        for neighbours in ["replace-one-in-place", "zero-out"] {
            let training = format!(
                "model = 'logistic'\ntarget = 'class'\nclasses = ['low', 'high']\nrecords = 4000\nbatch_size = 400\n\
                 passes = 4\noptimiser = '{optimiser}'\nlearning_rate = 0.1"
            );
            let text = pipeline(&training, &format!("{SEEDED}[release]\nschedule = 'cosine:4'\n"))
                .replace("'replace-one-in-place'", &format!("'{neighbours}'"));
            let bench = Bench::over(&rows(4000), &text);
            let test = bench.lab.write("test.csv", rows(500));
            let ended = finish(bench.command("state").arg("--json").arg("--test").arg(&test)).succeeded();
            let lines = ended.json();
            assert_eq!(lines.len(), 41, "a line for each step, and the model");
            let accuracy = number(&lines[39]["test"]["accuracy"]);
            assert!(accuracy > 0.85, "{optimiser}, {neighbours}: {accuracy}");
        }
    }
}

/// Softmax regression of the digits and a linear model of flights, within bounds of fits without
/// privacy: more than 95 % of the digits, and least squares.
#[test]
fn softmax_learns_digits_and_delays_have_a_model() {
    let columns: String =
        (0..64).map(|at| format!("[[columns]]\nname = 'p{at}'\nlower = 0\nupper = 16\n")).collect();
    let classes: Vec<String> = (0..10).map(|digit| digit.to_string()).collect();
    let text = format!(
        "name = 'digits'\n[source]\npath = '{DIGITS}'\n{columns}[training]\nmodel = 'softmax'\ntarget = 'label'\n\
         classes = {classes:?}\nrecords = 1797\nbatch_size = 179\npasses = 20\nlearning_rate = 0.05\n\
         [privacy]\nepsilon = 8\ndelta = 1e-6\nneighbours = 'zero-out'\nclip_norm = 1\n{SEEDED}"
    );
    let bench = Bench::over("", &text);
    let ended = finish(bench.command("state").args(["--json", "--test", DIGITS])).succeeded();
    let lines = ended.json();
    let accuracy = number(&lines[lines.len() - 2]["test"]["accuracy"]);
    assert!(accuracy > 0.9, "{accuracy}");
    assert_eq!(lines.last().unwrap()["outputs"].as_array().map(Vec::len), Some(10));

    let text = format!(
        "name = 'delays'\n[source]\npath = '{FLIGHTS}'\n[[columns]]\nname = 'dep_delay'\nlower = -30\nupper = 180\n\
         [[columns]]\nname = 'arr_delay'\nlower = -60\nupper = 180\n[training]\nmodel = 'linear'\ntarget = 'arr_delay'\n\
         records = 26398\nbatch_size = 1000\npasses = 10\noptimiser = 'momentum'\nlearning_rate = 0.2\n\
         [privacy]\nepsilon = 1\ndelta = 1e-6\nneighbours = 'replace-one-in-place'\nclip_norm = 1\n{SEEDED}"
    );
    let bench = Bench::over("", &text);
    // Least squares on the clipped columns has the slope 1.02.
    check_near(&bench.model("state")["outputs"][0]["coefficients"]["dep_delay"], 1.02, 0.15);
}

#[test]
fn gradients_of_a_source_move_the_parameters() {
    let training = "model = 'gradients'\nrecords = 4000\nbatch_size = 400\npasses = 1\norder = 'source'\n\
        optimiser = 'sgd'\nlearning_rate = 0.1";
    let data = "a,b\n".to_owned() + &"0.5,0.25\n".repeat(4000);
    let bench = Bench::over(&data, &pipeline(training, SEEDED));
    let model = bench.model("state");
    // Ten steps of 0.1 along (0.5, 0.25), whose norm is below the clip norm.
    check_near(&model["last"][0], -0.5, 0.05);
    check_near(&model["last"][1], -0.25, 0.05);
    assert_eq!(model["names"], serde_json::json!(["a", "b"]));
}

/// Kills runs at random moments. The releases and the model are those of an undisturbed run, and a
/// released step never changes.
#[test]
fn killed_runs_go_on_after_the_last_released_step() {
    let training = LINEAR.replace("passes = 10", "passes = 40");
    let bench = Bench::new(&training, SEEDED);
    let whole = bench.model("whole");
    let expected: Vec<_> = releases(&bench.state("whole")).into_iter().map(|step| step.values).collect();
    assert_eq!(expected.len(), 400);
    let (state, mut random, mut kills) = (bench.state("killed"), Random(1), 0);
    loop {
        let mut child = bench.command("killed").spawn().expect("the binary starts");
        let before = releases(&state).len();
        let enough = before + 1 + random.below(40) as usize;
        while releases(&state).len() < enough && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_micros(500 + random.below(2000)));
        }
        child.kill().expect("a child can be killed");
        let ended = wait(child);
        let steps: Vec<_> = releases(&state).into_iter().map(|step| step.values).collect();
        assert!(steps[..] == expected[..steps.len()], "a step was drawn again, or differs");
        if ended.code == Some(0) {
            break;
        }
        assert_eq!(ended.code, None, "{}", ended.err);
        kills += 1;
    }
    assert!(kills >= 5, "only {kills} kills");
    assert_eq!(model(&state), whole);
    // Nothing is left to do.
    assert!(bench.train("killed").succeeded().err.contains("All 400 steps are released"));
    assert_eq!(releases(&state).len(), 400);
}

/// Sums of gradients are integers: releases and models are the same for any number of workers, also
/// of more than a step has rows, and for a run that another number of workers continues.
#[test]
fn steps_do_not_depend_on_the_number_of_workers() {
    let jme = "model = 'logistic'\ntarget = 'class'\nclasses = ['low', 'high']\nrecords = 4000\nbatch_size = 400\n\
        passes = 2\noptimiser = 'jme'\nlearning_rate = 0.1";
    for (training, more) in [
        (LINEAR, ""),
        (jme, "[release]\nsecond_workload = 'adam:0.999'\n"),
        (&jme.replace("'jme'", "'scale-then-privatise'"), ""),
    ] {
        let bench = Bench::new(training, &format!("{more}{SEEDED}"));
        let runs = ["1", "3", "500"].map(|workers| {
            finish(bench.command(workers).args(["--workers", workers])).succeeded();
            let steps: Vec<_> = releases(&bench.state(workers)).into_iter().map(|step| step.values).collect();
            (steps, model(&bench.state(workers)))
        });
        assert!(runs[0].0.len() >= 20 && runs[0] == runs[1] && runs[0] == runs[2], "{training}");
    }
}

/// Checks that fresh noise is drawn: two private runs of the same rows differ.
#[test]
fn private_runs_draw_their_own_noise() {
    let bench = Bench::new(LINEAR, "");
    let [one, other] = ["one", "other"].map(|state| bench.model(state));
    assert_ne!(one["parameters"], other["parameters"]);
    assert_eq!(one["private"], true);
}

#[test]
fn rows_that_changed_between_runs_are_refused() {
    let bench = Bench::new(&LINEAR.replace("passes = 10", "passes = 400"), SEEDED);
    let mut child = bench.command("state").spawn().expect("the binary starts");
    while releases(&bench.state("state")).len() < 3 {
        assert!(child.try_wait().expect("a child").is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("a child can be killed");
    wait(child);
    let text = rows(4000);
    let (header, data) = text.split_once('\n').expect("a header");
    let (first, rest) = data.split_once('\n').expect("a row");
    bench.lab.write("data.csv", format!("{header}\n{rest}{first}\n"));
    bench.train("state").failed(1, &["the rows are not those of the released steps", "new state directory"]);
}

#[test]
fn the_ledger_pays_for_all_steps_once() {
    let ledger =
        "[ledger]\ndirectory = 'shared'\ndata_set = 'rows'\nbudget = { epsilon = 2.5, delta = 1e-6 }\n";
    let bench = Bench::new(LINEAR, ledger);
    for _ in 0..2 {
        bench.train("one").succeeded();
    }
    let printed = finish(hushflow(["ledger", "--json"]).arg(bench.state("shared"))).succeeded().json();
    assert_eq!(printed[0]["entries"].as_array().map(Vec::len), Some(1));
    check_near(&printed[0]["entries"][0]["epsilon"], 2.0, 1e-9);
    assert_eq!(printed[0]["entries"][0]["neighbours"], "replace-one-in-place");
    bench.train("two").failed(1, &["budget"]);
    assert!(releases(&bench.state("two")).is_empty(), "nothing was released");
    finish(hushflow(["verify"]).arg(bench.state("one"))).succeeded();
    finish(hushflow(["tail", "--json"]).arg(bench.state("one"))).succeeded();
}

#[test]
fn plan_and_check_agree_with_a_run() {
    let bench = Bench::new(LINEAR, SEEDED);
    let plan = finish(hushflow(["plan", "--json"]).arg(&bench.pipeline)).succeeded().json().remove(0);
    assert_eq!((plan["steps"].as_u64(), plan["participation"].as_str()), (Some(100), Some("10x10")));
    let spent = plan["epsilon_by_pass"].as_array().expect("ε by pass").clone();
    assert!(spent.windows(2).all(|pair| number(&pair[0][1]) < number(&pair[1][1])), "{spent:?}");
    check_near(&spent[9][1], 2.0, 1e-6);
    let text = finish(hushflow(["plan"]).arg(&bench.pipeline)).succeeded().out;
    assert!(text.contains("100 steps: 10 passes of 10 batches of 400 rows"), "{text}");
    let check = finish(hushflow(["check", "--json"]).arg(&bench.pipeline)).succeeded().json().remove(0);
    assert_eq!((check["rows"].as_u64(), check["blank"].as_u64()), (Some(4000), Some(0)));
    assert!(!bench.state("state").exists());
    bench.train("state").succeeded();
    let reader = PublicReader::open(bench.state("state")).expect("a log");
    let publication = MomentPublication::from_header(reader.header()).expect("a header");
    assert_eq!(plan["noise_multiplier"].as_f64(), Some(publication.calibration().noise_multiplier));
}

#[test]
fn mistakes_are_named_with_their_place() {
    let check = |from: &str, to: &str, parts: &[&str]| {
        let text = pipeline(LINEAR, "");
        assert!(text.contains(from), "{from}");
        Bench::over(&rows(40), &text.replacen(from, to, 1)).train("state").failed(2, parts);
    };
    check(
        "target = 'y'",
        "target = 'z'",
        &["pipeline.toml:", "training.target: found 'z', expected one of [[columns]]"],
    );
    check(
        "batch_size = 400",
        "batch_size = 4001",
        &["training.batch_size: found 4001, expected at most records = 4000"],
    );
    check("model = 'linear'", "model = 'tree'", &["training.model: found \"tree\", expected \"linear\" or"]);
    check("learning_rate = 0.3\n", "", &["training: ", "learning_rate = 0.05"]);
    check(
        "target = 'y'",
        "target = 'y'\nclasses = ['1', '2']",
        &["training.classes: classes are for logistic"],
    );
    check(
        "'replace-one-in-place'",
        "'replace-one'",
        &["privacy.neighbours: training keeps every row at its position"],
    );
    check("clip_norm = 1\n", "", &["training needs clip_norm = 1"]);
    check(
        "[training]",
        "[epochs]\nrecords = 3\nhorizon = 4\n[training]",
        &["epochs: a file with [training]"],
    );
    check(
        "path = 'data.csv'",
        "path = '-'\nformat = 'csv'",
        &["source.path: training takes every row several times"],
    );
    let bench = Bench::over(&rows(3999), &pipeline(LINEAR, ""));
    bench.train("state").failed(1, &["the source has 3999 rows, but [training] says records = 4000"]);
    finish(hushflow(["run"]).arg(&bench.pipeline).arg("--state").arg(bench.state("state")))
        .failed(1, &["hushflow train"]);
    let stream = bench.lab.write(
        "stream.toml",
        "name = 's'\n[source]\npath = 'data.csv'\n[[columns]]\nname = 'a'\nlower = -1\nupper = 1\n\
         [epochs]\nrecords = 5\nhorizon = 9\n[privacy]\nepsilon = 1\ndelta = 1e-6\n",
    );
    finish(hushflow(["train"]).arg(&stream)).failed(2, &["there is no section [training]"]);
}
