//! Which private Adam trains best at the same (ε, δ)?
//!
//! ```sh
//! cargo run --release --example train_adam
//! cargo run --release --example train_adam -- fashion --hidden 32
//! ```
//!
//! The data are digits, shipped here, or Fashion-MNIST from Debian's `dataset-fashion-mnist`.
//!
//! Every method uses the same grid of learning rates and clip norms. The example picks the pair
//! that is best on the last sixth of the training images, in one run without them on a separate
//! seed. It then trains on all of them with `--seeds` other seeds, and tests. This tuning is not
//! charged, because the table compares methods. Tune on public data, or pay for tuning, when
//! training on people's data. A seed determines the order of records, the initial parameters and
//! the noise. The table and a CSV file list the results pass by pass. `docs/training.md` discusses
//! them.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use hushflow::mechanism::noise::NoiseSource;
use hushflow::strategies::Candidate;
use hushflow_mechanism::accounting::{Delta, Epsilon};
use hushflow_mechanism::mechanism::Strategies;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::Purpose;
use hushflow_training::adam::GradientSquares;
use hushflow_training::data::{FASHION_MNIST, Split, digits, fashion_mnist};
use hushflow_training::model::{Activation, Network};
use hushflow_training::plan::{Privatisation, TrainingPlan};
use hushflow_training::sampling::Sampling;
use hushflow_training::{Pass, TrainingOptions, train, train_exactly};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/digits_8x8.csv");
const TUNING_SEED: u64 = 1000;

#[derive(Parser)]
struct TrainingArguments {
    /// Training images.
    #[arg(value_enum, default_value = "digits")]
    data: ImageSet,
    /// Number of hidden units; none for softmax regression.
    #[arg(long)]
    hidden: Option<usize>,
    /// ε of the whole run, for δ = 1e-6; several are tried one after another.
    #[arg(long, value_delimiter = ',', default_value = "1.7,0.16")]
    epsilon: Vec<f64>,
    /// Passes over the images.
    #[arg(long, default_value = "5")]
    passes: NonZeroU32,
    /// Number of images in a step; 1/50 of all by default.
    #[arg(long)]
    batch_size: Option<NonZeroU32>,
    /// How images are assigned to steps: in-order, poisson or balls-in-bins. The last two take
    /// strategies with bands only.
    #[arg(long, default_value = "in-order")]
    sampling: Sampling,
    /// The neighbour relation of the guarantee.
    #[arg(long, value_enum, default_value = "replaced")]
    neighbours: ImageNeighbours,
    /// Strategies in place of those of the methods, for example identity,banded-toeplitz-optimal:2.
    #[arg(long, value_delimiter = ',')]
    strategies: Vec<String>,
    /// Number of runs whose mean and standard deviation are reported.
    #[arg(long, default_value = "3")]
    seeds: u64,
    /// Names of methods; all by default.
    #[arg(long, value_delimiter = ',')]
    methods: Vec<String>,
    /// Learning rates to choose from.
    #[arg(long, value_delimiter = ',', default_value = "0.003,0.01,0.03,0.1,0.3")]
    learning_rates: Vec<f64>,
    /// Clip norms to choose from.
    #[arg(long, value_delimiter = ',', default_value = "0.5,1,3")]
    clip_norms: Vec<f64>,
    /// Number of worker threads. Affects speed only.
    #[arg(long, default_value = "2")]
    workers: usize,
    /// Output file.
    #[arg(long, default_value = "train_adam.csv")]
    csv: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum ImageSet {
    /// 8 × 8 pixels, shipped with this example.
    Digits,
    /// Fashion-MNIST, halved to 14 × 14 pixels.
    Fashion,
}

/// One image is replaced by another, or blanked.
#[derive(Clone, Copy, ValueEnum)]
enum ImageNeighbours {
    Replaced,
    Blanked,
}

impl From<ImageNeighbours> for Neighbours {
    fn from(neighbours: ImageNeighbours) -> Self {
        match neighbours {
            ImageNeighbours::Replaced => Self::ReplaceOneInPlace,
            ImageNeighbours::Blanked => Self::ZeroOut,
        }
    }
}

#[derive(Clone)]
struct TrainingMethod {
    name: String,
    /// `None` without privacy.
    privatisation: Option<Privatisation>,
    /// Noise strategy, fitted to running sums where it is fitted.
    strategy: String,
}

fn training_methods() -> Vec<TrainingMethod> {
    use GradientSquares::{Debiased, Raw, Scaling};
    let processed = |squares| Some(Privatisation::PostProcessing(squares));
    let (identity, fitted) = ("identity", "blt:3");
    let method = |name: &str, privatisation, strategy: &str| TrainingMethod {
        name: name.into(),
        privatisation,
        strategy: strategy.into(),
    };
    vec![
        method("non-private", None, identity),
        method("jme", Some(Privatisation::Jme), identity),
        method("joint-clip", Some(Privatisation::JointClip), identity),
        method("dp-adam-bc", processed(Debiased), identity),
        method("dp-adam", processed(Raw), identity),
        method("scale-then-privatise", processed(Scaling { damping: 0.3 }), identity),
        method("batch-squares", Some(Privatisation::BatchSquares), identity),
        method("jme+blt", Some(Privatisation::Jme), fitted),
        method("dp-adam-bc+blt", processed(Debiased), fitted),
        method("dp-adam+blt", processed(Raw), fitted),
        method("scale-then-privatise+blt", processed(Scaling { damping: 0.3 }), fitted),
    ]
}

impl TrainingMethod {
    /// Returns the method with each of these strategies, or with its own if there are none.
    fn with_strategies(&self, strategies: &[String]) -> Vec<Self> {
        if strategies.is_empty() || self.privatisation.is_none() {
            return vec![self.clone()];
        }
        let with = |strategy: &String| Self {
            name: format!("{} {strategy}", self.name),
            strategy: strategy.clone(),
            ..self.clone()
        };
        strategies.iter().map(with).collect()
    }
}

/// Passes of several runs.
type TrainingRuns = Vec<Vec<Pass>>;

/// Settings shared by all methods.
struct TrainingComparison {
    network: Network,
    images: Arc<Split>,
    /// The training images, whose last sixth is for choosing a plan.
    tuning_images: Arc<Split>,
    plan: TrainingPlan,
    learning_rates: Vec<f64>,
    clip_norms: Vec<f64>,
    workers: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = TrainingArguments::parse();
    let images = Arc::new(match arguments.data {
        ImageSet::Digits => digits(Path::new(DIGITS))?,
        ImageSet::Fashion => {
            let Split { training, test } = fashion_mnist(Path::new(FASHION_MNIST))?;
            Split { training: training.halved(), test: test.halved() }
        }
    });
    let (pixels, records) = (images.training.pixels, images.training.len());
    let first = |image| image < records * 5 / 6;
    let tuning_images = Arc::new(Split {
        training: images.training.choose(first),
        test: images.training.choose(|image| !first(image)),
    });
    let sizes = [Some(pixels), arguments.hidden, Some(10)].into_iter().flatten().collect();
    let network = Network::new(sizes, Activation::Tanh);
    let batch_size = arguments.batch_size.or(NonZeroU32::new(records as u32 / 50)).ok_or("too few images")?;
    println!(
        "{} parameters, {records} records, {} passes, batches of {batch_size}",
        network.parameters(),
        arguments.passes
    );
    let mut csv = File::create(&arguments.csv)?;
    writeln!(csv, "epsilon,method,clip_norm,learning_rate,seed,pass,epsilon_spent,accuracy")?;
    for &epsilon in &arguments.epsilon {
        let plan = TrainingPlan {
            records,
            batch_size,
            passes: arguments.passes,
            sampling: arguments.sampling,
            neighbours: arguments.neighbours.into(),
            epsilon: Epsilon::new(epsilon)?,
            delta: Delta::new(1e-6)?,
            clip_norm: 1.0,
            privatisation: Privatisation::Jme,
            learning_rate: 0.001,
        };
        let comparison = TrainingComparison {
            network: network.clone(),
            images: images.clone(),
            tuning_images: tuning_images.clone(),
            plan,
            learning_rates: arguments.learning_rates.clone(),
            clip_norms: arguments.clip_norms.clone(),
            workers: arguments.workers,
        };
        println!(
            "\nε = {epsilon}, δ = 1e-6: accuracy in % after each pass, mean ± standard deviation of {} runs",
            arguments.seeds
        );
        let chosen = |name: &str| arguments.methods.is_empty() || arguments.methods.iter().any(|m| m == name);
        for method in training_methods().iter().filter(|method| chosen(&method.name)) {
            for method in method.with_strategies(&arguments.strategies) {
                let (plan, runs) = comparison.tuned(&method, arguments.seeds)?;
                report(&mut csv, epsilon, &method.name, &plan, &runs)?;
            }
        }
    }
    Ok(())
}

impl TrainingComparison {
    /// Returns the best plan of the grid, and its runs on seeds that were not used to choose it.
    fn tuned(
        &self,
        method: &TrainingMethod,
        seeds: u64,
    ) -> Result<(TrainingPlan, TrainingRuns), Box<dyn Error>> {
        let strategies = self.strategies(method)?;
        // Without privacy, gradients are not clipped.
        let clip_norms = if method.privatisation.is_some() { &self.clip_norms[..] } else { &[1.0] };
        let privatisation = method.privatisation.unwrap_or(self.plan.privatisation);
        let mut best = (f64::NEG_INFINITY, self.plan);
        let pairs =
            clip_norms.iter().flat_map(|&norm| self.learning_rates.iter().map(move |&rate| (norm, rate)));
        for (clip_norm, learning_rate) in pairs {
            let plan = TrainingPlan { clip_norm, learning_rate, privatisation, ..self.plan };
            let tuning_plan = self.with_fewer_records(plan)?;
            let passes = self.run(method, &self.tuning_images, &tuning_plan, &strategies, TUNING_SEED)?;
            let accuracy = passes.last().map_or(0.0, |pass| pass.accuracy);
            if accuracy > best.0 {
                best = (accuracy, plan);
            }
        }
        let runs = (1..=seeds).map(|seed| self.run(method, &self.images, &best.1, &strategies, seed));
        Ok((best.1, runs.collect::<Result<_, _>>()?))
    }

    /// Returns the plan with as many steps for the images that tuning trains on.
    fn with_fewer_records(&self, plan: TrainingPlan) -> Result<TrainingPlan, Box<dyn Error>> {
        let steps = plan.steps_per_pass();
        let batch_size = self.tuning_images.training.len() as u64 / steps.max(1);
        let batch_size = NonZeroU32::new(batch_size as u32)
            .ok_or("a pass has more steps than there are images to tune on")?;
        let records = (u64::from(batch_size.get()) * steps) as usize;
        Ok(TrainingPlan { records, batch_size, ..plan })
    }

    fn run(
        &self,
        method: &TrainingMethod,
        images: &Arc<Split>,
        plan: &TrainingPlan,
        strategies: &Strategies,
        seed: u64,
    ) -> Result<Vec<Pass>, Box<dyn Error>> {
        if method.privatisation.is_none() {
            return Ok(train_exactly(&self.network, images, plan, seed)?);
        }
        let noise = NoiseSource::Seeded(seed);
        let options = TrainingOptions { workers: self.workers, seed, noise, keep_releases: false };
        Ok(train(&self.network, images, plan, strategies, options)?.passes)
    }

    fn strategies(&self, method: &TrainingMethod) -> Result<Strategies, Box<dyn Error>> {
        let participation: Participation = match self.plan.sampling {
            Sampling::InOrder => format!("{}x{}", self.plan.passes, self.plan.steps_per_pass()).parse()?,
            Sampling::Poisson | Sampling::BallsInBins => Participation::Single,
        };
        let purpose = Purpose { participation, ..Purpose::new("prefix".parse()?, self.plan.horizon()) };
        let candidate = Candidate::new(&method.strategy.parse()?, &purpose, &mut |_| {})?;
        Ok(candidate.strategy.ok_or("a strategy that can't run")?.into())
    }
}

/// Prints a row of the table and writes the lines of the file.
fn report(
    csv: &mut File,
    epsilon: f64,
    name: &str,
    plan: &TrainingPlan,
    runs: &[Vec<Pass>],
) -> Result<(), Box<dyn Error>> {
    let TrainingPlan { clip_norm, learning_rate, .. } = plan;
    print!("{name:25} clip {clip_norm:4} rate {learning_rate:6}");
    for pass in 0..plan.passes.get() as usize {
        let accuracies: Vec<f64> = runs.iter().map(|run| 100.0 * run[pass].accuracy).collect();
        let mean = accuracies.iter().sum::<f64>() / runs.len() as f64;
        let squares = accuracies.iter().map(|accuracy| (accuracy - mean).powi(2)).sum::<f64>();
        let deviation = (squares / (runs.len() as f64 - 1.0).max(1.0)).sqrt();
        print!("  {mean:5.2} ± {deviation:4.2} (ε {:.2})", runs[0][pass].epsilon);
        for (accuracy, seed) in accuracies.iter().zip(1..) {
            let spent = runs[0][pass].epsilon;
            writeln!(
                csv,
                "{epsilon},{name},{clip_norm},{learning_rate},{seed},{},{spent},{accuracy}",
                pass + 1
            )?;
        }
    }
    println!();
    Ok(())
}
