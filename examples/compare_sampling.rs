//! Compares the noise that pairs of sampling and strategy need for the same (ε, δ).
//!
//! ```sh
//! cargo run --release --example compare_sampling -- --epsilon 1.7
//! ```
//!
//! It reads no data. Every row has the same guarantee for the same model, batches and passes, and
//! shows the noise in a workload of mean gradients. The first row has the least noise.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use std::num::NonZeroU32;

use clap::Parser;
use hushflow::strategies::Candidate;
use hushflow_mechanism::accounting::{Delta, Epsilon};
use hushflow_mechanism::mechanism::Strategies;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::Purpose;
use hushflow_mechanism::workload::Workload;
use hushflow_training::adam::GradientSquares;
use hushflow_training::plan::{Privatisation, TrainingPlan};
use hushflow_training::sampling::Sampling;

#[derive(Parser)]
struct SamplingArguments {
    /// Number of records.
    #[arg(long, default_value = "60000")]
    records: usize,
    /// Number of records in a step, or expected number.
    #[arg(long, default_value = "1200")]
    batch_size: NonZeroU32,
    /// Passes over the records.
    #[arg(long, default_value = "5")]
    passes: NonZeroU32,
    /// ε of the whole run.
    #[arg(long, default_value = "1.7")]
    epsilon: f64,
    /// δ of the whole run.
    #[arg(long, default_value = "1e-6")]
    delta: f64,
    /// Number of parameters of the model.
    #[arg(long, default_value = "1970")]
    parameters: usize,
    /// Workload in which the noise is measured and for which strategies are fitted: `prefix`, the
    /// sums that form the parameters, or for example `adam:0.9`.
    #[arg(long, default_value = "prefix")]
    workload: Workload,
    /// Strategies.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "identity,banded-toeplitz-optimal:2,banded-toeplitz-optimal:5,banded-toeplitz-optimal:10,banded-toeplitz-optimal:25,blt:3"
    )]
    strategies: Vec<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = SamplingArguments::parse();
    for neighbours in [Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut] {
        println!("\n{neighbours}, ε = {}, δ = {}", arguments.epsilon, arguments.delta);
        println!("{:14} {:30} {:>16} {:>16}", "sampling", "strategy", "noise multiplier", "noise");
        let (mut rows, mut refused) = (Vec::new(), Vec::new());
        for sampling in Sampling::ALL {
            let plan = TrainingPlan {
                records: arguments.records,
                batch_size: arguments.batch_size,
                passes: arguments.passes,
                sampling,
                neighbours,
                epsilon: Epsilon::new(arguments.epsilon)?,
                delta: Delta::new(arguments.delta)?,
                clip_norm: 1.0,
                privatisation: Privatisation::PostProcessing(GradientSquares::Raw),
                learning_rate: 0.01,
            };
            for name in &arguments.strategies {
                let strategies = strategies(&plan, name, &arguments.workload)?;
                match plan.expected_noise(arguments.parameters, &strategies, &arguments.workload) {
                    Ok(noise) => rows.push((noise, sampling, name)),
                    Err(error) => refused.push((sampling, name, error)),
                }
            }
        }
        rows.sort_by(|one, other| one.0.deviation.total_cmp(&other.0.deviation));
        for (noise, sampling, name) in rows {
            let sampling = sampling.to_string();
            println!("{sampling:14} {name:30} {:16.4} {:16.3e}", noise.noise_multiplier, noise.deviation);
        }
        for (sampling, name, error) in refused {
            println!("{:14} {name:30} not compared: {error}", sampling.to_string());
        }
    }
    Ok(())
}

/// Makes the strategy that is best for the plan's participation.
fn strategies(plan: &TrainingPlan, name: &str, workload: &Workload) -> Result<Strategies, Box<dyn Error>> {
    let participation: Participation = match plan.sampling {
        Sampling::InOrder => format!("{}x{}", plan.passes, plan.steps_per_pass()).parse()?,
        Sampling::Poisson | Sampling::BallsInBins => Participation::Single,
    };
    let purpose = Purpose { participation, ..Purpose::new(workload.clone(), plan.horizon()) };
    let candidate = Candidate::new(&name.parse()?, &purpose, &mut |_| {})?;
    Ok(candidate.strategy.ok_or("a strategy that can't run")?.into())
}
