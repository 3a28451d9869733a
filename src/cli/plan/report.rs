//! Forecasts as people read them.

use serde::Serialize;

use super::super::output::{number, table};
use super::super::thousands;
use super::forecast::{Forecast, Noise};

/// One strategy in full.
pub(super) fn details(forecast: &Forecast) -> String {
    let strategy = format!("{} for ", word(&forecast.strategy));
    let tables = [&figures(forecast)[..], &noise_levels(forecast)].map(table).join("\n");
    [strategy, subject(forecast), tables, "\n".into(), mean(forecast), price(forecast)].concat()
}

/// A line for each strategy, the best first.
pub(super) fn comparison(forecasts: &[Forecast]) -> String {
    let Some(best) = forecasts.first() else { return String::new() };
    let titles =
        ["strategy", "rmse", "largest error", "count ±", "first ±", "second ±", "mean ±", "state bytes"];
    let row = |forecast: &Forecast| {
        let noise = levels(&forecast.last_noise);
        let errors =
            [word(&forecast.strategy), number(forecast.error.rmse), number(forecast.error.max_error)];
        let mean = forecast.mean_noise.map_or("-".into(), number);
        let bytes = thousands(forecast.memory_per_coordinate as u64);
        errors.into_iter().chain(noise).chain([mean, bytes]).collect()
    };
    let rows: Vec<_> =
        [titles.map(String::from).to_vec()].into_iter().chain(forecasts.iter().map(row)).collect();
    let legend = format!(
        "\nrmse and largest error: for a noise multiplier of 1 and one record added or removed.\n\
         ±: standard deviation of the noise of the view after the last epoch. State: per coordinate.\n\
         {}See one in full with --strategy {}.\n",
        mean(best),
        word(&best.strategy),
    );
    [subject(best), table(&rows), legend].concat()
}

/// What is planned, and for which budget.
fn subject(forecast: &Forecast) -> String {
    let budget = match (forecast.epsilon, forecast.delta, forecast.noise_multiplier) {
        (Some(epsilon), Some(delta), Some(sigma)) => {
            let (epsilon, delta, sigma) = (number(epsilon), number(delta), number(sigma));
            format!("(ε, δ) = ({epsilon}, {delta}), by a noise multiplier of {sigma}")
        }
        (_, _, Some(sigma)) => format!("noise multiplier {}", number(sigma)),
        _ => "noise multiplier 1, as no budget is given: add for example --epsilon 1 --delta 1e-6".into(),
    };
    format!(
        "{} over {} epochs\n{} neighbours; d = {}, {} second moments, clip norm {}\n{budget}\n\n",
        forecast.workload,
        thousands(forecast.horizon),
        word(&forecast.neighbours),
        forecast.dimension,
        word(&forecast.moments),
        number(forecast.clip_norm),
    )
}

fn figures(forecast: &Forecast) -> Vec<Vec<String>> {
    let error = forecast.error;
    let row = |name: &str, value: f64| vec![name.to_string(), number(value)];
    let mut rows = vec![
        row("sensitivity: largest column norm of C", error.sensitivity),
        row("Frobenius norm of AC⁻¹", error.frobenius),
        row("largest row norm of AC⁻¹", error.max_row),
        row("rmse, for noise multiplier 1", error.rmse),
        row("largest error, for noise multiplier 1", error.max_error),
        row("joint sensitivity", forecast.joint_sensitivity),
        row("second-moment weight λ", forecast.lambda),
    ];
    rows.extend(forecast.count_weight.map(|weight| row("count weight κ", weight)));
    let bytes = thousands(forecast.memory_per_coordinate as u64);
    rows.push(vec!["bytes of state per coordinate".into(), bytes]);
    rows
}

fn noise_levels(forecast: &Forecast) -> Vec<Vec<String>> {
    let row = |name: String, noise| [name].into_iter().chain(levels(noise)).collect();
    vec![
        ["noise of the view", "count ±", "first ±", "second ±"].map(String::from).to_vec(),
        row("epoch 1".into(), &forecast.first_noise),
        row(format!("epoch {}", thousands(forecast.horizon)), &forecast.last_noise),
        row("root mean square".into(), &forecast.rms_noise),
    ]
}

fn levels(noise: &Noise) -> [String; 3] {
    [noise.count, noise.first, noise.second].map(number)
}

/// How much noise the mean will have.
fn mean(forecast: &Forecast) -> String {
    match (forecast.records_per_epoch, forecast.mean_noise) {
        (Some(records), Some(noise)) => format!(
            "With {} records an epoch, the last mean has noise ± {} near the centre (clip norm {}).\n",
            number(records),
            number(noise),
            number(forecast.clip_norm),
        ),
        _ => "Add --records-per-epoch R to see how much noise the mean will have.\n".into(),
    }
}

/// What count and second moments cost.
fn price(forecast: &Forecast) -> String {
    let free = |free: bool| if free { "free" } else { "not free" };
    let count = if forecast.count_weight.is_none() { "public" } else { free(forecast.count_free) };
    format!(
        "Second moments are {}, the count is {count}: first moments alone have sensitivity {}.\n",
        free(forecast.second_moment_free),
        number(forecast.first_moment_sensitivity),
    )
}

/// The word that stands for it in pipeline files and on the command line.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(String::from)).unwrap_or_default()
}
