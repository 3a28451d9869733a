//! `hushflow train` with batches that are drawn at random: the stated ε is that of the amplified
//! accounting, and coins are secret, fresh, of the stated probability, and never tossed twice.
//!
//! Half of the rows have the gradient (ζ, 0), and half (0, ζ). At ε = 30 the noise is below one
//! row, so releases show how many rows of each half took part in each step.

use std::path::PathBuf;
use std::time::Duration;

use hushflow::mechanism::accounting::amplification::RandomParticipation;
use hushflow::mechanism::accounting::{Delta, NoiseMultiplier};
use hushflow::mechanism::sensitivity::Neighbours;
use hushflow::publication::MomentPublication;
use hushflow::state::PublicReader;
use serde_json::Value;

use crate::harness::{Lab, Random, finish, hushflow, releases, wait};

/// Rows of each half, and steps of a pass.
const ROWS: usize = 9_996;
const STEPS: usize = 6;

struct Bench {
    lab: Lab,
    pipeline: PathBuf,
}

impl Bench {
    /// Rows and a pipeline over them.
    fn new(sampling: &str, passes: usize) -> Self {
        let lab = Lab::new();
        lab.write("data.csv", "a,b\n".to_owned() + &"1,0\n0,1\n".repeat(ROWS));
        let text = format!(
            "name = 'model'\nsource.path = 'data.csv'\ncolumns = [{{ name = 'a', lower = -1, upper = 1 }}, \
             {{ name = 'b', lower = -1, upper = 1 }}]\n[training]\nmodel = 'gradients'\nrecords = {}\n\
             batch_size = {}\npasses = {passes}\nsampling = '{sampling}'\noptimiser = 'sgd'\nlearning_rate = 0.1\n\
             [privacy]\nepsilon = 30\ndelta = 1e-6\nneighbours = 'zero-out'\nclip_norm = 1\n",
            2 * ROWS,
            2 * ROWS / STEPS,
        );
        let pipeline = lab.write("pipeline.toml", text);
        Self { lab, pipeline }
    }

    fn command(&self, state: &str) -> std::process::Command {
        let mut command = hushflow(["train"]);
        command.arg(&self.pipeline).arg("--state").arg(self.lab.path(state));
        command
    }

    /// Returns how many rows of each half took part in each released step, with noise.
    fn taken(&self, state: &str) -> Vec<[f64; 2]> {
        let state = self.lab.path(state);
        let reader = PublicReader::open(&state).expect("a log");
        let publication = MomentPublication::from_header(reader.header()).expect("a header");
        let (noise, first) = (publication.mechanism().moments().noise()[1], publication.layout().first());
        assert!(noise.standard_deviation() < 1.0, "{}", noise.standard_deviation());
        let of_step = |values: &[i128]| [0, 1].map(|half| values[first.start + half] as f64 * noise.unit);
        releases(&state).iter().map(|step| of_step(&step.values)).collect()
    }
}

fn json(command: &mut std::process::Command) -> Value {
    finish(command).succeeded().json().remove(0)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

/// Correlation of two sequences about a known mean.
fn correlation(pairs: impl Iterator<Item = (f64, f64)>, mean: f64) -> f64 {
    let [mut product, mut one, mut other] = [0.0; 3];
    for (a, b) in pairs {
        product += (a - mean) * (b - mean);
        one += (a - mean).powi(2);
        other += (b - mean).powi(2);
    }
    product / (one * other).sqrt()
}

/// Sizes of batches have the mean and the variance of binomial numbers, and depend neither on other
/// steps nor on other runs. Each check is within six deviations: a false alarm has a probability
/// below 10⁻⁸.
#[test]
fn poisson_batches_are_fresh_and_have_their_probability() {
    let passes = 20;
    let bench = Bench::new("poisson", passes);
    for state in ["one", "other"] {
        finish(&mut bench.command(state)).succeeded();
    }
    let [one, other] = ["one", "other"].map(|state| bench.taken(state));
    assert_eq!(one.len(), passes * STEPS);
    let probability = (2 * ROWS / STEPS) as f64 / (2 * ROWS) as f64;
    let (mean, number) = (ROWS as f64 * probability, (2 * passes * STEPS) as f64);
    let variance = mean * (1.0 - probability);
    for taken in [&one, &other] {
        let sizes = || taken.iter().flatten().copied();
        let found = sizes().sum::<f64>() / number;
        assert!((found - mean).abs() < 6.0 * (variance / number).sqrt(), "mean {found} of {mean}");
        let found = sizes().map(|size| (size - mean).powi(2)).sum::<f64>() / number;
        assert!((found / variance - 1.0).abs() < 6.0 * (2.0 / number).sqrt(), "{found} of {variance}");
        let successive = taken.windows(2).map(|steps| (steps[0][0], steps[1][0]));
        let found = correlation(successive, mean);
        assert!(found.abs() < 6.0 * (2.0 / number).sqrt(), "steps share coins: {found}");
        let found = correlation(taken.iter().map(|step| (step[0], step[1])), mean);
        assert!(found.abs() < 6.0 * (2.0 / number).sqrt(), "rows share coins: {found}");
    }
    let both = one.iter().flatten().copied().zip(other.iter().flatten().copied());
    let found = correlation(both, mean);
    assert!(found.abs() < 6.0 * number.recip().sqrt(), "runs share coins: {found}");
}

/// Kills runs at random moments, most of them within a pass. Every row takes part once in each
/// pass, as it does in a run that nobody killed. Rows that were assigned anew after a kill would
/// change the sum of a pass by about 60, and the noise changes it by about 2.
#[test]
fn killed_runs_toss_no_coin_twice() {
    let passes = 30;
    let bench = Bench::new("balls-in-bins", passes);
    let (state, mut random, mut kills) = (bench.lab.path("state"), Random(1), 0);
    loop {
        let mut child = bench.command("state").spawn().expect("the binary starts");
        let enough = releases(&state).len() + 1 + random.below(30) as usize;
        while releases(&state).len() < enough && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_micros(500 + random.below(2000)));
        }
        child.kill().expect("a child can be killed");
        let ended = wait(child);
        if ended.code == Some(0) {
            break;
        }
        assert_eq!(ended.code, None, "{}", ended.err);
        kills += 1;
    }
    assert!(kills >= 3, "only {kills} kills");
    let taken = bench.taken("state");
    assert_eq!(taken.len(), passes * STEPS);
    for pass in taken.chunks(STEPS) {
        for half in [0, 1] {
            let sum: f64 = pass.iter().map(|step| step[half]).sum();
            // Eight deviations of the noise.
            assert!((sum - ROWS as f64).abs() < 20.0, "a pass took {sum} of {ROWS} rows");
        }
    }
    let mean = ROWS as f64 / STEPS as f64;
    let next = |at: usize| taken[at + STEPS][0];
    let successive = (0..taken.len() - STEPS).map(|at| (taken[at][0], next(at)));
    let (found, number) = (correlation(successive, mean), (taken.len() - STEPS) as f64);
    assert!(found.abs() < 6.0 * number.recip().sqrt(), "passes share coins: {found}");
    assert!(taken.iter().any(|step| (step[0] - mean).abs() > 30.0), "batches have a fixed size");
    finish(hushflow(["verify"]).arg(&state)).succeeded();
}

const LINEAR: &str = "name = 'model'\nsource.path = 'data.csv'\ncolumns = [{ name = 'a', lower = -1, upper = 1 }, \
    { name = 'b', lower = 0, upper = 10 }]\n[training]\nmodel = 'linear'\ntarget = 'b'\nrecords = 2000\n\
    batch_size = 200\npasses = 2\nsampling = 'poisson'\noptimiser = 'sgd'\nlearning_rate = 0.1\n\
    [privacy]\nepsilon = 2\ndelta = 1e-6\nneighbours = 'zero-out'\nclip_norm = 1\n";

/// A lab with rows for the pipeline.
fn lab() -> Lab {
    let lab = Lab::new();
    let rows: String = (0..2000).map(|row| format!("{},{}\n", row % 3 - 1, row % 11)).collect();
    lab.write("data.csv", format!("a,b\n{rows}"));
    lab
}

/// The accountant, called by this test, finds the stated ε for the noise of the plan. It is less
/// noise than batches in order need.
#[test]
fn the_stated_epsilon_is_that_of_the_amplified_accounting() {
    let lab = lab();
    let plan = |sampling: &str, neighbours: &str| {
        let text = LINEAR.replace("poisson", sampling).replace("zero-out", neighbours);
        json(hushflow(["plan", "--json"]).arg(lab.write("pipeline.toml", text)))
    };
    let delta = Delta::new(1e-6).unwrap();
    let (blanked, replaced) = (Neighbours::ZeroOut, Neighbours::ReplaceOneInPlace);
    for (neighbours, norms) in [(blanked, 1.0), (replaced, 2.0)] {
        let text = LINEAR.replace("poisson", "in-order").replace("zero-out", &neighbours.to_string());
        let text = text.replace("[training]", "release.strategy = 'identity'\n[training]");
        let in_order = json(hushflow(["plan", "--json"]).arg(lab.write("pipeline.toml", text)));
        for (sampling, participation) in [
            ("poisson", RandomParticipation::Poisson { rate: 0.1, steps: 20 }),
            ("balls-in-bins", RandomParticipation::Allocation { bins: 10, rounds: 2 }),
        ] {
            let plan = plan(sampling, &neighbours.to_string());
            let multiplier = NoiseMultiplier::new(number(&plan["noise_multiplier"]) * norms).unwrap();
            let composition = participation.composition(neighbours, multiplier).unwrap();
            let epsilon = composition.epsilon(delta).unwrap();
            assert!(epsilon.low <= 2.0 && epsilon.high > 1.999, "{sampling}: {epsilon:?}");
            let last = plan["epsilon_by_pass"].as_array().and_then(|spent| spent.last()).expect("ε by pass");
            assert!((1.999..=2.0).contains(&number(&last[1])), "{last}");
            let noise = |plan: &Value| number(&plan["gradient_noise"]);
            assert!(noise(&plan) < 0.7 * noise(&in_order), "{sampling}: {plan} {in_order}");
        }
    }
}

/// A run with random batches fills a budget of its own (ε, δ), which nothing else fits beside.
/// After another pipeline, the budget gives nothing for the secrecy of batches.
#[test]
fn a_budget_adds_up_guarantees_if_the_first_entry_draws_batches() {
    let lab = lab();
    let ledger = |name: &str, epsilon: f64, delta: f64| {
        format!(
            "[ledger]\ndirectory = '{name}'\ndata_set = 'rows'\nbudget = {{ epsilon = {epsilon}, delta = {delta:e}, \
             neighbours = 'zero-out' }}\n"
        )
    };
    let train = |text: String, state: &str| {
        let pipeline = lab.write(&format!("{state}.toml"), text);
        finish(hushflow(["train"]).arg(pipeline).arg("--state").arg(lab.path(state)))
    };
    let in_order = LINEAR.replace("poisson", "in-order");
    let budget = ledger("first", 2.0, 1e-6);
    train(format!("{LINEAR}{budget}"), "sampled").succeeded();
    train(format!("{LINEAR}{budget}"), "sampled").succeeded();
    train(format!("{LINEAR}{budget}"), "again").failed(1, &["budget", "nothing is left"]);
    let printed = json(hushflow(["ledger", "--json"]).arg(lab.path("first")));
    let [entry] = &printed["entries"].as_array().expect("entries")[..] else { panic!("{printed}") };
    assert_eq!(entry["sampled"]["contributions"]["participation"]["poisson"]["steps"], 20);
    let epsilon = number(&printed["composition"]["epsilon"]);
    assert!((1.999..=2.0).contains(&epsilon) && printed["composition"]["mu"].is_null(), "{printed}");
    // μ covers the run as if batches were public.
    assert!(number(&entry["mu"]) > 2.0 * 0.9, "{entry}");

    let budget = ledger("wide", 3.0, 1e-5);
    train(format!("{LINEAR}{budget}"), "third").succeeded();
    let less = in_order.replace("epsilon = 2", "epsilon = 1");
    train(format!("{less}{budget}"), "beside").succeeded();
    train(format!("{less}{budget}"), "beyond").failed(1, &["budget"]);
    let printed = json(hushflow(["ledger", "--json"]).arg(lab.path("wide")));
    // Both together, composed by their losses: less than the sum.
    let composition = &printed["composition"];
    assert!((1.5..2.8).contains(&number(&composition["epsilon"])), "{composition}");

    let budget = ledger("second", 3.0, 1e-5);
    train(format!("{less}{budget}"), "before").succeeded();
    let refused = train(format!("{LINEAR}{budget}"), "after");
    refused.failed(1, &["count as if they were public", "in-order"]);
    assert!(releases(&lab.path("after")).is_empty(), "nothing was released");
}

/// The logs of random batches have no counts, and every reader takes them.
#[test]
fn readers_take_logs_without_counts() {
    let lab = lab();
    for (neighbours, sampling) in [("replace-one-in-place", "poisson"), ("zero-out", "balls-in-bins")] {
        let text = LINEAR.replace("zero-out", neighbours).replace("poisson", sampling);
        let pipeline = lab.write("pipeline.toml", text);
        let state = lab.path(neighbours);
        let ended =
            finish(hushflow(["train", "--json"]).arg(&pipeline).arg("--state").arg(&state)).succeeded();
        let model = ended.json().pop().expect("a model");
        assert!((1.999..=2.0).contains(&number(&model["epsilon"])), "{model}");
        let counts: Vec<i128> = releases(&state).iter().map(|step| step.values[0]).collect();
        assert_eq!(counts.iter().all(|&count| count == 0), neighbours == "replace-one-in-place");
        let verified = finish(hushflow(["verify"]).arg(&state)).succeeded().out;
        assert!(verified.contains("guarantee while the random batches are secret"), "{verified}");
        let ledger = finish(hushflow(["ledger"]).arg(&state)).succeeded().out;
        assert!(ledger.contains("1 entry with batches drawn at random: ε holds only while"), "{ledger}");
        finish(hushflow(["tail", "--json"]).arg(&state)).succeeded();
        // The rows must stay those of the key.
        lab.write(
            "data.csv",
            std::fs::read_to_string(lab.path("data.csv")).unwrap().replacen("-1,0", "1,0", 1),
        );
        let mut again = hushflow(["train"]);
        finish(again.arg(&pipeline).arg("--state").arg(&state)).failed(1, &["the rows are not those"]);
    }
}

#[test]
fn batches_that_have_no_guarantee_are_refused() {
    let lab = lab();
    let check = |command: &str, from: &str, to: &str, parts: &[&str]| {
        assert!(LINEAR.contains(from), "{from}");
        let pipeline = lab.write("pipeline.toml", LINEAR.replacen(from, to, 1));
        finish(hushflow([command]).arg(pipeline)).failed(2, parts);
    };
    check("plan", "'poisson'", "'shuffle'", &["training.sampling: found \"shuffle\", expected \"in-order\""]);
    let blt = "[release]\nstrategy = 'blt:2'\n[privacy]";
    check("plan", "[privacy]", blt, &["sampling is poisson, but the strategy blt:2 has no bands"]);
    let in_place = LINEAR.replace("'sgd'", "'jme'").replace("zero-out", "replace-one-in-place");
    let pipeline = lab.write("jme.toml", in_place);
    finish(hushflow(["plan"]).arg(pipeline)).failed(2, &["the method jme needs batches of public size"]);
    check("audit", "[privacy]", "[privacy]", &["no audit covers batches that are drawn at random"]);
    let stream = "source.path = '-'\nsource.format = 'csv'";
    check("plan", "source.path = 'data.csv'", stream, &["name CSV, NDJSON or Parquet files"]);
    let text = finish(hushflow(["plan"]).arg(lab.write("pipeline.toml", LINEAR))).succeeded().out;
    assert!(text.contains("a row takes part 2 times on average (poisson)"), "{text}");
}

/// `auto` takes the strategy with the least noise under the amplified accounting. Where less noise
/// has no bound, `plan` and `check` say what a run spends.
#[test]
fn strategies_are_chosen_by_the_amplified_accounting() {
    let lab = lab();
    let plan = |strategy: &str| {
        let text = LINEAR.replace("[privacy]", &format!("[release]\nstrategy = '{strategy}'\n[privacy]"));
        json(hushflow(["plan", "--json"]).arg(lab.write("pipeline.toml", text)))
    };
    let [auto, identity, banded] = ["auto", "identity", "banded-toeplitz-optimal:4"].map(plan);
    let noise = |plan: &Value| number(&plan["gradient_noise"]);
    assert!(noise(&auto) <= noise(&identity).min(noise(&banded)), "{auto} {identity} {banded}");
    let pipeline = lab.write("pipeline.toml", LINEAR.replace("epsilon = 2", "epsilon = 300"));
    for command in ["plan", "check"] {
        let text = finish(hushflow([command]).arg(&pipeline)).succeeded().out;
        assert!(text.contains("of the stated 300: with less noise, no bound is known"), "{text}");
    }
}
