//! Formats forecasts as text.

use hushflow::mechanism::mechanism::Method;
use hushflow::mechanism::strategy::{MAX_COLUMNS, Omission, OmissionReason, Purpose};
use serde::Serialize;

use super::super::budget::large_delta;
use super::super::output::{fit_columns, half_width, number, table, terminal_width, wrapped};
use super::super::thousands;
use super::ComparisonTable;
use super::advice::SecondMomentAdvice;
use super::columns::ColumnForecasts;
use super::forecast::{Forecast, JointSensitivity};
use super::noise::{EstimateNoise, ForecastNoise};

/// Formats the forecast of one strategy in full.
pub(super) fn details(forecast: &Forecast, columns: Option<&ColumnForecasts>) -> String {
    let strategy = format!("{} for ", forecast.name());
    let tables = [&figures(forecast)[..], &noise_levels(forecast, columns.is_some())].map(table).join("\n");
    let advice = forecast.second_moment_advice.as_ref().map_or(String::new(), SecondMomentAdvice::text);
    let (mean, price) = (mean(forecast, columns), price(forecast));
    [strategy, subject(forecast), tables, "\n".into(), mean, price, bin(forecast), advice].concat()
}

/// Title of the table column of means in the unit of the records, if no file names columns. The
/// column is empty if the number of records of an epoch is unknown.
const MEAN: &str = "mean ±";

/// Maximum number of columns of a file whose means are compared.
const COMPARED_MEANS: usize = 4;

/// Formats one line for each strategy, the best first, and the reasons for leaving out the others.
pub(super) fn comparison(table_of_all: &ComparisonTable) -> String {
    let ComparisonTable { strategies, omissions, no_lower_bound, in_file, of_file, in_units } = table_of_all;
    let Some(best) = strategies.first() else {
        return ["No strategy was computed.\n", &left_out(omissions, None)].concat();
    };
    // Means by strategy and column of the file. Without a file, one mean for each strategy.
    let means: Vec<Vec<(String, String)>> = match in_units {
        Some(in_units) => in_units.iter().map(|of| of.last_means().take(COMPARED_MEANS).collect()).collect(),
        None => {
            let of = |noise: EstimateNoise| reach(noise.last_epoch);
            let mean = |forecast: &Forecast| forecast.noise.mean_noise.map_or("-".into(), of);
            strategies.iter().map(|forecast| vec![(String::new(), mean(forecast))]).collect()
        }
    };
    let title = |(name, _): &(String, String)| match name.is_empty() {
        true => MEAN.to_owned(),
        false => format!("mean {name} ±"),
    };
    let mean_titles: Vec<String> = means[0].iter().map(title).collect();
    let row = |(forecast, means): (&Forecast, &Vec<(String, String)>)| {
        let mark = if in_file.as_ref() == Some(&forecast.name()) { " *" } else { "" };
        let noise = &forecast.noise.last_noise;
        let cost = |amount: Option<usize>| amount.map_or("-".into(), |amount| thousands(amount as u64));
        let figures = [
            format!("{}{mark}", forecast.name()),
            number(forecast.factorization.error.rmse),
            forecast.factorization.loss_excess.map_or("-".into(), excess),
            number(forecast.factorization.error.max_error),
        ];
        let costs = [cost(forecast.cost.memory_per_coordinate), cost(forecast.cost.multiplications_per_step)];
        let scaled = [reach(noise.first), noise.second.map_or("-".into(), reach)];
        let scaled = scaled.into_iter().filter(|_| in_units.is_none());
        let means = means.iter().map(|(_, mean)| mean.clone());
        figures.into_iter().chain(means).chain(scaled).chain(costs).collect()
    };
    let titles = ["strategy", "rmse", "loss", "largest error"].into_iter();
    let titles = titles.chain(mean_titles.iter().map(String::as_str));
    // Noise in scaled columns is for plans without the units of a file.
    let scaled = ["first ±", "second ±"].into_iter().filter(|_| in_units.is_none());
    let titles = titles.chain(scaled).chain(["bytes", "products"]).map(String::from).collect();
    let rows_of_all = strategies.iter().zip(&means).map(row);
    let mut rows: Vec<Vec<String>> = std::iter::once(titles).chain(rows_of_all).collect();
    let mut order = vec!["products", "bytes", "second ±", "first ±", "largest error", "loss"];
    let is_empty = means.iter().flatten().all(|(_, mean)| mean == "-");
    if is_empty {
        order.insert(0, MEAN);
    }
    // A narrow terminal drops these columns in this order. The first of several means stays.
    order.extend(mean_titles.iter().skip(1).rev().map(String::as_str));
    let mut narrowed = fit_columns(&mut rows, terminal_width(), &order);
    narrowed.retain(|title| title != MEAN || !is_empty);
    let narrowed = match narrowed.is_empty() {
        true => String::new(),
        false => format!("A wider terminal also shows {}; --json prints all.\n", narrowed.join(", ")),
    };
    let bound = match (best.factorization.loss_lower_bound, no_lower_bound) {
        (Some(loss), _) => {
            let rmse = (loss / best.problem.horizon as f64).sqrt();
            let records =
                if best.problem.participation.is_single() { "" } else { ", for records of many coordinates" };
            paragraph(&format!(
                "Loss: how far the squared error is above its proven lower bound. No strategy has an rmse below {}{records}.",
                number(rmse)
            ))
        }
        (None, Some(reason)) => format!("Loss: {reason}.\n"),
        (None, None) => String::new(),
    };
    let units = match in_units {
        Some(_) => "in the units of the column",
        None => "of records with scaled columns",
    };
    let meaning = paragraph(&format!(
        "rmse and largest error: for a noise multiplier of 1, records added or removed. ±: half-width of the 95 % interval after the \
         last epoch, {units}. Bytes of state, and products \
         (multiplications) a step: per coordinate; - where it does not run."
    ));
    let shown = strategies.iter().find(|forecast| in_file.as_ref() == Some(&forecast.name())).unwrap_or(best);
    let legend = format!(
        "\n{narrowed}{meaning}{}{bound}{}{}{}See one in full with --strategy {}.\n",
        if in_file.is_some() { "*: the strategy of the file.\n" } else { "" },
        mean(best, of_file.as_ref()),
        sent(shown) + &bin(shown),
        left_out(omissions, Some(best)),
        best.strategy,
    );
    [subject(best), table(&rows), legend].concat()
}

/// Returns why no strategy applies; `None` if one does, or if a signal stopped the comparison.
pub(super) fn refusal(table: &ComparisonTable, purpose: &Purpose) -> Option<String> {
    let is_stopped = |omission: &Omission| matches!(omission.reason, OmissionReason::Stopped);
    if !table.strategies.is_empty() || table.omissions.iter().any(is_stopped) {
        return None;
    }
    let most = MAX_COLUMNS as u64;
    let remedy = if purpose.participation.is_single() || purpose.horizon <= most {
        String::new()
    } else {
        paragraph(&format!(
            "With several participations, a strategy has at most {} epochs: shorten the horizon, or let entities take \
             part once.",
            thousands(most)
        ))
    };
    let text = ["no strategy applies to these parameters\n", &remedy, &left_out(&table.omissions, None)];
    Some(text.concat().trim_end().into())
}

/// Formats a share as a percentage, with a sign.
fn excess(share: f64) -> String {
    match share * 100.0 {
        percent if percent < 0.005 => "+0 %".into(),
        percent if percent < 10.0 => format!("+{percent:.2} %"),
        percent if percent < 1000.0 => format!("+{percent:.0} %"),
        percent => format!("× {}", number((percent / 100.0 + 1.0).round())),
    }
}

/// Formats why strategies are left out, and how to compute those that take long.
fn left_out(omissions: &[Omission], best: Option<&Forecast>) -> String {
    let line = |title: &str, of: fn(&OmissionReason) -> Option<String>| {
        let named = |omission: &Omission| {
            let detail = of(&omission.reason)?;
            Some(if detail.is_empty() {
                omission.strategy.clone()
            } else {
                format!("{} ({detail})", omission.strategy)
            })
        };
        let names: Vec<String> = omissions.iter().filter_map(named).collect();
        if names.is_empty() { String::new() } else { paragraph(&format!("{title}: {}", names.join(", "))) }
    };
    let lines = [
        line("Left out, as they take long", |reason| match reason {
            OmissionReason::Time { .. } => Some(String::new()),
            _ => None,
        }),
        line("Too many epochs for", |reason| match reason {
            OmissionReason::Horizon { limit } => Some(format!("at most {}", thousands(*limit))),
            _ => None,
        }),
        line("Not for this workload or participation", |reason| match reason {
            OmissionReason::NoForm { detail } => Some(detail.clone()),
            _ => None,
        }),
        line("Stopped before", |reason| match reason {
            OmissionReason::Stopped => Some(String::new()),
            _ => None,
        }),
        line("Failed", |reason| match reason {
            OmissionReason::Failed { detail } => Some(detail.clone()),
            _ => None,
        }),
    ];
    let is_long = |omission: &&Omission| matches!(omission.reason, OmissionReason::Time { .. });
    let Some((first, best)) = omissions.iter().find(is_long).zip(best) else { return lines.concat() };
    let optimal = omissions.iter().filter(is_long).any(|omission| omission.strategy == "optimal");
    let one = match best.problem.participation {
        participation if optimal && best.problem.stamps == 1 => format!(
            "the optimum with\n  hushflow optimize --method optimal -w {} -n {} --participation {participation}",
            best.problem.workload, best.problem.horizon
        ),
        _ => format!("one with --strategy {}", first.strategy),
    };
    lines.concat() + &format!("Add --all to compute those that take long, or {one}\n")
}

/// Wraps a text to the width of the terminal, or to 118 characters, and ends the line.
fn paragraph(text: &str) -> String {
    wrapped(text, terminal_width().unwrap_or(118)) + "\n"
}

/// Formats the plan and its budget.
fn subject(forecast: &Forecast) -> String {
    let Forecast { problem, budget, .. } = forecast;
    let budget = match (budget.epsilon, budget.delta, budget.noise_multiplier) {
        (Some(epsilon), Some(delta), Some(sigma)) => {
            let (epsilon, delta, sigma) = (number(epsilon), number(delta), number(sigma));
            format!("(ε, δ) = ({epsilon}, {delta}), with a noise multiplier of {sigma}")
        }
        (_, _, Some(sigma)) => format!("noise multiplier {}", number(sigma)),
        _ => "noise multiplier 1, as no budget is given: add, for example, --epsilon 1 --delta 1e-6".into(),
    };
    let warning = forecast.budget.delta.and_then(|delta| large_delta(delta, None));
    let warning = warning.map_or_else(String::new, |warning| format!("\nwarning: {warning}"));
    let participation = match problem.participation.is_single() {
        true => String::new(),
        false => format!(", participation {}", problem.participation),
    };
    let at_once = match problem.records_at_once {
        1 => String::new(),
        records => format!(", {records} records at once"),
    };
    let missing = if problem.by_column { " with the indicators of missing values" } else { "" };
    let stamps = if problem.stamps > 1 { format!(", {} stamps", problem.stamps) } else { String::new() };
    format!(
        "{} over {} epochs{participation}{at_once}{stamps}\n{} neighbours; d = {}, {} second moments, clip norm {}{missing}\n{budget}{warning}\n\n",
        problem.workload,
        thousands(problem.horizon),
        word(&problem.neighbours),
        problem.dimension,
        word(&problem.moments),
        number(problem.clip_norm),
    )
}

fn figures(forecast: &Forecast) -> Vec<Vec<String>> {
    let Forecast { factorization, sensitivity, cost, .. } = forecast;
    let error = factorization.error;
    let row = |name: &str, value: f64| vec![name.to_string(), number(value)];
    let mut rows = vec![
        row(&format!("sensitivity ({})", factorization.sensitivity_kind), error.sensitivity),
        row("Frobenius norm of AC⁻¹", error.frobenius),
        row("largest row norm of AC⁻¹", error.max_row),
        row("rmse, for noise multiplier 1", error.rmse),
        row("largest error, for noise multiplier 1", error.max_error),
        row("joint sensitivity", sensitivity.joint_sensitivity),
    ];
    rows.extend(sensitivity.lambda.map(|lambda| row("second-moment weight λ", lambda)));
    rows.extend(sensitivity.count_weight.map(|weight| row("count weight κ", weight)));
    let costs = [
        ("bytes of state per coordinate", cost.memory_per_coordinate),
        ("multiplications per coordinate and step", cost.multiplications_per_step),
    ];
    let line = |(name, amount): (&str, Option<usize>)| Some(vec![name.into(), thousands(amount? as u64)]);
    rows.extend(costs.into_iter().filter_map(line));
    rows.extend(factorization.loss_lower_bound.map(|bound| row("lower bound of the loss", bound)));
    let share = factorization.loss_excess.map(|share| vec!["loss above it".into(), excess(share)]);
    rows.extend(share);
    rows.extend(
        (sensitivity.rounding > 0.0)
            .then(|| row("share of the sensitivity due to rounding", sensitivity.rounding)),
    );
    rows
}

/// Formats the noise of counts, and unless it is given in units, that of sums and squares of scaled
/// columns.
fn noise_levels(forecast: &Forecast, in_units: bool) -> Vec<Vec<String>> {
    let row = |name: String, noise| [name].into_iter().chain(levels(noise, in_units)).collect();
    let scaled = ["first ±", "second ±"].into_iter().filter(|_| !in_units);
    let titles = ["95 % interval", "count ±"].into_iter().chain(scaled);
    let sent = forecast.noise.first_noise.sent.map(|_| "sent ±");
    let bin = forecast.noise.first_noise.bin.map(|_| "bin ±");
    vec![
        titles.chain(sent).chain(bin).map(String::from).collect(),
        row("epoch 1".into(), &forecast.noise.first_noise),
        row(format!("epoch {}", thousands(forecast.problem.horizon)), &forecast.noise.last_noise),
        row("root mean square".into(), &forecast.noise.rms_noise),
    ]
}

fn levels(noise: &ForecastNoise, in_units: bool) -> impl Iterator<Item = String> {
    let scaled = [Some(noise.first), noise.second].into_iter().filter(move |_| !in_units);
    [Some(noise.count)]
        .into_iter()
        .chain(scaled)
        .map(|level| level.map_or("-".into(), reach))
        .chain(noise.sent.map(reach))
        .chain(noise.bin.map(reach))
}

/// Formats the half-width of an interval.
fn reach(deviation: f64) -> String {
    number(half_width(deviation))
}

/// Formats the noise of mean and covariance: in the units of the columns, where a file names them.
fn mean(forecast: &Forecast, columns: Option<&ColumnForecasts>) -> String {
    if let Some(columns) = columns {
        return columns.text();
    }
    let (Some(records), Some(mean)) = (forecast.problem.records_per_epoch, forecast.noise.mean_noise) else {
        return "Add --records-per-epoch R to see the noise of mean and covariance.\n".into();
    };
    let variance = forecast.noise.covariance_noise.map_or(".\n".into(), |noise| {
        format!(
            ";\n  a variance ± {}, ± {}, ± {}.\n",
            reach(noise.first_epoch),
            reach(noise.last_epoch),
            reach(noise.average)
        )
    });
    format!(
        "With {} records per epoch, near the centre (clip norm {}), half-widths of 95 % intervals:\n  an entry of the mean ± {} at \
         epoch 1, ± {} at the last, ± {} on average{variance}",
        number(records),
        number(forecast.problem.clip_norm),
        reach(mean.first_epoch),
        reach(mean.last_epoch),
        reach(mean.average),
    )
}

/// Formats the noise of the count of sent records, if it is released.
fn sent(forecast: &Forecast) -> String {
    let noise = [&forecast.noise.first_noise, &forecast.noise.last_noise].map(|noise| noise.sent.map(reach));
    let [Some(first), Some(last)] = noise else { return String::new() };
    paragraph(&format!(
        "With {}, the number of sent records of a key is known to ± {first} in epoch 1 and ± {last} after the last.",
        forecast.strategy
    ))
}

/// Formats the noise of a bin of histograms and its cost, if there are any.
fn bin(forecast: &Forecast) -> String {
    let noise = [&forecast.noise.first_noise, &forecast.noise.last_noise].map(|noise| noise.bin.map(reach));
    let ([Some(first), Some(last)], Some(growth)) = (noise, forecast.sensitivity.histogram_growth) else {
        return String::new();
    };
    paragraph(&format!(
        "With {}, each bin of the histograms is known to ± {first} in epoch 1 and ± {last} after the last. Histograms \
         raise the noise of the moments by {:.1} % ([privacy] histogram_weight).",
        forecast.strategy,
        100.0 * (growth - 1.0)
    ))
}

/// Formats the privacy cost of the count and of second moments.
fn price(forecast: &Forecast) -> String {
    let JointSensitivity { lambda, count_weight, second_moment_free, count_free, .. } = forecast.sensitivity;
    let free = |free: bool| if free { "free" } else { "not free" };
    let count = if count_weight.is_none() { "public" } else { free(count_free) };
    let second = match forecast.problem.method {
        Method::Pp => {
            "Second moments are not released: readers square the epoch sums, which yields second moments of \
             records\nonly where an epoch is one record"
                .into()
        }
        _ if lambda.is_none() => "No second moments are released".into(),
        _ => format!("Second moments are {}", free(second_moment_free)),
    };
    format!(
        "Method {}. {second}; the count is {count}:\nfirst moments alone have sensitivity {}.\n",
        forecast.problem.method,
        number(forecast.sensitivity.first_moment_sensitivity),
    )
}

/// Returns the spelling of a value in pipeline files and on the command line.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(String::from)).unwrap_or_default()
}
