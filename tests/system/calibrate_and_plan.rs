//! `hushflow calibrate` and `hushflow plan`, compared with reference numbers.

use std::process::Output;

use hushflow::pipeline::Pipeline;
use hushflow::publication::MomentPublication;
use serde_json::Value;

use crate::harness::{cases, close, hushflow, number, workload};

const GAUSSIAN_SIGMA: &str = include_str!("../vectors/gaussian_sigma.json");
const GAUSSIAN_EPS: &str = include_str!("../vectors/gaussian_eps.json");
const GAUSSIAN_DELTA: &str = include_str!("../vectors/gaussian_delta.json");
const JME_ERRORS: &str = include_str!("../vectors/jme_errors.json");

/// Returns the output with `--json`; the flags are given in one line.
fn json(line: &str) -> Value {
    let arguments: Vec<&str> = line.split_whitespace().chain(["--json"]).collect();
    let Output { status, stdout, stderr } = hushflow(&arguments).output().unwrap();
    assert!(status.success(), "{line}: {}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

#[test]
fn calibrate_finds_the_noise_multiplier() {
    for case in cases(GAUSSIAN_SIGMA) {
        let (input, expected) = (&case["input"], &case["expected"]);
        let line = format!("calibrate --epsilon {} --delta {}", input["eps"], input["delta"]);
        let report = json(&line);
        close(&line, &report["noise_multiplier"], number(&expected["sigma"]), 1e-10);
        close(&line, &report["mu"], number(&expected["mu_gdp"]), 1e-10);
        close(&line, &report["rho"], number(&expected["rho_zcdp"]), 1e-10);
        assert_eq!((&report["epsilon"], &report["delta"]), (&input["eps"], &input["delta"]));
    }
}

#[test]
fn calibrate_finds_epsilon() {
    for case in cases(GAUSSIAN_EPS) {
        let (input, expected) = (&case["input"], &case["expected"]);
        let line = format!("calibrate --noise-multiplier {} --delta {}", input["sigma"], input["delta"]);
        let report = json(&line);
        close(&line, &report["epsilon"], number(&expected["eps_exact"]), 1e-10);
        close(&line, &report["mu"], number(&expected["mu"]), 1e-13);
        close(&line, &report["rho"], number(&expected["rho"]), 1e-13);
    }
}

#[test]
fn calibrate_finds_delta_and_its_logarithm_where_it_is_too_small() {
    for case in cases(GAUSSIAN_DELTA) {
        let (input, expected) = (&case["input"], &case["expected"]);
        let line = format!("calibrate --noise-multiplier {} --epsilon {}", input["sigma"], input["eps"]);
        let report = json(&line);
        let log_delta = number(&expected["log_delta_exact"]);
        let ratio = number(&report["delta"]) / number(&expected["delta_exact"]);
        assert!(log_delta < -700.0 || (ratio - 1.0).abs() < 1e-9, "{line}: {report}");
        assert!((number(&report["log_delta"]) - log_delta).abs() <= 1e-9, "{line}: {report}");
    }
    let tiny = json("calibrate --noise-multiplier 10 --epsilon 20");
    assert_eq!(number(&tiny["delta"]), 0.0);
    assert!(number(&tiny["log_delta"]) < -19_000.0, "{tiny}");
}

/// Converts the JME paper's name of a strategy to the command line's.
fn strategy(name: &Value) -> &'static str {
    match name.as_str().unwrap() {
        "identity" => "identity",
        "sqrt" => "square-root",
        other => panic!("{other} is not a strategy of these vectors"),
    }
}

/// Total squared errors are sums of the variances of all entries over all epochs.
#[test]
fn plan_agrees_with_the_reference_noise() {
    for case in cases(JME_ERRORS) {
        let (input, expected) = (&case["input"], &case["expected"]["jme"]);
        let (n, d) = (&input["n"], &input["d"]);
        let line = format!(
            "plan --workload {} --horizon {n} --strategy {} --dimension {d} --clip-norm {} --noise-multiplier {} \
             --neighbours replace-one-in-place",
            workload(input),
            strategy(&input["c"]),
            input["zeta"],
            input["sigma_eps_delta"],
        );
        let report = json(&line);
        close(&line, &report["lambda"], number(&expected["lambda"]), 1e-9);
        close(&line, &report["joint_sensitivity"], number(&expected["sens"]), 1e-9);
        assert_eq!(report["second_moment_free"], true);
        let (n, d) = (number(n), number(d));
        let first = number(&report["rms_noise"]["first"]).powi(2) * n * d;
        let second = number(&report["rms_noise"]["second"]).powi(2) * n * (d + d * (d - 1.0) / 2.0);
        close(&line, &expected["first_mse_total"], first, 1e-8);
        close(&line, &expected["second_mse_total_symmetrised"], second, 1e-8);
        assert_eq!(number(&report["last_noise"]["count"]), 0.0, "counts are public in place");
    }
}

#[test]
fn plan_prints_the_noise_of_each_moment_and_of_the_mean() {
    let report = json(
        "plan -w prefix -n 4 -s identity --epsilon 1 --delta 1e-6 --clip-norm 2 --records-per-epoch 100 -d 3",
    );
    let sigma = number(&json("calibrate --epsilon 1 --delta 1e-6")["noise_multiplier"]);
    let in_use = number(&report["noise_multiplier"]);
    assert!(in_use >= sigma && in_use < sigma * (1.0 + 1e-9), "{in_use} against {sigma}");
    // Four epochs of noise 2ζσ; λ = 1/(2ζ²), and κ = ζ/√2 of the count. Scales are rounded up by at
    // most 2⁻¹⁹.
    let deviation = 4.0 * sigma;
    let check = |noise: &str, factor: f64| {
        close(noise, &report[noise]["first"], deviation * factor, 2e-6);
        close(noise, &report[noise]["second"], deviation * factor * 8f64.sqrt(), 2e-6);
        close(noise, &report[noise]["count"], deviation * factor / 2f64.sqrt(), 2e-6);
    };
    check("first_noise", 1.0);
    check("last_noise", 2.0);
    check("rms_noise", 2.5f64.sqrt());
    close("mean", &report["mean_noise"]["last_epoch"], deviation * 2.0 / 400.0, 2e-6);
    assert_eq!([&report["second_moment_free"], &report["count_free"]], [true, true]);
    let zero_out = json("plan -w prefix -n 4 -s identity --neighbours zero-out");
    assert_eq!([&zero_out["second_moment_free"], &zero_out["count_free"]], [false, false]);
    close("zero-out", &zero_out["joint_sensitivity"], 2f64.sqrt(), 1e-9);
    close("zero-out", &zero_out["first_moment_sensitivity"], 1.0, 1e-9);
    let heavier = json("plan -w prefix -n 4 -s identity --second-moment-weight 2");
    assert_eq!(heavier["second_moment_free"], false);
    close("heavier", &heavier["lambda"], 2.0, 1e-14);
}

/// For the identity and records replaced in place, both curves cross at √(1 − 2/d)/2. For d = 1
/// they do not cross.
#[test]
fn plan_advises_on_second_moments() {
    let advice = |dimension: u32, sigma: f64, rest: &str| {
        let line = format!(
            "plan -w prefix -n 200 -d {dimension} --noise-multiplier {sigma} --neighbours replace-one-in-place {rest}"
        );
        json(&line)["second_moment_advice"].clone()
    };
    let crossing = (1.0 - 2.0 / 50.0_f64).sqrt() / 2.0;
    for (sigma, better) in [(crossing * 0.99, "pp"), (crossing * 1.01, "jme")] {
        let found = advice(50, sigma, "-s identity");
        assert_eq!(found["better"], better);
        for bound in found["jme_from_noise_multiplier"].as_array().unwrap() {
            close("crossing", bound, crossing, 1e-8);
        }
        let [jme, pp] = [&found["jme_rmse"], &found["pp_rmse"][1]].map(number);
        assert_eq!(jme < pp, better == "jme", "{found}");
        assert_eq!(advice(1, sigma, "-s square-root")["better"], "jme");
        assert_eq!(advice(1, sigma, "-s blt:2")["jme_from_noise_multiplier"][1], 0.0);
    }
    assert!(advice(3, 1.0, "-s identity --moments none").is_null());
    assert!(advice(3, 1.0, "-s fft").is_null(), "it does not run");
    let all = json("plan -w average -n 100 -d 3 --epsilon 1 --delta 1e-6");
    let strategies = all["strategies"].as_array().unwrap();
    assert!(
        strategies
            .iter()
            .all(|found| found["runs"] != true || found["second_moment_advice"]["better"] == "jme")
    );
}

#[test]
fn plan_prints_the_memory_of_a_long_history() {
    let long = json("plan --workload prefix --horizon 20000 --strategy square-root");
    assert_eq!(long["memory_per_coordinate"], 16 * 19_999);
}

#[test]
fn plan_reads_a_pipeline_file_and_flags_win() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("flights.toml");
    std::fs::write(&path, Pipeline::EXAMPLE).unwrap();
    let path = path.to_str().unwrap();
    let report = json(&format!("plan {path} --strategy square-root"));
    assert_eq!([&report["workload"], &report["strategy"]], ["prefix", "square-root"]);
    assert_eq!([&report["horizon"], &report["dimension"]], [32, 2]);
    assert_eq!((number(&report["epsilon"]), number(&report["clip_norm"])), (1.0, 2f64.sqrt()));
    let parameters = Pipeline::load(path.as_ref()).unwrap().public_parameters();
    let run = MomentPublication::calibrate(parameters, true).unwrap();
    assert_eq!(number(&report["noise_multiplier"]), run.mechanism().moments().parameters().noise_multiplier);
    assert_eq!(number(&report["joint_sensitivity"]), run.mechanism().moments().sensitivity());
    let changed = json(&format!("plan {path} --epsilon 2 --strategy identity --horizon 8"));
    assert_eq!([&changed["strategy"], &changed["epsilon"]], [&"identity".into(), &Value::from(2.0)]);
    assert_eq!((&changed["horizon"], &changed["delta"]), (&8.into(), &report["delta"]));
    assert!(number(&changed["noise_multiplier"]) < number(&report["noise_multiplier"]));
}

/// Reference: dp-accounting 0.6.0, `from_gaussian_mechanism(1.0, sampling_prob=0.01,
/// value_discretization_interval=1e-5).self_compose(1000).get_epsilon_for_delta(1e-5)`.
#[test]
fn calibrate_composes_events_by_the_best_accountant() {
    let sampled = json("calibrate --events 1000*sampled-gaussian:1:0.01 --delta 1e-5");
    close("sampled", &sampled["epsilon"], 1.828_236_7, 1e-3);
    assert!(number(&sampled["epsilon"]) >= 1.828_2 && sampled["accountant"] == "pld", "{sampled}");
    assert!(number(&sampled["numerical_error"]) < 2e-3 && number(&sampled["gdp"]) > 100.0, "{sampled}");

    let gaussian = json("calibrate --events 16*gaussian:16 --delta 1e-6");
    let single = json("calibrate --noise-multiplier 4 --delta 1e-6");
    close("gaussian", &gaussian["epsilon"], number(&single["epsilon"]), 1e-9);
    assert_eq!((&gaussian["accountant"], &gaussian["numerical_error"]), (&"gdp".into(), &0.0.into()));

    let mixed = json("calibrate --events gaussian:4,20*selection:0.1,pure:0.5 --delta 1e-6");
    let back =
        format!("calibrate --events gaussian:4,20*selection:0.1,pure:0.5 --epsilon {}", mixed["epsilon"]);
    close("and back", &json(&back)["delta"], 1e-6, 1e-2);
    assert!(mixed["accountant"] == "pld" && mixed["events"][1]["count"] == 20, "{mixed}");
}

#[test]
fn bad_input_is_refused_with_flag_and_remedy() {
    let check = |line: &str, parts: &[&str]| {
        let output = hushflow(line.split_whitespace()).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {message}");
        assert!(output.stdout.is_empty() && message.starts_with("error: "), "{line}: {message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{line}: no {part:?} in {message}"));
    };
    check("calibrate", &["found 0 of --epsilon", "--delta", "--noise-multiplier", "expected two"]);
    check("calibrate --epsilon 1", &["found 1 of", "expected two"]);
    check("calibrate --epsilon 1 --delta 0.1 --noise-multiplier 1", &["found 3 of", "leave out the one"]);
    check("calibrate --epsilon -1 --delta 0.1", &["--epsilon", "-1", "at least 0"]);
    check("calibrate --epsilon NaN --delta 0.1", &["--epsilon", "NaN", "finite"]);
    check("calibrate --epsilon one --delta 0.1", &["--epsilon", "one", "expected a number"]);
    check("calibrate --epsilon 1 --delta 0", &["--delta", "below 1"]);
    check("calibrate --epsilon 1 --delta 1", &["--delta", "below 1"]);
    check("calibrate --epsilon 1 --delta -1e-6", &["--delta", "at least"]);
    check("calibrate --noise-multiplier 0 --epsilon 1", &["--noise-multiplier", "at least"]);
    check("calibrate --noise-multiplier -2 --epsilon 1", &["--noise-multiplier", "-2", "at least"]);
    check("calibrate --events gaussian:4", &["none of --epsilon and --delta", "expected one"]);
    check("calibrate --events gaussian:4 --epsilon 1 --delta 0.1", &["both of", "leave out"]);
    check("calibrate --events gauss:4 --delta 0.1", &["--events", "\"gauss:4\"", "gaussian:σ"]);
    check("calibrate --events gaussian:0 --delta 0.1", &["--events", "gaussian:0", "noise multiplier is 0"]);
    check("calibrate --events gaussian:1 --noise-multiplier 1", &["--events", "cannot be used with"]);
    check("plan", &["--workload is missing", "--workload prefix"]);
    check("plan --workload prefix", &["--horizon is missing", "--horizon 365"]);
    check("plan --workload prefix --horizon 0", &["--horizon", "1..=100000000"]);
    check("plan --workload prefix --horizon 100000001", &["--horizon", "1..=100000000"]);
    check("plan --workload window:0 --horizon 5", &["--workload", "window:10"]);
    check("plan --workload sum --horizon 5", &["--workload", "prefix"]);
    check("plan --workload prefix --horizon 5 --strategy best", &["--strategy", "square-root"]);
    check("plan --workload prefix --horizon 5 --epsilon 1", &["--delta is missing", "--delta 1e-6"]);
    check("plan --workload prefix --horizon 5 --delta 1e-6", &["--epsilon is missing", "--epsilon 1"]);
    check(
        "plan --workload prefix --horizon 5 --epsilon 1 --noise-multiplier 1",
        &["--epsilon", "--noise-multiplier", "cannot be used with"],
    );
    check("plan --workload prefix --horizon 5 --clip-norm 0", &["--clip-norm", "above 0"]);
    check("plan --workload prefix --horizon 5 --dimension 0", &["--dimension", "1..=4096"]);
    check("plan --workload prefix --horizon 5 --neighbours both", &["--neighbours", "zero-out"]);
    check("plan --workload prefix --horizon 5 --moments third", &["--moments", "diagonal"]);
    check("plan --workload prefix --horizon 5 --second-moment-weight -1", &["--second-moment-weight"]);
    check("plan --workload prefix --horizon 5 --records-per-epoch 0", &["--records-per-epoch", "above 0"]);
    check(
        "plan --workload prefix --horizon 100000000 --participation 10x1000",
        &["no strategy applies", "at most 16,777,216 epochs", "shorten the horizon", "Too many epochs for"],
    );
    check("plan nowhere.toml", &["nowhere.toml", "can't be read"]);
    check("plan nowhere.toml --dimension 3", &["--dimension", "cannot be used with"]);
}

#[test]
fn every_command_explains_itself() {
    let help = |arguments: &[&str]| {
        let output = hushflow(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let all = help(&["--help"]);
    let commands = all.split("Commands:").nth(1).unwrap().lines().skip(1).take_while(|line| !line.is_empty());
    let names: Vec<_> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(["calibrate", "plan", "run", "tail", "verify"].iter().all(|name| names.contains(name)), "{all}");
    for name in names.into_iter().filter(|&name| name != "help") {
        assert!(help(&[name, "--help"]).contains("hushflow"), "{name}");
    }
    for name in ["calibrate", "plan"] {
        assert!(help(&[name, "--help"]).contains("Examples:"), "{name}");
    }
    let alone = hushflow([""; 0]).output().unwrap();
    assert!(String::from_utf8(alone.stderr).unwrap().contains("Commands:"));
}

#[test]
fn people_read_tables() {
    let text = |line: &str| {
        let output = hushflow(line.split_whitespace()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        String::from_utf8(output.stdout).unwrap()
    };
    let calibrated = text("calibrate --epsilon 1 --delta 1e-6");
    assert!(calibrated.contains("noise multiplier σ") && calibrated.contains("4.22468"), "{calibrated}");
    let tiny = text("calibrate --noise-multiplier 10 --epsilon 20");
    assert!(tiny.contains("(20, e^-"), "{tiny}");
    let compared = text("plan -w prefix -n 100 --epsilon 1 --delta 1e-6 --records-per-epoch 50");
    assert!(compared.contains("2.37066") && compared.contains("With 50 records per epoch"), "{compared}");
    let detailed = text("plan -w prefix -n 2000 -s square-root");
    assert!(
        detailed.contains("joint sensitivity")
            && detailed.contains("as no budget is given")
            && detailed.contains("choose jme"),
        "{detailed}"
    );
    for line in compared.lines().chain(detailed.lines()).chain(calibrated.lines()) {
        assert!(line.chars().count() <= 132 && line.trim_end() == line, "{line:?}");
    }
}

#[test]
fn a_closed_output_is_no_failure() {
    for line in ["plan -w prefix -n 10", "plan -w prefix -n 10 --json", "plan --help", "calibrate --help"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = hushflow(line.split_whitespace()).stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
    }
}
