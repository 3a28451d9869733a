//! One run of the program, with restarts: twenty thousand canaries, each in one of two streams by a
//! coin toss.
//!
//! Every key has one record in the first epoch, at the upper or the lower bound of the column, and
//! one in the middle in every later epoch. The source grows by one epoch at a time, and the program
//! is restarted for each. So the encoder's state goes through the log, and another process draws
//! the noise every time. The projection of a key's releases on the effect of its record is N(±μ/2,
//! 1): the difference of the means of both streams has standard error 2/√keys, and a twentieth less
//! noise would exceed the claim by more than ten of these.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use hushflow::mechanism::noise::{DiscreteGaussian, NoiseScale, NoiseSource};
use hushflow::publication::MomentPublication;
use hushflow::state::PublicReader;

use crate::harness::Lab;

const KEYS: usize = 20_000;
const EPOCHS: usize = 3;

/// First coefficients of C, the square root of the prefix sums.
const COLUMN: [f64; EPOCHS] = [1.0, 0.5, 0.375];

fn pipeline() -> String {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("'k{key}'")).collect();
    format!(
        "name = 'one run'
source.path = 'rows.csv'
columns = [{{ name = 'x', lower = -1, upper = 1 }}]
key = {{ column = 'key', values = [{}] }}
epochs = {{ records = {KEYS}, horizon = {EPOCHS} }}
privacy = {{ epsilon = 30, delta = 1e-6 }}
release = {{ strategy = 'square-root', workload = 'prefix' }}
state.directory = 'state'
",
        keys.join(", ")
    )
}

/// Adds an epoch to the source and runs again.
fn run_on(lab: &Lab, rows: &mut String, value: impl Fn(usize) -> f64) {
    for key in 0..KEYS {
        writeln!(rows, "k{key},{}", value(key)).expect("a string grows");
    }
    lab.write("rows.csv", rows.as_bytes());
    let mut command = Command::new(env!("CARGO_BIN_EXE_hushflow"));
    let output =
        command.args(["run", "--quiet"]).arg(lab.path("p.toml")).output().expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the projection of each key's releases, in units of the noise, and μ.
fn projections(state: &Path) -> (Vec<f64>, f64) {
    let mut log = PublicReader::open(state).expect("a public log");
    let publication = MomentPublication::from_header(log.header()).expect("a header");
    let noise = publication.mechanism().moments().noise()[1];
    let norm = COLUMN.iter().map(|c| c * c).sum::<f64>().sqrt();
    let mut projections = vec![0.0; KEYS];
    for coefficient in COLUMN {
        let frame = log.next_frame().expect("a sound log").expect("every epoch");
        for (key, sum) in projections.iter_mut().enumerate() {
            let first = frame.values[key * publication.layout().coordinates() + 1] as f64;
            *sum += coefficient / norm * first * noise.unit / noise.standard_deviation();
        }
    }
    (projections, publication.calibration().noise_multiplier.recip())
}

/// Coin tosses: lowest bits of integer noise.
fn coins() -> Vec<bool> {
    let mut draws = vec![0; KEYS];
    let mut generator = NoiseSource::System.generator(0, 0).expect("entropy");
    DiscreteGaussian::new(NoiseScale::new(1, 20).expect("a scale")).fill(&mut generator, &mut draws);
    draws.iter().map(|draw| draw & 1 == 1).collect()
}

#[test]
fn canaries_of_one_run_are_as_far_apart_as_claimed() {
    let lab = Lab::new();
    lab.write("p.toml", pipeline());
    let upper = coins();
    let mut rows = String::from("key,x\n");
    run_on(&lab, &mut rows, |key| if upper[key] { 1.0 } else { -1.0 });
    (1..EPOCHS).for_each(|_| run_on(&lab, &mut rows, |_| 0.0));

    let (projections, mu) = projections(&lab.path("state"));
    let mean = |world: bool| {
        let of_world = projections.iter().zip(&upper).filter(|(_, upper)| **upper == world);
        let (sum, number) = of_world.fold((0.0, 0.0), |(sum, n), (value, _)| (sum + value, n + 1.0));
        sum / number
    };
    let found = mean(true) - mean(false);
    // Six standard errors: a false alarm has probability 2·10⁻⁹.
    let plausible = 6.0 * 2.0 / (KEYS as f64).sqrt();
    assert!((found - mu).abs() < plausible, "μ looks like {found}, the claim is {mu}");
    assert!(2.0 * mu - plausible > mu, "half of the noise would look like {}", 2.0 * mu);
}
