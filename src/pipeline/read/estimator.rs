//! Reads the section `[release]` if its method is an estimator of windows.

use hushflow_estimators::covariance;
use hushflow_estimators::mean::{self, Scale};
use hushflow_mechanism::sensitivity::Neighbours;

use crate::document::Section;
use crate::pipeline::Privacy;
use crate::pipeline::WindowEstimator;

/// An estimator named by `method`.
#[derive(Clone, Copy)]
pub(super) enum EstimatorMethod {
    Mean(mean::MeanMethod),
    Covariance(covariance::CovarianceMethod),
}

/// Returns the estimator that the document names, if any.
pub(super) fn named(root: &Section<'_>) -> Option<EstimatorMethod> {
    let section = root.peek("release")?;
    // A method that is not text is reported where the section is read.
    let name = section.peek_text("method")?;
    let mean = name.parse().ok().map(EstimatorMethod::Mean);
    mean.or_else(|| name.parse().ok().map(EstimatorMethod::Covariance))
}

/// Reads the section.
pub(super) fn estimator(
    section: &Section<'_>,
    named: EstimatorMethod,
    columns: usize,
) -> Option<WindowEstimator> {
    section.get("method");
    match named {
        EstimatorMethod::Mean(method) => mean(section, method, columns),
        EstimatorMethod::Covariance(method) => {
            let centre = section.number("centre");
            Some(WindowEstimator::Covariance { method, centre: centre.map(|centre| centre.value) })
        }
    }
}

fn mean(section: &Section<'_>, method: mean::MeanMethod, columns: usize) -> Option<WindowEstimator> {
    let corruption = section.require("corruption", section.number("corruption"));
    let trimmed = "a share above 0 and below 1/6: resilience trims three times this share at either end";
    let corruption = match method {
        mean::MeanMethod::Resilience => {
            corruption.and_then(|field| field.filter(trimmed, |&x| x > 0.0 && x < 1.0 / 6.0))
        }
        _ => corruption,
    };
    let range = section.number("range");
    if !method.takes_range() {
        let message =
            format!("a range is for tukey and resilience; method = \"{method}\" needs none: leave it out");
        section.refuse("range", message);
    }
    if method.needs_range() && !section.has("range") {
        section.report(format!(
            "method = \"{method}\" needs range = 10, a bound on every mean in scales around 0"
        ));
    }
    let scale = scale(section, columns);
    if method.needs_scales() && matches!(scale, Some(Scale::Estimated | Scale::Whitened)) {
        section.report(format!(
            "method = \"{method}\" needs scale = […], a number for each column: it spends no budget on estimating scales"
        ));
    }
    let range = range.map(|range| range.value);
    Some(WindowEstimator::Mean { method, corruption: corruption?.value, scale: scale?, range })
}

/// Reads a standard deviation for each column, `"whiten"`, or `"auto"`, the default.
fn scale(section: &Section<'_>, columns: usize) -> Option<Scale> {
    let Some(field) = section.get("scale") else { return Some(Scale::Estimated) };
    match section.peek_text("scale") {
        Some("auto") => return Some(Scale::Estimated),
        Some("whiten") => return Some(Scale::Whitened),
        _ => (),
    }
    let expected =
        format!("\"auto\", \"whiten\" or a list of {columns} numbers above 0, one for each column");
    let scales = field.numbers(&expected)?;
    let valid =
        |scales: &Vec<f64>| scales.len() == columns && scales.iter().all(|x| x.is_normal() && *x > 0.0);
    scales.filter(&expected, valid).map(|scales| Scale::Known(scales.value))
}

/// Reports settings that estimators of windows don't use or that have no proof.
pub(super) fn refuse(root: &Section<'_>, named: EstimatorMethod, privacy: Option<&Privacy>) {
    let stays = |neighbours| match named {
        EstimatorMethod::Mean(_) => neighbours == Neighbours::ReplaceOneInPlace,
        EstimatorMethod::Covariance(_) => neighbours != Neighbours::ReplaceOne,
    };
    let kept = privacy.is_none_or(|privacy| stays(privacy.neighbours));
    let Some(section) = root.peek("privacy") else { return };
    if !kept {
        section.report(match named {
            EstimatorMethod::Mean(_) => {
                "a mean of windows needs neighbours = \"replace-one-in-place\": the number of records in a window must be public"
            }
            EstimatorMethod::Covariance(_) => {
                "a covariance of windows needs neighbours = \"replace-one-in-place\", or \"zero-out\": a record must not move between windows"
            }
        });
    }
    for key in ["clip_norm", "second_moment_weight", "second_moments"] {
        section.refuse(key, "this is for moments, and estimators of windows release none: leave it out");
    }
    if root.peek("entity").is_some() {
        root.report("estimates of windows protect single records: leave [entity] out, or release moments");
    }
    root.refuse("views", "this is for moments; estimates of windows have no views: leave it out");
}
